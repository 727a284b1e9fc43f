"""The command line's job commands. Importing this loads argparse only; each command loads what it needs when it runs.

Exit status of every command: 0 it worked; 1 what was asked about failed (a failed job, an unbalanced audit, a refusal);
2 bad usage or bad input; 3 no gateway answers; 130 interrupted.
"""
