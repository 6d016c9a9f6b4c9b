"""Readers under attack: damaged and hostile files must end in one line that names the file.

``WAFER_FUZZ_SECONDS`` (1) is the time of each area, ``WAFER_FUZZ_SEED`` (0) decides what is tried.
Each area runs in a process of its own, so that a crash or a hang is a failure like any other:

    cd tests && python -m fuzz.attack AREA... --seconds SECONDS --seed SEED

prints attempts, clean and bad, and keeps the last file tried of each bad kind (``--keep FOLDER``).
"""
