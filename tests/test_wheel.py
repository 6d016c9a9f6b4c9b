"""The distribution: a source archive and a wheel, built from a copy, installed, used."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from helpers.paths import ROOT

USE = """
import importlib.metadata, pathlib, sys
from wafer.sparsity.kernels import native as kernels
from wafer.vsl.native.library import Library
import wafer.csl
from wafer import vsl
from wafer.csl.host.tools.examples import write_example
site = pathlib.Path(sys.argv[1])
assert importlib.metadata.version("wafer-jax")
assert site in pathlib.Path(vsl.__file__).parents
for package in "wafer.vsl.native", "wafer.sparsity.kernels", "wafer.fabric.native":
    library = Library(what="a library", package=package, instead="nothing")
    assert library.loaded()._name.startswith(str(site)), package
assert wafer.csl.compile(sys.argv[2]).tiles.shape == (1, 1)
files = write_example("life", pathlib.Path("life"))
assert {"layout.csl", "run.py", "commands_wse2.sh", "README.md"} <= {file.name for file in files}
"""
LAYOUT = 'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl", .{}); }'
PE = 'const random = @import_module("<random>");'


@pytest.mark.slow
def test_a_wheel_has_the_libraries_and_serves_every_python(tmp_path):
    source, dist, site = tmp_path / "source", tmp_path / "made", tmp_path / "site"
    kept = shutil.ignore_patterns("*.so", "__pycache__", ".*", "build", "*.egg-info", "site")
    shutil.copytree(ROOT, source, ignore=kept)
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
    (tmp_path / "layout.csl").write_text(LAYOUT, encoding="utf-8")
    (tmp_path / "pe.csl").write_text(PE, encoding="utf-8")
    use = [sys.executable, "-P", "-c", USE, str(site), str(tmp_path / "layout.csl")]
    env = os.environ | {"PYTHONPATH": str(site)}
    used = subprocess.run(use, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert used.returncode == 0, used.stderr
