"""Run files and notebooks that come with the package."""

import nbformat
import pytest
import yaml
from helpers.paths import ROOT

import wafer
from wafer.errors import ConfigError

RUN_FILE = ROOT / "models" / "configs" / "gpt_pystdlib.yaml"


def test_a_run_file_is_listed_read_and_written(cli, tmp_path):
    listed = dict(line.split(maxsplit=1) for line in cli("config example").splitlines())
    assert listed.keys() == {path.stem for path in (ROOT / "models" / "configs").rglob("*.yaml")}
    assert listed["gpt2_small"].startswith("gpt2 at its published size: 124.4 M parameters")

    sections = yaml.safe_load(RUN_FILE.read_text())
    assert wafer.example("gpt_pystdlib") == sections
    wafer.example("gpt_pystdlib")["model"]["hidden_size"] = 1
    assert wafer.example("gpt_pystdlib") == sections, "a caller may change what it got"

    path = tmp_path / "own.yaml"
    cli(["config", "example", "gpt_pystdlib", "-o", path])
    assert yaml.safe_load(path.read_text()) == sections
    assert f"wafer run --params {path} --mode train_and_eval" in path.read_text()
    assert "is there already" in cli(["config", "example", "gpt2_small", "-o", path], 1)
    assert "did you mean 'gpt2_small'?" in cli("config example gpt2_smal", 1)
    with pytest.raises(ConfigError, match=r"no run file 'gpt'.*`wafer config example` lists all"):
        wafer.example("gpt")


def test_notebooks_are_listed_and_written(cli, tmp_path):
    names = [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    assert [line.split()[0] for line in cli("notebooks").splitlines()] == names
    assert "A program in CSL" in cli("notebooks")

    cli(["notebooks", "09_csl", "-o", tmp_path / "one"])
    (written,) = (tmp_path / "one").iterdir()
    nbformat.validate(nbformat.read(written, as_version=4))
    written.write_text("changed by a user")
    assert "09_csl.ipynb is there already" in cli(["notebooks", "-o", tmp_path / "one"], 1)
    assert [written.read_text()] == [path.read_text() for path in written.parent.iterdir()]
    cli(["notebooks", "-o", tmp_path / "all"])
    assert sorted(path.stem for path in (tmp_path / "all").iterdir()) == names
    assert "did you mean '09_csl'?" in cli("notebooks 09_cls", 1)
