"""What public programs import as ``cerebras``, backed by ``wafer.csl.host``."""

import os
from pathlib import Path

from wafer.csl.host.tools.shifts import SCRIPT, watch_shifts

if os.environ.get(SCRIPT):
    watch_shifts(Path(os.environ[SCRIPT]))
