"""Record small models of transformers with what they compute, for test_parity.py.

    python tests/helpers/hf_golden.py [NAME ...]

Writes tests/golden/hf/NAME: ``config.json`` and ``model.safetensors`` as transformers saves them,
``io.npz`` and ``meta.json`` as ``hf_parity`` reads them. It needs torch and transformers alone.
"""

import json
import pathlib
import sys
import zlib

import numpy as np

FOLDER = pathlib.Path(__file__).parents[1] / "golden" / "hf"
SIZES = {"vocab_size": 37, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
SIZES |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
ROPE = {"rope_type": "default", "rope_theta": 1e6}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
GLOBAL = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}
LOCAL = {"rope_type": "default", "rope_theta": 100.0}
THREE = {"num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}
# (class, keys of its configuration): every option that a published checkpoint sets
CASES = {
    "qwen2": ("Qwen2ForCausalLM", {"rope_parameters": ROPE}),
    "qwen3": ("Qwen3ForCausalLM", {"rope_parameters": ROPE, "head_dim": 6}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**EXPERTS, "head_dim": 6, "norm_topk_prob": True}),
    "qwen3_moe_raw_weights": ("Qwen3MoeForCausalLM", {**EXPERTS, "attention_bias": True}),
    "olmo2": ("Olmo2ForCausalLM", {"num_key_value_heads": 4}),
    "olmo2_gqa": ("Olmo2ForCausalLM", {"rope_parameters": ROPE}),
    "phi3": (
        "Phi3ForCausalLM",
        {"sliding_window": 5, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}},
    ),
    "gemma": ("GemmaForCausalLM", {"head_dim": 6, "num_key_value_heads": 1}),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        {**THREE, "head_dim": 6, "sliding_window": 4, "query_pre_attn_scalar": 7}
        | {"rope_parameters": {"full_attention": GLOBAL, "sliding_attention": LOCAL}},
    ),
    "starcoder2": ("Starcoder2ForCausalLM", {"sliding_window": 5}),
    "opt": ("OPTForCausalLM", {"ffn_dim": 24, "dropout": 0.0}),
    "opt_postln": ("OPTForCausalLM", {"ffn_dim": 24, "do_layer_norm_before": False}),
}


def drawn(cls, keys):
    """The model, every parameter moved away from its start, to values that float16 holds."""
    import torch

    known = cls.config_class().to_dict()
    sizes = {key: value for key, value in SIZES.items() if key in known}
    config = cls.config_class(**sizes | keys)
    config._attn_implementation = "eager"
    model = cls(config).float().eval()
    with torch.no_grad():
        for name, own in model.named_parameters():
            noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(own.shape)
            start = own if own.ndim == 1 else 0.0
            own.copy_((start + 0.2 * torch.from_numpy(noise)).half().float())
    return model


def inputs_of(kind, seed):
    """Ids, padded at the right with labels, padded at the left."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(3, SIZES["vocab_size"], (2, 9))
    right, left = np.ones_like(ids), np.ones_like(ids)
    right[1, 6:], left[1, :3] = 0, 0
    labels = np.where(right == 1, ids, -100)
    labels[0, 2] = -100
    runs = {
        "full": {"input_ids": ids},
        "right": {"input_ids": ids, "attention_mask": right, "labels": labels},
        "left": {"input_ids": ids, "attention_mask": left},
    }
    if kind == "opt":  # its positions are learned
        runs["left"]["position_ids"] = np.maximum(left.cumsum(1) - 1, 0)
    return runs


def record(name):
    import torch
    import transformers

    class_name, keys = CASES[name]
    model = drawn(getattr(transformers, class_name), keys)
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    seed = zlib.crc32(name.encode())
    arrays, runs = {}, {}
    for run, inputs in inputs_of(model.config.model_type, seed).items():
        tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
        out = model(**tensors, output_hidden_states=run == "full")
        mask = inputs.get("attention_mask", np.ones_like(inputs["input_ids"]))[..., None]
        arrays |= {f"{run}/in_{key}": value for key, value in inputs.items()}
        arrays[f"{run}/logits"] = out.logits.detach().numpy() * mask.astype(np.float32)
        runs[run] = {"inputs": sorted(inputs), "loss": None}
        if run == "full":
            states = {
                f"{run}/hs{i}": x.detach().numpy() for i, x in enumerate(out.hidden_states[:-1])
            }
            arrays |= states
        if "labels" in inputs:
            runs[run]["loss"] = float(out.loss.detach())
            out.loss.backward()
    norms = {n: float(p.grad.norm()) for n, p in model.named_parameters() if p.grad is not None}
    prompt = arrays["full/in_input_ids"][:1, :5]
    tokens = torch.from_numpy(prompt)
    for _ in range(8):
        tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], 1)
    meta = {"name": name, "hf_class": class_name, "transformers": transformers.__version__}
    meta |= {"torch": torch.__version__, "runs": runs, "grad_norms": norms}
    meta["grad_global_norm"] = sum(norm**2 for norm in norms.values()) ** 0.5
    meta["greedy"] = {"prompt": prompt.tolist(), "out": tokens.tolist()}
    (folder / "meta.json").write_text(json.dumps(meta))
    np.savez_compressed(folder / "io.npz", **arrays)
    model.half().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


if __name__ == "__main__":
    for each in sys.argv[1:] or CASES:
        record(each)
