"""The job file: schema, defaults and checks. Imports no torch and no service."""
