"""Convert Hugging Face folders by llama.cpp's ``convert_hf_to_gguf`` and read the result.

    python tests/helpers/gguf_calls.py SCRIPT FOLDER ...

writes FOLDER/model.gguf and FOLDER/gguf.npz, its tensors and numbers. The script knows the
tokenizers of published models by a hash; any other is taken for GPT-2's here. It needs torch,
transformers and gguf alone.
"""

import importlib.util
import pathlib
import sys

import numpy as np


def load(script):
    """Import the script, which then takes any tokenizer for GPT-2's."""
    spec = importlib.util.spec_from_file_location("convert_hf_to_gguf", script)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    return module


def read(folder):
    """Save tensors by name, and numbers of the head by key."""
    import gguf

    reader = gguf.GGUFReader(folder / "model.gguf")
    rows = {f"tensor/{each.name}": each.data for each in reader.tensors}
    for key, field in reader.fields.items():
        value = field.contents()
        if isinstance(value, int | float | str):
            rows[f"field/{key}"] = np.asarray(value)
    np.savez(folder / "gguf.npz", **rows)


if __name__ == "__main__":
    script, *folders = sys.argv[1:]
    converter = load(script)
    for each in map(pathlib.Path, folders):
        out = str(each / "model.gguf")
        sys.argv = [script, str(each), "--outtype", "f32", "--outfile", out]
        converter.main()
        read(each)
