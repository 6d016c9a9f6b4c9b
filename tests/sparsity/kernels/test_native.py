"""The native library may be missing: the same results, one line that says so, no failed install."""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from helpers.paths import ROOT
from helpers.processes import ended

from wafer import sparsity
from wafer.machine import engine
from wafer.sparsity import kernels
from wafer.sparsity.kernels.choice import obstacle
from wafer.vsl.native import library

pytestmark = pytest.mark.native


PROGRAM = """
import json, logging, sys
logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")
import jax, jax.numpy as jnp
from wafer.sparsity import kernels
from wafer.vsl.native import library
mask = (jnp.arange(60 * 40).reshape(60, 40) * 7919) % 11 == 0
nnz = int(mask.sum())
pattern = kernels.pattern_from_mask(mask, nnz)
values = jnp.sin(jnp.arange(nnz, dtype=jnp.float32))
x = jnp.cos(jnp.arange(30 * 60, dtype=jnp.float32)).reshape(30, 60)
def loss(x, values):
    weight = kernels.SparseWeight(values=values, pattern=pattern)
    return jnp.sum(weight.project(x) ** 2)
dx, dw = jax.jit(jax.grad(loss, (0, 1)))(x, values)
new = jax.jit(kernels.rigl_update)(values, pattern, jnp.abs(x.T @ x[:, :40]), nnz // 2)
chosen = kernels.choose(30, 60, 40, nnz, jnp.float32)
print(json.dumps([chosen, float(loss(x, values)), dx.sum(1).tolist(), dw.tolist(),
                  new.pattern.indices.tolist(), new.values.tolist()]))
"""


def run(native_switch):
    process = ended(PROGRAM, WAFER_NATIVE=native_switch)
    return json.loads(process.stdout), process.stderr


@pytest.mark.slow
def test_absence_gives_the_same_results_and_one_line():
    (chosen, *with_native), quiet = run("1")
    (other, *without), log = run("0")
    assert (chosen, other) == ("csr", "masked")
    for one, two in zip(with_native, without, strict=True):
        assert two == pytest.approx(one, rel=1e-5, abs=1e-4)
    assert with_native[3:] == without[3:]  # topology: the same bits
    assert "native" not in quiet
    notices = [line for line in log.splitlines() if "no native library" in line]
    assert len(notices) == 1
    assert "WAFER_NATIVE=0" in notices[0]


def test_asking_for_csr_without_the_library_says_how_to_build_it(monkeypatch):
    monkeypatch.setattr("wafer.vsl.native.library._load", lambda library: None)
    monkeypatch.setattr("wafer.sparsity.storage.obstacle", obstacle.__wrapped__)  # keeps no answer
    pattern = kernels.pattern_from_flat(jnp.zeros(1, jnp.int32), (1, 1))
    weight = kernels.SparseWeight(values=jnp.ones(1), pattern=pattern, implementation="csr")
    build = re.escape(library.how_to_build())
    with pytest.raises(RuntimeError, match=build):
        weight.project(jnp.ones((1, 1)))
    sparse = lambda compute: sparsity.configure({"sparsity": 0.5, "compute": compute}).init(
        {"kernel": jnp.ones((64, 64))}, jax.random.key(0)
    )
    assert sparse("auto").masks
    says = rf"sparsity\.compute: csr: sparse kernels: the native library is not.*{build}"
    with pytest.raises(sparsity.SparsityError, match=says):
        sparse("csr")


