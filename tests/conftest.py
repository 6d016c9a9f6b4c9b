"""Strict settings for every test: CPU with four devices, exact matrix products, fixed keys."""

import functools
import gc
import importlib.util
import itertools
import logging
import os
import pathlib
import random
import shlex
import sys
import tempfile
import threading
import typing
from collections.abc import Generator

gc.disable()  # until everything is imported and collected: nothing of that is garbage

# Before jax starts: tests say nothing about speed, so a GPU in the machine must not change them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile far more than they compute: LLVM's expensive passes would take most of the time, and
# then XLA's fusion emitters, which lower every fusion through MLIR, half of the rest.
_QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters "
    "--xla_cpu_parallel_codegen_split_count=1"  # tiny programs in 32 parts are 32 modules
)
# `.ci/full shipped` runs tests as XLA compiles for users.
_SHIPPED = os.environ.get("WAFER_TESTS_AS_SHIPPED") == "1"
if not _SHIPPED:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_QUICK}".strip()

# Runs that tests start are jobs too: not among the user's own.
_JOBS = tempfile.TemporaryDirectory(prefix="wafer-tests-jobs-")
os.environ["WAFER_JOBS_DB"] = f"{_JOBS.name}/jobs.db"

# What tests keep is not among what the user keeps.
if "WAFER_CACHE" not in os.environ:
    _CACHE = tempfile.TemporaryDirectory(prefix="wafer-tests-cache-")
    os.environ["WAFER_CACHE"] = _CACHE.name

# The same small program is compiled by many tests, by both workers and by every run a test starts:
# once is enough. Workers and runs take these from the process that started them, as JAX does.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _PROGRAMS = tempfile.TemporaryDirectory(prefix="wafer-tests-xla-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _PROGRAMS.name
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# The folder tests/wafer hides the package of an editable install, whose finder
# comes after sys.path.
if importlib.util.find_spec("wafer").origin is None:  # type: ignore[union-attr]
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

# Programs that tests start import what the tests import, wherever else a wafer is installed.
_PACKAGES = pathlib.Path(importlib.util.find_spec("wafer").origin).parents[1]  # type: ignore
if (_PACKAGES / "setup.py").is_file():
    _PATHS = [str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(_PATHS)

import pytest

if typing.TYPE_CHECKING:
    import jax

pytest.register_assert_rewrite("helpers")  # the assertions in there tell values, too


def pytest_configure(config: pytest.Config) -> None:
    """Set JAX up, except in a process that only hands tests out."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import hypothesis
    import jax
    import shapechecks  # noqa: F401  before the packages that it checks
    from jax._src.interpreters import mlir

    slow = [hypothesis.HealthCheck.too_slow]  # no test depends on the machine's speed
    hypothesis.settings.register_profile("tests", deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("tests")
    jax.config.update("jax_num_cpu_devices", 4)  # meshes of up to 4 systems in one process
    if not _SHIPPED:
        jax.config.update("jax_default_matmul_precision", "highest")

    # Half of lowering a small program is making its MLIR context; a hundred programs may share
    # one, which keeps their constants. What is lowered while another program is has its own.
    counter, make_context = itertools.count(), mlir.make_ir_context
    shared = functools.lru_cache(maxsize=1)(lambda hundred, thread: make_context())
    context = lambda: shared(next(counter) // 100, threading.get_ident())
    mlir.make_ir_context = lambda: make_context() if mlir.ir.Context.current else context()


def _native() -> bool:
    from wafer.sparsity.kernels import native

    return native.available()


# Where no compiler was there at install, the native kernels are not: what is about them, or asks
# for them by name, cannot run. Everything else must give the same results without them.


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of the native kernels where they were not built."""
    if _native():
        return
    if item.get_closest_marker("native"):
        pytest.skip("the native kernels were not built")
    if runtime := sys.modules.get("wafer.csl.host.runtime"):  # in JAX it would take minutes
        runtime.machine_for = sys.modules["wafer.machine.engine"].Machine


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Skip tests that ask for the native kernels by name, likewise."""
    try:
        return (yield)
    except Exception as error:  # RuntimeError, SparsityError, CompileError
        from wafer.vsl.native.library import how_to_build

        if how_to_build() in str(error) and not _native():
            pytest.skip("the native kernels were not built")
        raise


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--order``."""
    parser.addoption("--order", type=int, metavar="SEED", help="run the tests in a random order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle the tests when ``--order`` gives a seed: none may depend on another."""
    if (seed := config.getoption("order")) is not None:
        random.Random(seed).shuffle(items)


def pytest_collection_finish() -> None:
    """Exempt what is imported and collected from garbage collection: it lives until the end.

    Tracing makes so many objects that walking the others again and again is a tenth of the time.
    """
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    gc.enable()


_LEVELS = {"": logging.WARNING} | dict.fromkeys(("wafer", "wafer.sparsity"), logging.NOTSET)


@pytest.fixture(autouse=True)
def log_levels() -> None:
    """Begin with the levels of a new process: a command sets them for its own."""
    for name, level in _LEVELS.items():
        logger = logging.getLogger(name)
        if logger.level != level:  # setting one walks over every logger
            logger.setLevel(level)


@pytest.fixture
def key() -> "jax.Array":
    """One fixed random key; split it, never use it twice."""
    import jax

    return jax.random.key(0)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture) -> typing.Callable[..., str]:
    """Run a command line of ``wafer`` to its exit code; returns what it wrote, errors unless 0."""
    from wafer.cli import main

    def run(line: str | list[str], code: int = 0) -> str:
        capsys.readouterr()
        assert main(shlex.split(line) if isinstance(line, str) else [*map(str, line)]) == code
        return capsys.readouterr()[code != 0]

    return run
