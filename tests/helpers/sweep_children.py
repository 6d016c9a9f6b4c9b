"""Processes of a sweep that are over before they begin."""

import types

from wafer.sweeps import children


def ended_child(trial, code):
    """A trial's process that has ended with a code."""
    process = types.SimpleNamespace(returncode=code, poll=lambda: code)
    return children._Child(trial, process, 0.0, 0)