def test_importing_loads_nothing():
    ended(
        "import wafer.sparsity.kernels.native, wafer.vsl.native.library as n\n"
        "assert n._load.cache_info().currsize == 0\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("target", ["avx2", "baseline"])
def test_other_instruction_sets_give_the_same_results(target):
    (_, *best), _ = run("1")
    (chosen, *other), _ = run(target)
    assert chosen == "csr"
    for one, two in zip(best, other, strict=True):
        assert two == pytest.approx(one, rel=1e-5, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["avx2", "baseline"])
def test_products_of_other_instruction_sets(target):
    products = str(pathlib.Path(__file__).with_name("test_kernels.py"))
    chosen = "autodiff or whole_panels or share_their_inputs"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", "-k", chosen, products]
    env = os.environ | {"WAFER_NATIVE": target}
    process = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout


@pytest.mark.slow
def test_a_failing_compiler_does_not_fail_the_install(tmp_path):
    env = os.environ | {"CXX": "/bin/false", "CC": "/bin/false"}
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path)]
    command += ["--build-temp", str(tmp_path / "temp")]
    stale = tmp_path / "wafer" / "machine" / "native" / "_native.so"
    stale.parent.mkdir(parents=True)
    stale.touch()  # of an earlier build
    process = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    if "invalid pyproject.toml" in process.stderr:
        pytest.fail(
            "setuptools is older than pyproject.toml asks for: pip install 'setuptools>=77'"
        )
    assert process.returncode == 0, process.stderr
    last = process.stderr.splitlines()[-1]
    assert "; sparse kernels; attention, products, norms and losses (what failed is said" in last
    assert not list(tmp_path.rglob("*.so"))


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout whose library is not built; the one of the tests is installed elsewhere."""
    built = pathlib.Path(kernels.native._LIBRARY.loaded()._name)
    sources_alone = shutil.ignore_patterns("*.so", "*.py", "__pycache__")
    for folder in ("wafer/vsl/native", "wafer/sparsity/kernels"):
        shutil.copytree(ROOT / folder, tmp_path / "checkout" / folder, ignore=sources_alone)
    shutil.copy(ROOT / "setup.py", tmp_path / "checkout")
    installed = tmp_path / "site" / "wafer" / "sparsity" / "kernels"
    installed.mkdir(parents=True)
    shutil.copy(built, installed)
    monkeypatch.setattr(library, "_ROOT", tmp_path / "checkout")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "checkout"), str(tmp_path / "site")])
    return tmp_path / "checkout"


def test_a_checkout_takes_the_installed_library(checkout):
    assert (
        library._find("wafer.sparsity.kernels")
        == checkout.parent / "site/wafer/sparsity/kernels/_native.so"
    )
    (checkout / "wafer/sparsity/kernels/tile.h").write_text("// other sources\n")
    with pytest.raises(FileNotFoundError, match=r"site.* was built from other sources"):
        library._find("wafer.sparsity.kernels")
    with pytest.raises(FileNotFoundError, match=r"wafer.fabric.native._native\.so is missing"):
        library._find("wafer.fabric.native")


def test_an_outdated_library_in_the_checkout_is_not_used(checkout):
    (checkout / "wafer/sparsity/kernels/_native.so").write_bytes(b"of another version")
    assert library._find("wafer.sparsity.kernels").is_relative_to(checkout.parent / "site")


def test_a_checkout_without_any_says_the_command_that_mends_it(checkout, monkeypatch, caplog):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(library, "_REPORTED", set())
    other = dataclasses.replace(kernels.native._LIBRARY, instead="kernels of a test")
    assert not other.available()
    command = f"`cd {checkout} && {sys.executable} setup.py build_ext --inplace` (it needs"
    assert not dataclasses.replace(engine._LIBRARY, instead="that of a test").available()
    (line,) = caplog.messages  # of all libraries, which are missing alike
    assert command in line
    assert "; sparse kernels; timing planes; the machine for CSL (" in line
    with pytest.raises(RuntimeError, match=r"setup\.py build_ext --inplace"):
        other.loaded()


@pytest.mark.parametrize("kept", [True, False])
def test_an_installed_package_names_the_folder_that_it_came_from(kept, tmp_path, monkeypatch):
    site, source = tmp_path / "site", tmp_path / "a checkout"
    info = site / "wafer_jax-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wafer-jax\nVersion: 1\n")
    (info / "direct_url.json").write_text(json.dumps({"url": source.as_uri(), "dir_info": {}}))
    source.mkdir()
    if kept:
        (source / "setup.py").touch()
    monkeypatch.setattr(library, "_ROOT", site)
    monkeypatch.setattr(sys, "path", [str(site)])
    install = f"{sys.executable} -m pip install --force-reinstall --no-deps"
    there = f"`{install} '{source}'`"
    gone = f"`{install} CHECKOUT` with the path of a checkout of wafer"
    assert library.how_to_build() == (there if kept else gone)
