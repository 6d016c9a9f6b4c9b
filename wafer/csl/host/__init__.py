"""The host's side of a CSL program: what the command line leaves, and what a run.py imports."""
