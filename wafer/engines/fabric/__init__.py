"""Training on simulated PEs."""
