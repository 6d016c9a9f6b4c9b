"""Build the native CPU kernels, if a C++ compiler is there; pyproject.toml holds the rest.

A kernel is one plain shared library (no Python module): loaded with ctypes on first use and
registered with XLA through ``jax.ffi``. Sources listed under ``per_target`` are compiled once for
every instruction set of the machine and chosen at load time. A library knows what it was built
from (``vsl/native/sources.py``). The compiler is CXX, this machine's, or that of the package
``ziglang`` (``vsl/native/backend.py``). Without one, with one that fails, or with WAFER_NATIVE=0,
the install goes on and the pure JAX implementations serve: the last line of the build says so
(pip shows it with -v), and the first run.

From a checkout: ``python setup.py build_ext --inplace``.
"""

import importlib.util
import logging
import os
import pathlib
import platform
import runpy
import shlex

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# name of the exported table -> (floats of a vector, compiler flags)
_BASELINE = {"baseline": (4, [])}
_X86 = {
    "avx512": (16, ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"]),
    "avx2": (8, ["-mavx2", "-mfma"]),
}
_TARGETS = _BASELINE | (_X86 if platform.machine().lower() in {"x86_64", "amd64"} else {})

_ROOT = pathlib.Path()
_SHARED = pathlib.Path("wafer", "vsl", "native")  # of every library
_SOURCES = runpy.run_path(str(_SHARED / "sources.py"))
_BACKEND = runpy.run_path(str(_SHARED / "backend.py"))


class NativeLibrary(Extension):
    """A shared library ``package/_native.so`` with some sources compiled per instruction set."""

    def __init__(self, package: str, sources: list[str], per_target: list[str]) -> None:
        """List sources by file name inside the package; headers beside them are found."""
        folder = pathlib.Path(*package.split("."))
        super().__init__(
            f"{package}._native",
            [str(_SHARED / "library.cc"), *(str(folder / name) for name in sources)],
            depends=[str(path) for path in _SOURCES["sources"](_ROOT, package)],
            include_dirs=[str(folder), str(_SHARED)],
            language="c++",
            optional=True,
        )
        self.per_target = [str(folder / name) for name in per_target]
        self.digest = _SOURCES["digest"](_ROOT, package)


def _jaxlib_headers() -> str:
    """Folder of the XLA FFI headers; found without importing JAX."""
    spec = importlib.util.find_spec("jaxlib")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("jaxlib is not installed, so its FFI headers are not there")
    return str(pathlib.Path(spec.submodule_search_locations[0], "include"))


class BuildNative(build_ext):
    """Compile and link ``NativeLibrary`` extensions; never fail the install."""

    def get_ext_filename(self, fullname: str) -> str:
        """Plain ``.so``: no Python ABI is involved."""
        return str(pathlib.Path(*fullname.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """There is no ``PyInit_`` to export."""
        return []

    def build_extensions(self) -> None:
        """Use the compiler that was found instead of the one that Python was built with."""
        wanted = os.environ.get("WAFER_NATIVE", "1") != "0"
        self._failed = [] if wanted else [ext.name for ext in self.extensions]
        if wanted:
            self._build_all()
        for name in self._failed:  # one of an earlier build, perhaps from other sources
            pathlib.Path(self.get_ext_fullpath(name)).unlink(missing_ok=True)
        if self._failed:
            packages = [name.removesuffix("._native") for name in sorted(self._failed)]
            logging.getLogger(__name__).warning(
                "no native library for %s (%s); JAX serves instead, many times slower. To have it, "
                "install again",
                "; ".join(_SOURCES["LIBRARIES"][package] for package in packages),
                "what failed is said above" if wanted else "WAFER_NATIVE=0",
            )

    def _build_all(self) -> None:
        command = _BACKEND["compiler"]()
        if command is not None and self.compiler.compiler_type == "unix":
            # Zig keeps the C++ library that it builds; what it keeps is not to outlive the build.
            cache = pathlib.Path(self.build_temp, "zig").resolve()
            os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(cache))
            # setuptools takes the linker's command apart by those of compiler and of executables.
            names = "compiler_so_cxx", "compiler_cxx", "linker_exe", "linker_exe_cxx"
            shared = {key: [*command, "-shared"] for key in ("linker_so", "linker_so_cxx")}
            self.compiler.set_executables(**dict.fromkeys(names, command), **shared)
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Compile common sources once, the others once per target, and link one library."""
        try:
            self._build(ext)
        except Exception as error:  # whatever a compiler does, the install goes on
            logging.getLogger(__name__).warning("%s was not built: %s", ext.name, error)
            self._failed.append(ext.name)

    def _build(self, ext: NativeLibrary) -> None:
        flags = ["-std=c++17", "-O3", "-g0", "-fPIC", "-fwrapv", "-DNDEBUG"]
        flags += [*shlex.split(os.environ.get("CXXFLAGS", "")), "-isystem", _jaxlib_headers()]
        temp = pathlib.Path(self.build_temp, ext.name)
        objects, built = [], [("WAFER_SOURCES", f'"{ext.digest}"')]
        for name, (lanes, target_flags) in _TARGETS.items():
            macros = [("WAFER_TARGET", f"wafer_tile_{name}"), ("WAFER_LANES", str(lanes))]
            objects += self.compiler.compile(
                ext.per_target,
                output_dir=str(temp / name),
                macros=macros,
                include_dirs=ext.include_dirs,
                extra_postargs=flags + target_flags,
            )
            built.append((f"WAFER_HAS_{name.upper()}", None))
        objects += self.compiler.compile(
            ext.sources,
            output_dir=str(temp),
            macros=built,
            include_dirs=ext.include_dirs,
            extra_postargs=flags,
            depends=ext.depends,
        )
        link = ["-pthread", *shlex.split(os.environ.get("LDFLAGS", ""))]
        self.compiler.link_shared_object(
            objects, self.get_ext_fullpath(ext.name), target_lang="c++", extra_postargs=link
        )


class PlatformWheel(bdist_wheel):
    """A wheel for every Python 3 of this platform: the libraries know no Python ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        """The tag names the C library that this machine has: no older one serves."""
        name, version = platform.libc_ver()
        tag = super().get_tag()[2]
        if name == "glibc" and tag.startswith("linux_"):
            tag = f"manylinux_{version.replace('.', '_')}_{tag.removeprefix('linux_')}"
        return "py3", "none", tag


setup(
    ext_modules=[
        NativeLibrary(
            "wafer.vsl.native",
            ["attention.cc", "product.cc", "cache/cache.cc", "norm/norm.cc", "entropy/entropy.cc"],
            ["block.cc", "panel.cc", "cache/row.cc", "norm/rows.cc", "entropy/scores.cc"],
        ),
        NativeLibrary(
            "wafer.sparsity.kernels",
            ["sparse_dot.cc", "walk.cc", "topology.cc", "topk.cc", "moves.cc", "decode.cc"],
            per_target=["tile.cc", "columns.cc", "streams.cc"],
        ),
        NativeLibrary("wafer.fabric.native", [], per_target=["planes.cc"]),
        NativeLibrary("wafer.machine.native", ["machine.cc"], per_target=[]),
    ],
    cmdclass={"bdist_wheel": PlatformWheel, "build_ext": BuildNative},
)
