"""The vendor's checkpoint files: what they hold, without its pickles."""
