"""Stored form: sentinels, restored states, and the weights a stored model computes with."""
