"""replay-buffer: joins scored samples to groups, forms the batches, settles every sample in the ledger."""
