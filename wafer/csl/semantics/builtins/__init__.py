"""What builtins mean."""
