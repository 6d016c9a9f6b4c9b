"""Extract the defaults of the vendor's models, release by release, from its public source.

    python tests/helpers/vendor_defaults.py FOLDER

FOLDER is a checkout or a git directory of the public model zoo with its tags. Writes
tests/golden/vendor_defaults.json: family -> key -> [[default, first release, last release], ...],
of ``.pop("key", default)`` until 2.3 and of the fields of configuration classes since.
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
FAMILIES = {
    "gpt2": ("gpt2/model.py", "gpt2/gpt2_model.py"),
    "gptj": ("gptj/model.py", "gptj/gptj_model.py"),
    "bert": ("bert/model.py", "bert/bert_pretrain_models.py"),
    "t5": ("t5/model.py", "t5/t5_model.py", "t5/utils.py"),
}


def constant(node):
    """Return (value,) of a literal, also within float(...); () of anything else."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "float" and node.args:
        node = node.args[0]
    try:
        return (ast.literal_eval(node),)
    except ValueError:
        return ()


def defaults(source):
    """Map each key of a file to its default."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "pop":
            section = "params" in ast.unparse(node.func)  # the others take a batch apart
            if section and len(node.args) == 2 and isinstance(node.args[0], ast.Constant):
                found.setdefault(node.args[0].value, constant(node.args[1]))
        elif isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and line.value is not None:
                    found.setdefault(line.target.id, constant(line.value))
    return {key: value[0] for key, value in found.items() if value}


def main(folder):
    def git(*args):
        command = ["git", "-C", folder, *args]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    tags = {tuple(map(int, re.findall(r"\d+", tag)[:2])): tag for tag in git("tag").split()}
    out = {family: {} for family in FAMILIES}
    for release, tag in sorted(tags.items()):
        paths = [p for p in git("ls-tree", "-r", "--name-only", tag).split() if "/tf/" not in p]
        for family, files in FAMILIES.items():
            known = {}
            for end in reversed(files):
                for path in (p for p in paths if p.endswith(f"/{end}") and "vision" not in p):
                    known |= defaults(git("show", f"{tag}:{path}"))
            for key, value in known.items():
                rows = out[family].setdefault(key, [])
                name = ".".join(map(str, release))
                if rows and rows[-1][0] == value and type(rows[-1][0]) is type(value):
                    rows[-1][2] = name
                else:
                    rows.append([value, name, name])
    FILE.write_text(json.dumps(out, indent=None, sort_keys=True).replace("]], ", "]],\n") + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
