"""Optimizers, schedules, parameter groups: each section beside its formula."""
