"""Commands: compile, check, run and trace programs, and write an example."""
