"""The digest of the code: every file counts, and a user's own module."""

import shutil

import pytest
from helpers.paths import ROOT

from wafer import version


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """Our packages' C++ and two Python files in another place, and a model of a user's own."""
    packages = ("models", "sparsity", "vsl")
    files = [p for name in ("wafer", *packages) for p in (ROOT / name).rglob("*.cc")]
    files += [ROOT / "sparsity" / "__init__.py", ROOT / "wafer" / "version.py"]
    for path in files:
        target = tmp_path / "code" / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for name in packages:
        (tmp_path / "code" / "wafer" / name).symlink_to(f"../{name}")
    own = tmp_path / "own" / "digested_model"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("")
    (own / "layers.py").write_text("width = 3\n")
    monkeypatch.setattr(version, "__file__", str(tmp_path / "code" / "wafer" / "version.py"))
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    return tmp_path


def digest(*names):
    return version.code_digest.__wrapped__(*names)


@pytest.mark.parametrize(
    "file", ["sparsity/__init__.py", "wafer/fabric/native/planes.cc", "sparsity/kernels/tile.cc"]
)
def test_every_file_counts(copy, file):
    path = copy / "code" / file
    before, content = digest(), path.read_bytes()
    path.write_bytes(content[:-1] + b" ")  # the same length
    assert digest() != before
    path.write_bytes(content)
    assert digest() == before  # times do not count
    path.rename(path.with_name("other" + path.suffix))
    assert digest() != before


def test_a_model_of_the_users_own_counts_with_its_package(copy):
    before = digest("digested_model.layers:Net")
    assert before != digest("gpt2") == digest()
    (copy / "own" / "digested_model" / "layers.py").write_text("width = 4\n")
    assert digest("digested_model.layers:Net") != before
    assert digest("gpt2", "digested_model:load") == digest("digested_model.layers:Net", "adam")
    assert digest("not_there_at_all:Net") == digest()
