"""trainer: turns recorded batches into versions and checkpoints. The step loop is `loop.py`; start reading there."""
