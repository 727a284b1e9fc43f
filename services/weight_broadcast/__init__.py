"""weight-broadcast: checks the trainer's snapshots, serves them to engines, announces and retires versions."""
