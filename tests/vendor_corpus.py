"""Every params file that the vendor published, through the function behind ``--validate_only``.

    python tests/vendor_corpus.py FOLDER

FOLDER is a checkout or a git directory of the public model zoo with its tags; nothing of it is
kept. Files with the same contents are checked once. Every YAML file is counted, by kind
(``KINDS``): a file that is refused as it is gets its tag's release, and where it has no
``model.name`` the one that its folder stands for. Data and checkpoints need not exist. ``--save``
keeps the counts.

Exit status 1: fewer params files than the shares below are accepted, or refused with a way out;
with ``--convert``, `wafer run` refuses a file that `convert convert-config --tgt-fmt wafer` wrote.
"""

import collections
import contextlib
import io
import logging
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

sys.path.append(str(Path(__file__).parent / "bench"))

import harness

KINDS = (
    *("accepted as it is", "accepted with release: or model.name", "refused with a way out"),
    *("refused", "TensorFlow", "a model that is not here", "no params file"),
)
RUNS = KINDS[:4]  # kinds of params files for PyTorch and a listed family
ACCEPTED, EXPLAINED = 0.95, 0.99  # shares of the files for PyTorch and for listed families
# Reasons to refuse a file that docs/guides/porting.md lists: messages that contain one of these.
REASONS = (
    "not computed here: ",
    "duplicate key",
    "positions, but model.max_position_embeddings is",
)

# folder of the configs (end of its path) -> (family, model name where the file has none)
_FOLDERS = {
    "bert/fine_tuning/classifier": ("bert classifier", "bert-sequence-classifier"),
    "bert/classifier": ("bert classifier", "bert-sequence-classifier"),
    "bert/fine_tuning/extractive_summarization": ("bert summarization", "bert-summarization"),
    "bert/extractive_summarization": ("bert summarization", "bert-summarization"),
    "bert/fine_tuning/qa": ("bert q&a", "bert-q&a"),
    "bert/fine_tuning/token_classifier": ("bert token classifier", "bert-token-classifier"),
    "bert/token_classifier": ("bert token classifier", "bert-token-classifier"),
    "gptj/fine_tuning/continuous_pretraining": ("gptj", "gptj"),
    "gptj/continuous_pretraining": ("gptj", "gptj"),
    "fc_mnist": ("fc_mnist", "fc_mnist"),
    "dpo": ("dpo", "mistral"),
    "dpr": ("dpr", "dpr"),
    "multimodal/llava": ("llava", "llava"),
} | {
    family: (family, family)
    for family in (
        *("bert", "bloom", "btlm", "falcon", "gpt2", "gpt3", "gptj", "jais", "llama", "mistral"),
        *("esm2", "gemma2", "mixtral", "mpt", "santacoder", "starcoder", "t5", "transformer"),
    )
}
_NAMED = {"roberta": "roberta", "neox": "gpt-neox", "pythia": "pythia"}  # by the file's own name
_NOT_RUNS = re.compile("data_prep|data_proc|tutorials|embedding_generation")

_LAST_CHANGE = (1, 9)  # since then no key of a section file changed its meaning
_LAST_HOP = (2, 4)  # since then files are converted alike
_BARE = re.compile("unknown key($|; did you mean|; known)|unknown section;")

Problem = tuple[str, str]  # dotted key, message


