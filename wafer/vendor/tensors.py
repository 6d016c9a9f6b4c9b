"""Names of tensors in the files of every release, as one table that is read both ways.

``Model.alias`` gives the name of release 2.1 and later, and ``models.alias`` those that filters
know besides. What older releases called a tensor is here; encoders and encoder-decoders of
release 1.6 had almost Hugging Face's names. All are without the prefix 'model.'.

Optimizer states are stored under the number of a tensor, not its name. Files of layout 0.5 list
their model's keys in that order; for older ones it follows from the classes of the Model Zoo.

``tensors.json`` has the tables. ``others``: (pattern of a name, another name of the same tensor);
``second``: (pattern of a name, where else the tensor hangs in a model that has no other one there);
``ignored``: patterns of computed tables, masks and copies of 1.6; and what comes first among the
parts of one module.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from wafer.models.alias import all_names
from wafer.models.base import Model
from wafer.models.convert.tables.other_tables import OTHER_TABLES
from wafer.models.counts import abstract_params
from wafer.models.names import lookup
from wafer.models.paths import named_leaves

FAMILIES = ("decoder", "encoder", "seq2seq")  #: whose tensors have names here
_TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
IGNORED = _TABLE["ignored"]  #: patterns of what holds no parameter
_OF_16 = {"encoder": OTHER_TABLES["bert"], "seq2seq": OTHER_TABLES["t5"]}


def tensor_names(model: Model) -> dict[str, list[str]]:
    """Map each parameter to all names that its tensor had, today's first."""
    paths = [name for name, _ in named_leaves(abstract_params(model))]
    of_16: dict[str, list[str]] = {}
    if older := _OF_16.get(lookup(model.config.name).family):
        table = older(model.config)
        for row in table.rows:  # of two copies of a bias the decoder's is read
            spellings = [row.foreign, *table.spellings(row.foreign)]
            of_16[row.ours[0]] = sorted(spellings, key=lambda name: "decoder.bias" not in name)
    scores = any(path.startswith("mlm_") for path in paths)
    names: dict[str, list[str]] = {}
    for path in paths:
        aliases = [name.removeprefix("model.") for name in all_names(path, model.alias)[1:]]
        if not scores:  # the trunk alone has another prefix
            aliases = [re.sub(r"^bert_encoder\.", "bert.", name) for name in aliases]
        for pattern, other in _TABLE["others"]:
            aliases += [re.sub(pattern, other, name) for name in aliases]
        names[path] = list(dict.fromkeys([*aliases, *of_16.get(path, ())]))
    return names


def second_names(cfg: object, named: Iterable[str]) -> dict[str, str]:
    """Map second names of tensors, where no parameter has them, to today's."""
    in_use = {*named} | (set() if getattr(cfg, "with_lm_head", True) else {"lm_head.weight"})
    return {
        second: name
        for pattern, other in _TABLE["second"]
        for name in sorted(named)
        if (match := re.fullmatch(pattern, name)) and (second := match.expand(other)) not in in_use
    }


def is_of_16(names: Iterable[str]) -> bool:
    """Whether tensors have the names that encoders and encoder-decoders had in release 1.6."""
    of_16 = re.compile(r"(bert\.embeddings|(encoder|decoder)\.block\.0)\..*")
    return any(map(of_16.fullmatch, names))


def in_order_of_registration(names: Iterable[str]) -> list[str]:
    """Sort names as the modules of the Model Zoo register their parameters.

    >>> in_order_of_registration(["lm_head.weight", "ln_f.bias", "ln_f.weight"])
    ['ln_f.weight', 'ln_f.bias', 'lm_head.weight']
    """

    def ranks(name: str) -> list[tuple[int, int]]:
        words = name.split(".")
        is_encoder = re.search(r"(^|\.)(transformer_encoder|encoder)\.layers\.", name)
        layer = _TABLE["encoder layer" if is_encoder else "decoder layer"]
        out = []
        for above, word in zip(("", "", *words), words, strict=False):  # layers, a number, a part
            order = layer if above == "layers" else _TABLE["modules"]
            rank = order.index(word) if word in order else len(order)
            out.append((-1, int(word)) if word.isdigit() else (rank, 0))
        return out

    return sorted(names, key=ranks)
