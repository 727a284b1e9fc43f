"""The HTTP API, one router a duty: jobs (change), reads (watch), files (fetch), health."""