class Vendor(NamedTuple):
    """A params file at one tag."""

    tag: str
    path: str
    blob: str
    family: str
    name: str

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor) of the tag."""
        major, minor = re.findall(r"\d+", self.tag)[:2]
        return int(major), int(minor)


def _git(folder: Path, *args: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *args], check=True, capture_output=True, text=True
    ).stdout


def files(folder: Path) -> Iterator[Vendor]:
    """List the YAML files of every tag; ``family`` of what is no run of ours is its kind."""
    for tag in _git(folder, "tag").split():
        for line in _git(folder, "ls-tree", "-r", tag).splitlines():
            blob, _, path = line.partition("\t")
            if not path.endswith((".yaml", ".yml")):
                continue
            where, _, file = path.rpartition("/configs/")
            if not where or _NOT_RUNS.search(path):
                yield Vendor(tag, path, blob.split()[2], "no params file", "")
                continue
            plain = f"/{where.removesuffix('/pytorch').removesuffix('/tf')}"
            rows = (row for end, row in _FOLDERS.items() if plain.endswith(f"/{end}"))
            family, name = next(rows, ("a model that is not here", ""))
            name = next((own for word, own in _NAMED.items() if word in file), name)
            if "/tf" in where:
                family = "TensorFlow"
            yield Vendor(tag, path, blob.split()[2], family, name)


def problems_of(text: str, name: str, release: str = "2.0") -> list[Problem]:
    """Check one file as ``wafer run CSX --mode train --validate_only`` does; [] is accepted."""
    from wafer.commands.planning.dry import validate_only
    from wafer.config import load_all
    from wafer.errors import ConfigError, WaferError

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "params.yaml"
        path.write_text(text)
        try:
            path.write_text(_completed(path, name, release))
            for cfg in load_all(path, {"mode": "train"}):
                validate_only(cfg)
        except ConfigError as error:
            return [(".".join(map(str, p.path)), p.message) for p in error.problems]
        except (WaferError, ValueError) as error:
            return [("", str(error).splitlines()[0])]
        except Exception as error:  # a fault of ours
            return [("", f"CRASH {type(error).__name__}: {str(error)[:200]}")]
    return []


def converted(text: str, name: str, release: tuple[int, int]) -> str:
    """Rewrite a file as ``convert-config --tgt-fmt wafer`` does; '' where it ends with 1."""
    from wafer.commands.checkpoints.convert import rewrite
    from wafer.errors import WaferError

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "params.yaml"
        path.write_text(text)
        try:
            file, _ = rewrite(path, name, "cs-{}.{}".format(*release), "wafer")
        except (WaferError, ValueError):
            return ""
    return yaml.safe_dump(file, sort_keys=False)


def convert_all(folder: Path, only: str) -> int:
    """Convert every file once for each form of its release, and print what `wafer run` refuses."""
    seen, written, refused = set(), 0, 0
    for file in files(folder):
        key = file.blob, file.name, min(file.release, _LAST_HOP)
        apart = file.family in KINDS or (only and not re.findall(only, file.path))
        if apart or key in seen:
            continue
        seen.add(key)
        text = converted(_git(folder, "cat-file", "-p", file.blob), file.name, file.release)
        if not text:
            continue
        written += 1
        with contextlib.redirect_stdout(io.StringIO()):
            found = problems_of(text, file.name, "")
        refused += bool(found)
        for where, message in found:
            print(file.tag, file.path, where, message)
    print(f"{len(seen)} files, {written} converted, {refused} of them refused by wafer run")
    return int(refused > 0)


def _completed(path: Path, name: str, release: str) -> str:
    """Name model and release, and begin from no checkpoint: none of them is here."""
    from wafer.yamlfile import read_yaml

    raw: Any = read_yaml(path)[0]
    if release and "trainer" not in raw:
        raw["release"] = release
    trainers = raw.get("trainer", raw)
    for trainer in trainers if isinstance(trainers, list) else [trainers]:
        own = trainer.get("trainer", trainer)
        sections = own.get("init", own)
        model = sections.get("model")
        if name and isinstance(model, dict) and not {"name", "model_name"} & set(model):
            model["name"] = name
        for part in (own.get("runconfig"), *(own.get(m) for m in ("fit", "validate"))):
            if isinstance(part, dict):
                part.pop("checkpoint_path", None)
                part.pop("ckpt_path", None)
    return yaml.safe_dump(raw, sort_keys=False)


def _cells(rows: dict[Any, list[str]], columns: tuple[str, ...]) -> dict[str, int]:
    """How many files of each row are of each kind, and of all."""
    out = {}
    for key in sorted(rows):
        counts = collections.Counter(rows[key])
        row = ".".join(map(str, key)) if isinstance(key, tuple) else key
        out |= {f"{row} / files": len(rows[key])}
        out |= {f"{row} / {column}": counts[column] for column in columns}
    return out


def main() -> int:
    """Print the tables; see the module."""
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="a family, or a part of a path")
    parser.add_argument("--problems", type=int, default=60, help="rows of the table of problems")
    parser.add_argument("--list", action="store_true", help="list every refused file")
    parser.add_argument("--convert", action="store_true", help="check convert-config instead")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    if args.convert:
        return convert_all(args.folder, args.only)
    checked: dict[tuple[str, str, str], tuple[list[Problem], str]] = {}
    by_release: dict[Any, list[str]] = collections.defaultdict(list)
    by_family: dict[Any, list[str]] = collections.defaultdict(list)
    counts: collections.Counter[Problem] = collections.Counter()
    bare: collections.Counter[str] = collections.Counter()
    alone: collections.Counter[Problem] = collections.Counter()
    for file in files(args.folder):
        if args.only and args.only not in (file.family, *re.findall(args.only, file.path)):
            continue
        if file.family in KINDS and file.family != "TensorFlow":
            by_release[file.release].append(file.family)
            continue
        release = ".".join(map(str, min(file.release, _LAST_CHANGE)))
        key = (file.blob, file.name, release)
        if key not in checked:
            text = _git(args.folder, "cat-file", "-p", file.blob)
            with contextlib.redirect_stdout(io.StringIO()):
                checked[key] = examined(text, *key[1:])
        found, kind = checked[key]
        by_release[file.release].append("TensorFlow" if file.family == "TensorFlow" else kind)
        if file.family != "TensorFlow":
            by_family[file.family].append(kind)
        if args.list and found:
            print(file.tag, file.path, *(f"\n    {k}: {m}" for k, m in found))
        shown = {(k, _plain(m)) for k, m in found}
        if file.family == "TensorFlow":
            bare.update(k for k, m in shown if re.match(_BARE, m))
            continue
        counts.update(shown)
        if len(shown) == 1:
            alone.update(shown)
    for (where, message), count in counts.most_common(args.problems):
        print(f"{count:5} {alone[where, message]:5}  {where}: {message}")
    print(f"\nTensorFlow: {sum(bare.values())} keys without advice", *bare.most_common(20))
    kinds = collections.Counter(kind for row in by_release.values() for kind in row)
    runs = max(sum(kinds[kind] for kind in RUNS), 1)
    accepted = sum(kinds[kind] for kind in RUNS[:2]) / runs
    explained = accepted + kinds[RUNS[2]] / runs
    print(f"\n{sum(kinds.values())} YAML files: {dict(kinds)}")
    print(
        f"of {runs} params files {accepted:.1%} accepted, {explained:.1%} with those with a way out"
    )
    if "--save" in sys.argv:
        every = _cells(by_family, RUNS)
        harness.save("porting_families", every, lambda name: "", harness.ANY)
    total = {"all": [kind for row in by_release.values() for kind in row]}
    rows = _cells(by_release, KINDS) | _cells(total, KINDS)
    harness.report(rows, "porting", lambda name: "", harness.ANY)
    return 0 if accepted >= ACCEPTED and explained >= EXPLAINED else 1


def examined(text: str, name: str, release: str) -> tuple[list[Problem], str]:
    """Check a file as it is, then with release and name: what is left, and its kind."""
    if not problems_of(text, "", ""):
        return [], KINDS[0]
    found = problems_of(text, name, release)
    if not found:
        return [], KINDS[1]
    return found, KINDS[2] if all(_explains(message) for _, message in found) else KINDS[3]


def _explains(message: str) -> bool:
    return any(reason in message for reason in REASONS)


def _plain(message: str) -> str:
    """Drop what differs between files: line numbers, long lists."""
    return re.sub(r"^\(line \d+\) ", "", message)[:150]


if __name__ == "__main__":
    sys.exit(main())
