"""The vendor's checkpoints of every release, both ways: weights, optimizer state, sections."""
