"""The distribution: a source archive and a wheel, built from a copy, installed, used."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import nbclient
import nbformat
import pytest
from helpers.paths import ROOT

USE = """
import importlib.metadata, pathlib, sys
from wafer.sparsity.kernels import native as kernels
from wafer.vsl.native.library import Library
import wafer.cli, wafer.csl
from wafer import vsl
from wafer.csl.host.tools.examples import write_example
site = pathlib.Path(sys.argv[1])
assert importlib.metadata.version("wafer-jax")
assert site in pathlib.Path(vsl.__file__).parents
for package in "wafer.vsl.native", "wafer.sparsity.kernels", "wafer.fabric.native":
    library = Library(package=package, instead="nothing")
    assert library.loaded()._name.startswith(str(site)), package
assert wafer.csl.compile(sys.argv[2]).tiles.shape == (1, 1)
files = write_example("life", pathlib.Path("life"))
assert wafer.example("gpt_pystdlib")["model"]["name"] == "gpt2"
assert wafer.cli.main(["notebooks", "09_csl"]) == 0
assert pathlib.Path("09_csl.ipynb").stat().st_size > 1000
assert {"layout.csl", "run.py", "commands_wse2.sh", "README.md"} <= {file.name for file in files}
"""
LAYOUT = 'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl", .{}); }'
PE = 'const random = @import_module("<random>");'


LOOP = """
import jax, models, sparsity as levels, vsl as streams
from wafer import sparsity, vsl
params = models.build(hidden=8).init(jax.random.key(0))
rule = sparsity.configure({"sparsity": levels.LEVEL, "param_filter": "*weight"})
(mask,) = rule.init(params, jax.random.key(1)).masks.values()
assert (int(mask.sum()), streams.NAME) == (8 * 64 // 4, "own")
assert vsl.layout_from_lengths(jax.numpy.asarray([2]), 4).valid.sum() == 2
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder that the wheel is installed in, built from a copy without the native libraries."""
    tmp_path = tmp_path_factory.mktemp("wheel")
    source, dist, site = tmp_path / "source", tmp_path / "made", tmp_path / "site"
    kept = shutil.ignore_patterns("*.so", "__pycache__", ".*", "build", "*.egg-info", "site")
    shutil.copytree(ROOT, source, ignore=kept, symlinks=True)
    build = [sys.executable, "-m", "build", "--no-isolation", "-o", str(dist), str(source)]
    process = subprocess.run(build, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    (wheel,), (archive,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    assert "-py3-none-" in wheel.name
    with tarfile.open(archive) as file:
        assert any(name.endswith("sparsity/kernels/tile.h") for name in file.getnames())

    with zipfile.ZipFile(wheel) as file:
        tops = {name.partition("/")[0] for name in file.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"wafer"}

    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(site), str(wheel)], check=True)
    return site


def ended(tmp_path, folder, *command):
    """Run Python in a folder of a user's, with wafer from another one."""
    options = {"env": os.environ | {"PYTHONPATH": str(folder)}, "capture_output": True}
    command = [sys.executable, *command]
    ended = subprocess.run(command, cwd=tmp_path, text=True, check=False, **options)
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.mark.slow
def test_a_wheel_has_the_libraries_and_serves_every_python(tmp_path, site):
    (tmp_path / "layout.csl").write_text(LAYOUT, encoding="utf-8")
    (tmp_path / "pe.csl").write_text(PE, encoding="utf-8")
    ended(tmp_path, site, "-P", "-c", USE, str(site), str(tmp_path / "layout.csl"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")  # pyzmq's loop
def test_the_wheels_notebooks_run_in_an_empty_folder(tmp_path, site, monkeypatch):
    """`.ci/wheel` does so in an environment with the extra `notebooks` alone."""
    monkeypatch.setenv("PYTHONPATH", str(site))
    notebook = nbformat.read(site / "wafer" / "notebooks" / "09_csl.ipynb", as_version=4)
    inside = f"import wafer; assert wafer.__file__.startswith({str(site)!r}), wafer.__file__"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(inside))
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=900, resources=resources).execute()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("editable", [False, True])
def test_users_modules_may_be_called_as_our_folders(tmp_path, site, editable):
    page = (ROOT / "docs" / "howto" / "model-plain.md").read_text(encoding="utf-8")
    block = lambda kind: re.search(f"```{kind}\n(.*?)```", page, re.DOTALL)[1]
    model, params = block("python"), block("yaml")
    (tmp_path / "models.py").write_text(model)
    (tmp_path / "sparsity.py").write_text("LEVEL = 0.75\n")
    (tmp_path / "vsl").mkdir()
    (tmp_path / "vsl" / "__init__.py").write_text("NAME = 'own'\n")
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "params.yaml").write_text(params.replace("my_model:build", "models:build"))
    wafer = ROOT if editable else site  # an editable install puts the checkout on the path
    ended(tmp_path, wafer, "-m", "wafer", "run", "-p", "params.yaml", "-m", "train")
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    ended(tmp_path, wafer, "loop.py")
