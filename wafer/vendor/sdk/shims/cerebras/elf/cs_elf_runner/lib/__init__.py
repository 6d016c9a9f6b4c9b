"""Helpers of the host of SDK 0.4 to 0.8."""
