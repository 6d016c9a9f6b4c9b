"""Where a package of an extra is missing, one line names the extra, before any work."""

import json
import subprocess
import sys

import h5py
import hdf5plugin
import numpy as np
from helpers.paths import ROOT

DIGITS = ROOT / "models" / "configs" / "fc_mnist" / "fc_digits.yaml"

# Commands of one process without the packages: each one's exit status.
PROGRAM = """
import json, sys
sys.modules |= dict.fromkeys(("matplotlib", "PIL", "hdf5plugin", "pyarrow"))
from wafer.cli import main
statuses = []
for command in json.loads(sys.argv[1]):
    sys.stderr.write(f"-- {command}\\n")
    statuses.append(main(command))
print(json.dumps(statuses))
"""

# Command -> what its one line says; the extra.
REFUSED = {
    "plan --picture scaling.svg -p none.yaml": ("--picture needs the package", "pictures"),
    "csl trace --picture time.png none.py": ("--picture needs the package", "pictures"),
    "data dedup -i a.parquet -o kept": ("reading a.parquet needs the package pyarrow", "data"),
    "checkpoint info packed.mdl": ("which is compressed, needs the package hdf5plugin", "mdl"),
}


def test_what_lacks_a_package_names_its_extra_and_what_can_goes_on(tmp_path, cli):
    with h5py.File(tmp_path / "packed.mdl", "w") as file:
        file.create_dataset("weight", data=np.zeros(900), chunks=(90,), **hdf5plugin.LZ4())
    with h5py.File(tmp_path / "plain.mdl", "w") as file:
        file.create_dataset("weight", data=np.zeros(900), compression="gzip")
    (tmp_path / "a.parquet").touch()
    compiled = f"compile -p {DIGITS} -o plan --compile_dir kept"
    commands = [*REFUSED, "checkpoint info plain.mdl", compiled]
    program = [sys.executable, "-P", "-c", PROGRAM, json.dumps([*map(str.split, commands)])]
    options = {"cwd": tmp_path, "capture_output": True, "text": True}
    ended = subprocess.run(program, check=True, **options)
    assert json.loads(ended.stdout.splitlines()[-1]) == [1] * len(REFUSED) + [0, 0]
    said = [part.splitlines()[1:] for part in ended.stderr.split("-- ")[1:]]
    for (what, extra), lines in zip(REFUSED.values(), said, strict=False):
        (line,) = lines
        assert what in line
        assert line.endswith(f" -m pip install 'wafer-jax[{extra}]'")
    (line,) = said[-1]
    assert "drawing the floor plan needs the package matplotlib" in line
    reports = {"compile_report.txt", "compile_report.json", "floor_plan.html"}
    assert {path.name for path in (tmp_path / "plan").iterdir()} == reports
    # With the package the kept plan is not enough: its pictures are missing.
    cli(f"compile -p {DIGITS} -o {tmp_path}/b --compile_dir {tmp_path}/kept")
    assert {path.name for path in (tmp_path / "b").iterdir()} > reports
