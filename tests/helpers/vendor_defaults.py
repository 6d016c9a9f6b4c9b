"""Extract the defaults of the vendor's run files, release by release, from its public source.

    python tests/helpers/vendor_defaults.py FOLDER

FOLDER is a checkout or a git directory of the public model zoo with its tags. Writes
tests/golden/vendor_defaults.json. ``defaults``: family -> key -> [[default, first release, last
release], ...], of ``.pop("key", default)`` and ``.get("key", default)`` until 2.3 and of the fields
of configuration classes since. ``names``: a model's folder -> [[family whose code it runs, first,
last], ...]. ``optimizers``: class of an optimizer or a schedule -> key -> rows, until 1.9;
``processors``: data processor -> key -> rows.
"""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1])]

from helpers.paths import GOLDEN

FILE = GOLDEN / "vendor_defaults.json"
_BERT = ("bert/config", "bert/utils", "bert/bert_model")
_HEAD = ("config", "utils", "model")


def _in(folder, *modules):
    return tuple(f"{folder}/{module}" for module in (*modules, *_HEAD))


# family -> (classes whose fields are its keys, modules from the most general on)
FAMILIES = {
    "gpt2": ("GPT2", _in("gpt2", "gpt2_model")),
    "gptj": ("GPTJ", _in("gptj", "gptj_model")),
    "bert": ("Bert", (*_BERT, "bert/bert_pretrain_models", "bert/model")),
    "bert-sequence-classifier": ("Bert", (*_BERT, *_in("classifier", "bert_classifier_model"))),
    "bert-q&a": ("Bert", (*_BERT, *_in("qa"))),
    "bert-summarization": (
        "Bert",
        (*_BERT, *_in("extractive_summarization", "bert_extractive_summarization")),
    ),
    "bert-token-classifier": ("Bert", (*_BERT, *_in("token_classifier", "bert_token_classifier"))),
    "esm2": (
        "(Bert|Esm2|ESM2)",
        (
            *(*_BERT[::2], "bert/bert_pretrain_models"),
            *_in("esm2", "esm2_model", "esm2_pretrain_models"),
        ),
    ),
    "t5": ("T5", _in("t5", "t5_model")),
    "dpr": ("DPR", _in("dpr", "dpr_model")),
    "dpo": ("DPOParameters", ("dpo/config", "dpo/model")),
    "vision": ("ViT", ("vision_transformer/ViTModel",)),
    "llava": ("Llava", _in("llava")),
    "fc_mnist": ("MNIST", ("fc_mnist/utils", "fc_mnist/pytorch/model", "fc_mnist/model")),
}


def constant(node):
    """Return (value,) of a literal, also within float(...) or Field(...); () of anything else."""
    call = getattr(node, "func", None)
    if call is not None and getattr(call, "id", "") == "float" and node.args:
        node = node.args[0]
    elif call is not None and getattr(call, "id", "") in ("Field", "field"):
        given = {word.arg: word.value for word in node.keywords}
        if ast.unparse(given.get("default_factory", node)) == "dict":
            return ({},)
        node = given.get("default", node)
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return ()
    return () if value is ... else (value,)


