"""Where the checkout is, and its reference vectors."""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
