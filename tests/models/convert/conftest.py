"""The command ``wafer convert`` in this process, whose errors tests look at."""

import argparse

import pytest

from wafer.commands.checkpoints.convert import add_arguments


@pytest.fixture
def command():
    """Run it with words and paths; returns its status."""

    def run(*words):
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        parsed = parser.parse_args([*map(str, words)])
        return parsed.run(parsed)

    return run
