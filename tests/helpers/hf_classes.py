"""Record the configuration classes of the installed transformers, for test_hf_classes.py.

    python tests/helpers/hf_classes.py

Adds this release to tests/golden/hf_classes.json: for each model_type that we convert, the keys of
a configuration with no arguments, and ``attribute_map``, the class's other spellings.
"""

import json
import sys
from pathlib import Path

sys.path += [str(folder) for folder in Path(__file__).parents[1:3]]

from helpers.paths import GOLDEN

from wafer.models.convert.tables.class_defaults import HARMLESS

FILE = GOLDEN / "hf_classes.json"


def meaningful(config):
    """Drop the keys of a configuration, and of its parts, that change nothing here."""
    drop = HARMLESS.get(config.get("model_type"), set()) - {"model_type", "decoder_start_token_id"}
    return {
        key: meaningful(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in drop
    }


def record():
    """Return {model_type: {defaults, other spellings}} of this transformers."""
    import transformers

    out = {}
    for kind in sorted(HARMLESS):
        try:
            config = transformers.AutoConfig.for_model(kind)
        except ValueError:  # remote code: btlm, crystalcoder, jais
            continue
        out[kind] = {"defaults": meaningful(config.to_dict()), "other": config.attribute_map}
    return transformers.__version__, out


if __name__ == "__main__":
    releases = json.loads(FILE.read_text()) if FILE.exists() else {}
    version, kinds = record()
    releases[version] = kinds
    FILE.write_text(json.dumps(releases, indent=1, sort_keys=True) + "\n")
