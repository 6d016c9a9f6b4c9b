"""What expressions and statements mean."""
