"""The recipes of models/configs, shrunk."""

import yaml
from helpers.paths import ROOT
from helpers.runs import merged

RECIPES = ROOT / "models" / "configs" / "recipes"


def shrink(name, folder, source, **changes):
    """A recipe's run file with a tiny model on tiny text; returns its path."""
    cfg = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    tiny = {"vocab_size": 300, "source_dir": str(source), "max_sequence_length": 64}
    for part in ("train_input", "eval_input"):
        if cfg[part]["data_processor"] == "PyStdlibDataProcessor":
            cfg[part] |= tiny | {"batch_size": 2}
    cfg["model"] |= {"vocab_size": 300, "max_position_embeddings": 64, "num_hidden_layers": 1}
    width = {"mup_target": 64}.get(name, 16)
    cfg["model"] |= {"hidden_size": width, "num_heads": 2, "filter_size": 2 * width}
    if "mup_base_hidden_size" in cfg["model"]:
        cfg["model"] |= {"mup_base_hidden_size": 16, "mup_base_filter_size": 32}
    cfg["runconfig"] = {"max_steps": 4, "checkpoint_steps": 4, "log_steps": 1, "seed": 1} | {
        k: v for k, v in cfg["runconfig"].items() if k == "load_checkpoint_states"
    }
    cfg = merged(cfg, **changes)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(cfg))
    return path
