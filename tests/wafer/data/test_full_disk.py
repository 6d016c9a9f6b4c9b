"""A disk that takes no more: one error, nothing half-written, and the run goes on after."""

import random
import subprocess
import sys

from helpers.rows import same_rows
from helpers.vendor_data import hook_file, run

LIMITED = """
import resource, sys
from wafer.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main(sys.argv[2:]))
"""


def test_a_file_that_the_disk_does_not_take_is_one_error_and_no_file(tmp_path):
    letters = random.Random(0)
    texts = ["".join(letters.choices("abcdefgh", k=99)) for _ in range(60)]
    path = hook_file(tmp_path, [{"text": text} for text in texts])
    command = ["data", "preprocess", "-p", str(path), "--display_pbar", "false"]
    for size, file in ((100, "tokenizer.json"), (40_000, "")):
        limited = [sys.executable, "-c", LIMITED, str(size), *command]
        ended = subprocess.run(limited, capture_output=True, text=True, check=False)
        assert ended.returncode == 1  # HDF5 would crash when the process ends
        assert ended.stderr.count("\n") == 1
        assert f"{file}: File too large. The disk takes no more" in ended.stderr
        assert (tmp_path / "out").exists() == (not file)
    left = {file.name for file in (tmp_path / "out").iterdir()}
    assert left == {"tokenizer.json", "tokenizer_config.json", "special_ids.json"}
    run(path)
    run(path, output_dir=str(tmp_path / "whole"))
    same_rows(tmp_path / "out", tmp_path / "whole")