def defaults(source, classes):
    """Map each key of a file to its default; of the classes whose names match."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("pop", "get"):
            section = re.fullmatch(
                r"(\w*model_params|mparams|dpo_params|(self\.)?params\['model'\])\.(pop|get)",
                ast.unparse(node.func),
            )  # the others take a batch or another section apart
            if section and len(node.args) == 2 and isinstance(node.args[0], ast.Constant):
                found.setdefault(node.args[0].value, constant(node.args[1]))
        elif isinstance(node, ast.ClassDef) and re.fullmatch(
            rf"({classes})(\w*ModelConfig)?|MNISTConfig", node.name
        ):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and line.value is not None:
                    found.setdefault(ast.unparse(line.target), constant(line.value))
    return {key: value[0] for key, value in found.items() if value}


def signatures(source):
    """Yield (class, argument, default) of every class that is built with defaults."""
    for cls in ast.parse(source).body:
        for line in getattr(cls, "body", ()):
            if isinstance(line, ast.FunctionDef) and line.name == "__init__":
                given = line.args.args[::-1], line.args.defaults[::-1]
                for argument, default in zip(*given, strict=False):
                    for value in constant(default):
                        yield cls.name, argument.arg, value


def fields(source):
    """Yield (class, bases, defaults) of every class; keys of ``params`` count as its fields."""
    for cls in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)):
        found = {}
        for node in ast.walk(cls):
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                found |= {ast.unparse(node.target): value for value in constant(node.value)}
            elif isinstance(node, ast.Call) and len(node.args) == 2:
                key = getattr(node.args[0], "value", "")
                pops = re.fullmatch(r"(self\.)?(\w+_)?params\.(get|pop)", ast.unparse(node.func))
                for value in constant(node.args[1]) if pops and key else ():
                    found[key] = value
        yield cls.name, [ast.unparse(base).rpartition(".")[2] for base in cls.bases], found


def processors(sources):
    """Map each data processor to its defaults, those of base classes included."""
    classes = {name: row for source in sources for name, *row in fields(source)}

    def inherited(name, seen):
        bases, own = classes.get(name, ((), {}))
        found = {}
        for base in (base for base in reversed(bases) if base not in seen):
            found |= inherited(base, (*seen, base))
        return found | own

    names = {name.removesuffix("Config") for name in classes if "DataProcessor" in name}
    return {name: inherited(name, ()) | inherited(f"{name}Config", ()) for name in names}


def add(rows, value, release):
    """Append a release's value to rows of (value, first, last), or lengthen the last row."""
    if rows and json.dumps(rows[-1][0]) == json.dumps(value):
        rows[-1][2] = release
    else:
        rows.append([value, release, release])


def families_of(paths, read):
    """Yield (name, family) of the models without defaults of their own."""
    for path in paths:
        found = re.search(r"/(?:pytorch|nlp)/(\w+)/(?:run|model)\.py$", path)
        if found and found[1] not in FAMILIES:
            used = re.findall(
                r"^\s*from \S*\.(gpt2|gptj|t5)\.model import", read(path), re.MULTILINE
            )
            if used:
                yield found[1], used[0]
        if found and found[1] == "gptj":  # GPT-NeoX has its files in this folder
            yield "gpt-neox", "gptj"


def main(folder):
    def git(*args):
        command = ["git", "-C", folder, *args]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    tags = {tuple(map(int, re.findall(r"\d+", tag)[:2])): tag for tag in git("tag").split()}
    out = {"defaults": {family: {} for family in FAMILIES}, "names": {}, "optimizers": {}}
    out["processors"] = {}
    for parts, tag in sorted(tags.items()):
        release = ".".join(map(str, parts))
        listed = git("ls-tree", "-r", "--name-only", tag).split()
        paths = [p for p in listed if "/tf/" not in p and p.endswith(".py")]
        read = lambda path, tag=tag: git("show", f"{tag}:{path}")
        for name, family in sorted(set(families_of(paths, read))):
            add(out["names"].setdefault(name, []), family, release)
        for path in (p for p in paths if "/common/pytorch/optim/" in p):
            for cls, key, value in signatures(read(path)):
                add(out["optimizers"].setdefault(cls, {}).setdefault(key, []), value, release)
        sources = (
            read(p) for p in paths if re.search("/data/|/input/|data_processor|Processor", p)
        )
        for name, known in processors(sources).items():
            for key, value in known.items():
                add(out["processors"].setdefault(name, {}).setdefault(key, []), value, release)
        for family, (classes, files) in FAMILIES.items():
            known = {}
            if not any(p.endswith(tuple(f"/{end}.py" for end in files[-2:])) for p in paths):
                continue
            for path in (p for end in files for p in paths if p.endswith(f"/{end}.py")):
                known |= defaults(read(path), classes)
            for key, value in known.items():
                add(out["defaults"][family].setdefault(key, []), value, release)
    FILE.write_text(json.dumps(out, indent=None, sort_keys=True).replace("]], ", "]],\n") + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
