"""What more than one service must agree on: `wire` (messages and transport), `job` (the job file), `policy` (model folders)."""
