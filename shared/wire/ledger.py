"""Writing and reading a job's ledger: the compare-and-set that makes every decision safe.

A deciding record is published with the ledger's expected last sequence, so its writer has read everything before it.
The broker checks that before it de-duplicates, so a retry of one's own stored record is refused too: refused means
read on, the record may be there; else decide again.

    ledger = Ledger(bus, job, "scheduler", holder, apply)
    await ledger.open()                  # reads all, writes `epoch`, reads its own record back
    await ledger.append(lambda: record)  # `apply` sees every record once, in order, the own ones included
"""
