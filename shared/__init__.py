"""What several services must agree on: `wire` (messages, transport), `job` (the job file), `policy` (model folders)."""
