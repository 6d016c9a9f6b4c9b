"""Statements of a step, traced: the model's values, the tape of its loss, the compiled step."""
