"""The plan of the house: who may import whom, how long a file may be, what a module must say."""

import ast
import collections
import functools
import graphlib
import importlib.metadata
import re
import statistics
import subprocess
import sys
import tomllib

import pytest
from helpers.paths import ROOT

from wafer.models.errors import _EXTRAS

TOP = {".ci", ".github", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md"}
TOP |= {"docs", "mkdocs.yml", "models", "notebooks", "pyproject.toml", "setup.py", "sparsity"}
TOP |= {"tests", "vsl", "wafer"}
LONGEST = 500
FULLEST = 15
# Folders with more files than FULLEST. The figures only shrink.
FULLER = {"sparsity/kernels": 24, "vsl/native": 16}

# Room -> floor; an import may only point to a lower floor, or stay in its room. The longest name
# that fits a module is its room. docs/concepts/architecture.md says what lives where.
FLOORS = {
    "wafer.vsl": 0,
    "wafer.models": 10,
    "wafer.models.layers": 11,
    "wafer.models.families": 12,
    "wafer.models.factored": 13,
    "wafer.models.registry": 15,
    "wafer.models.generation": 15,
    "wafer.models.checkpoint": 16,
    "wafer.models.convert": 17,
    "wafer.models.convert.tables.class_defaults": 15,  # figures alone
    "wafer.models.convert.tokenizer": 15.5,  # files beside weights
    "wafer.sparsity": 20,
    "wafer": 30,  # the lazy public names
    "wafer.cache": 31,
    "wafer.energy": 31,
    "wafer.errors": 31,
    "wafer.frames": 31,
    "wafer.malloc": 31,
    "wafer.version": 29,
    "wafer.spec": 31,
    "wafer.profiling": 32,
    "wafer.yamlfile": 32,
    "wafer.roofline": 40,
    "wafer.optim": 41,
    "wafer.machine": 40,
    "wafer.machine.arch": 30.5,  # figures alone
    "wafer.fabric": 41,
    "wafer.csl": 42,
    "wafer.data": 50,
    "wafer.registration": 59,
    "wafer.config": 60,
    "wafer.jobs": 70,
    "wafer.experiment": 70,
    "wafer.compiler": 80,
    "wafer.engines": 90,
    "wafer.session": 100,
    "wafer.sweeps": 105,
    "wafer.vendor": 109,
    "wafer.loop": 109.5,  # lies in wafer/vendor, and is imported under this name alone
    "wafer.commands": 110,
    "wafer.cli": 120,
    "wafer.run": 130,
    "wafer.__main__": 130,
}
ONLY = {  # besides its own room
    "wafer.compiler": {"wafer.engines.fabric", "wafer.commands"},
    "wafer.vendor": {"wafer.commands", "wafer.loop", "wafer.__main__"},
}
# The one import of older forms of a run file, which the loader reads first.
DOORS = {("wafer.config.loader", "wafer.vendor")}
NEVER = {"wafer.engines": {"wafer.jobs"}}
# A string "module:object" is an import of the module that follows it.
FOLLOWED_BY = {"wafer.config.engines": "wafer.engines.choose"}

# Room -> statements (``ast.stmt``), which only shrink: a change that adds removes as many, or
# raises its row and says why beside it. "results show": as HTML in notebooks.
STATEMENTS = {
    "models": 7848,  # results show (38b); Qwen to OPT, caches in place (76); export (77)
    "sparsity": 4426,  # levels (38a, 77); results show (38b); harness, int8, decoding, slices (76)
    "vsl": 1857,  # rows that lie apart in the batch (77); a token and its cache in one call (76)
    "wafer": 1025,  # init, step (38a); films in rows (38b); addresses, the peak by stages (77)
    "wafer/commands": 3068,  # results show (38b); sweeps tune (34); harness (76); stores, plan (77)
    "wafer/compiler": 2219,  # results show (38b); the page of a floor plan (75)
    "wafer/config": 881,  # keys of loggers (76); harness (76); checkpoint_root, addresses (77)
    "wafer/csl": 7727,  # functions bound as tasks (33a); ends of ranges, floats, descriptors (32)
    "wafer/data": 8825,  # to_batch takes a batch (38a); shards of preprocessing, addresses (77)
    "wafer/engines": 3407,  # sharded state by whole parts, weights that are not split (77)
    "wafer/fabric": 2060,
    "wafer/jobs": 307,  # a run ends with its sweep (77)
    "wafer/machine": 4127,  # headers, both sides (33b); subnormals (32); damaged recordings (75)
    "wafer/optim": 1172,  # the step from the gradients on, before in engines (38a)
    "wafer/profiling": 306,  # functions of the commands (38a); results show (38b)
    "wafer/session": 1526,  # sharded state (77); functions, results (38); loggers, harness (76)
    "wafer/sweeps": 1273,  # tuning, rows of earlier tables (34); jobs of a cluster, killed (77)
    "wafer/vendor": 5238,  # calls by words of SDK 0.6, keywords that are refused (33b)
}

# Modules besides packages and the vendor's stand-ins that give names of others, or whose names a
# package takes with '*'.
FACADES = {
    "wafer.vendor.sdk.sdk",
    "wafer.csl.trace",
    "wafer.errors",
    "wafer.fabric.errors",
    "wafer.fabric.library.collectives",
    "wafer.fabric.library.kernel_programs",
    "wafer.fabric.library.kernels",
    "wafer.fabric.library.lowering",
    "wafer.fabric.library.routes",
    "wafer.fabric.library.stencils",
    "wafer.fabric.program.ops",
    "wafer.fabric.simulator",
    "wafer.fabric.trace",
    "wafer.loop.experimental",
    "wafer.loop.nn.functional",
    "wafer.loop.nn.utils",
    "wafer.machine.tools.trace",
    "wafer.run",
    "wafer.vsl.native.backend",
}

FILES = sorted(
    p
    for name in ("vsl", "models", "sparsity", "wafer")
    for p in (ROOT / name).rglob("*.py")
    if not p.is_relative_to(ROOT / "wafer" / "csl" / "examples")  # scripts, no modules
)


def module_name(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    name = name.removesuffix(".__init__").replace("wafer.vendor.loop", "wafer.loop")
    return name if name.partition(".")[0] == "wafer" else f"wafer.{name}"


MODULES = {module_name(path): path for path in FILES}


@functools.cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def _for_types_alone(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _nodes(node, *, types):
    """Every node; a branch for the type checker alone if ``types``."""
    for child in ast.iter_child_nodes(node):
        if types or not _for_types_alone(child):
            yield child
            yield from _nodes(child, types=types)


def _strings(node):
    """Modules named by ``"module:object"`` strings, of our packages."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        module, colon, _ = node.value.partition(":")
        if colon and module in MODULES:
            yield module


@functools.cache
def imported(path, *, types=False):
    """Dotted names that a file imports, anywhere in it; also for types alone if asked."""
    names, named = set(), set()
    for node in _nodes(tree(path), types=types):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the package's full name"
            names |= {
                full if (full := f"{node.module}.{alias.name}") in MODULES else node.module
                for alias in node.names
            }
        named |= set(_strings(node))
    return frozenset(names), frozenset(named)


def arrows(*, types=False):
    """Pairs (importer, imported) of our modules; a facade's names are loaded when they are used."""
    for module, path in MODULES.items():
        names, named = imported(path, types=types and path.name != "__init__.py")
        follower = FOLLOWED_BY.get(module, module)
        yield from ((module, name) for name in sorted(names & MODULES.keys()))
        yield from ((follower, name) for name in sorted(named))


def within(module, room):
    return module == room or module.startswith(room + ".")


def room_of(module):
    return max((room for room in FLOORS if within(module, room)), key=len)


def allowed(importer, target):
    """Whether an arrow points down, and is not one that the plan forbids by name."""
    here, there = room_of(importer), room_of(target)
    if here == there or (importer, there) in DOORS:
        return True
    if any(within(importer, room) and there in rooms for room, rooms in NEVER.items()):
        return False
    only = ONLY.get(there)
    if only is not None and not any(within(importer, room) for room in only):
        return False
    return FLOORS[there] < FLOORS[here]


def test_every_module_has_a_room():
    """What lies directly in ``wafer/`` is in the table by its own name."""
    homeless = {m for m in MODULES if m.startswith("wafer.") and room_of(m) == "wafer"}
    assert not homeless, f"add {sorted(homeless)} to FLOORS"


def test_arrows_point_down():
    wrong = sorted(f"{a} -> {b}" for a, b in arrows() if not allowed(a, b))
    assert not wrong, "an import may only point to a lower floor"


def test_no_circles():
    """Not in imports for types alone, either; an error names the modules."""
    graph = {module: set() for module in MODULES}
    for a, b in arrows(types=True):
        if a != b and not within(a, b):  # a package's own __init__ is loaded before its files
            graph[a].add(b)
    graphlib.TopologicalSorter(graph).prepare()


def _faults(path):
    """What is wrong with a module by itself."""
    names, _ = imported(path)
    banned = {"tests", "torch", "tensorflow", "transformers"}
    if libraries := banned & {name.split(".")[0] for name in names}:
        yield f"imports {libraries}"
    source = path.read_text(encoding="utf-8")
    if source.count("\n") > LONGEST:
        yield f"over {LONGEST} lines: split it by idea"
    if not ast.get_docstring(tree(path)):
        yield "no docstring: say what question the module answers"
    if "from __future__" in source:
        yield "hides annotations from the run-time type checks"
    name = module_name(path)
    facade = path.name == "__init__.py" or name in FACADES or ".shims." in name
    if not facade and "\n__all__" in source:
        yield "__all__ where no facade is: an underscore marks what is private"


def test_modules():
    """No banned library, a short file, a docstring, ``__all__`` in facades alone."""
    assert not {module_name(path): faults for path in FILES if (faults := [*_faults(path)])}


def test_documented_shapes_are_checked():
    """The import hook reaches every module with shapes; the others are compiled without checks."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    (hook,) = (o for o in options["addopts"] if o.startswith("--jaxtyping-packages="))
    rooms = hook.partition("=")[2].split(",")
    for module, path in MODULES.items():
        if "jaxtyping" in path.read_text():
            assert any(f"{module}.".startswith(f"{room}.") for room in rooms), module


# Imported where they are there already: a build has the first, a notebook the second, a script
# that `wafer csl run` starts the third.
THERE = {"setuptools", "IPython", "cerebras"} | sys.stdlib_module_names | {"wafer"}


def test_every_package_that_is_imported_is_declared():
    """What a module imports as it is loaded is a dependency; other packages may be of an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plain = lambda name: re.match(r"[\w.-]+", name)[0].lower().replace("_", "-")
    extras = {e: set(map(plain, row)) for e, row in project["optional-dependencies"].items()}
    needed = set(map(plain, project["dependencies"]))
    names_of = importlib.metadata.packages_distributions()
    is_of = lambda top, some: any(plain(name) in some for name in names_of.get(top, [top]))
    for path in FILES:
        later = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]
        late = {id(inner) for node in later for inner in ast.walk(node)}
        for node in _nodes(tree(path), types=False):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module] if isinstance(node, ast.ImportFrom) else node.names
                for name in names:
                    top = getattr(name, "name", name).partition(".")[0]
                    if top not in THERE:
                        others = extras.values() if id(node) in late else ()
                        assert is_of(top, needed.union(*others)), f"{path}:{node.lineno}: {top}"
    for package, extra in _EXTRAS.items():
        assert is_of(package, extras[extra]), package


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_the_top_level_has_the_fixed_entries():
    """What a program leaves in the working directory is not committed."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True
    )
    assert {line.partition("/")[0] for line in listed.stdout.splitlines()} == TOP


def test_folders_stay_small():
    """Python, C++ and CSL sources that lie directly in a folder."""
    rooms = [ROOT / name for name in ("vsl", "models", "sparsity", "wafer")]
    paths = [path for room in rooms for path in room.rglob("*")]
    sources = [path.parent for path in paths if path.suffix in (".py", ".cc", ".h", ".csl")]
    for folder, files in collections.Counter(sources).items():
        most = FULLER.get(folder.relative_to(ROOT).as_posix(), FULLEST)
        assert files <= most, f"{folder}: make a room of what belongs together"


def test_files_stay_small():
    lengths = [path.read_text(encoding="utf-8").count("\n") for path in FILES]
    assert statistics.median(lengths) <= 220, f"median of {len(lengths)} files"


def test_no_test_imports_another():
    for path in (ROOT / "tests").rglob("test_*.py"):
        roots = {name.split(".")[0] for name in imported(path)[0]}
        assert not any(name.startswith("test_") for name in roots), f"{path}: use tests/helpers"


def test_the_page_of_a_run_names_fourteen_files_and_what_they_hold():
    page = (ROOT / "docs" / "concepts" / "run.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \|.*\| `([\w/]+\.py)` \| (.*) \|$", page, re.MULTILINE)
    assert 10 <= len(rows) <= 14
    for file, names in rows:
        text = (ROOT / file).read_text(encoding="utf-8")
        for name in re.findall(r"`(?:\w+\.)?(\w+)`", names):
            assert re.search(rf"(def|class) {name}\b", text), (file, name)


def test_rooms_grow_no_statements():
    counts = collections.Counter()
    for path in FILES:
        folders = path.relative_to(ROOT).parts[:-1]
        room = "/".join(folders[:2] if folders[0] == "wafer" else folders[:1])
        counts[room] += sum(isinstance(node, ast.stmt) for node in ast.walk(tree(path)))
    assert counts.keys() == STATEMENTS.keys()
    grown = {room: n for room, n in counts.items() if n > STATEMENTS[room]}
    assert not grown, "say what went instead, or raise the row with its reason"
    assert sum(STATEMENTS.values()) - sum(counts.values()) < 500, "lower the rows"
