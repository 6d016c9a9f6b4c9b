"""Record what null means for every key of a config.json, for test_nulls.py.

    python tests/helpers/hf_nulls.py

Adds the installed transformers to tests/golden/hf_nulls.json. A model of each class is computed
with the key null, absent and false: the record says with which its outputs agree, or "error". Of
``CASES`` it has the logits, or null for an error. It needs torch and transformers alone.
"""

import json
import pathlib
import sys
import zlib

import numpy as np

FILE = pathlib.Path(__file__).parents[1] / "golden" / "hf_nulls.json"
GPT = {"vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16}
BERT = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT |= {"intermediate_size": 24, "max_position_embeddings": 20, "pad_token_id": 1}
LLAMA = BERT | {"num_key_value_heads": 1, "sliding_window": 3, "num_local_experts": 2}
ROTARY = {"rotary_dim": 4}
SIZES = {
    "gpt2": ("GPT2LMHeadModel", GPT),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", GPT),
    "gptj": ("GPTJForCausalLM", GPT | ROTARY),
    "codegen": ("CodeGenForCausalLM", GPT | ROTARY),
    "gpt_neox": ("GPTNeoXForCausalLM", BERT | {"hidden_size": 32}),
    "bloom": ("BloomForCausalLM", {"vocab_size": 32, "hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "falcon": ("FalconForCausalLM", BERT),
    "mpt": ("MptForCausalLM", {"vocab_size": 32, "d_model": 16, "n_layers": 2, "n_heads": 2}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "mistral": ("MistralForCausalLM", LLAMA),
    "mixtral": ("MixtralForCausalLM", LLAMA),
    "qwen2": ("Qwen2ForCausalLM", LLAMA),
    "qwen3": ("Qwen3ForCausalLM", LLAMA),
    "qwen3_moe": ("Qwen3MoeForCausalLM", LLAMA | {"num_experts": 2, "moe_intermediate_size": 8}),
    "olmo2": ("Olmo2ForCausalLM", LLAMA),
    "phi3": ("Phi3ForCausalLM", LLAMA),
    "gemma": ("GemmaForCausalLM", LLAMA | {"head_dim": 8}),
    "gemma2": ("Gemma2ForCausalLM", LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 8}),
    "gemma3_text": ("Gemma3ForCausalLM", LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 8}),
    "starcoder2": ("Starcoder2ForCausalLM", LLAMA),
    "opt": ("OPTForCausalLM", BERT | {"ffn_dim": 24}),
    "bert": ("BertForPreTraining", BERT),
    "roberta": ("RobertaForMaskedLM", BERT),
    "esm": ("EsmForMaskedLM", BERT | {"mask_token_id": 5}),
    "dpr": ("DPRQuestionEncoder", BERT),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2},
    ),
    "marian": (
        "MarianMTModel",
        {"vocab_size": 32, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2}
        | {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 16}
        | {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "pad_token_id": 0}
        | {"decoder_start_token_id": 0, "eos_token_id": 0, "forced_eos_token_id": 0},
    ),
    "clip_vision_model": (
        "CLIPVisionModel",
        {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
        | {"num_attention_heads": 2, "image_size": 8, "patch_size": 4},
    ),
}
IDS = [3, 5, 7, 11, 13, 2, 9, 8]
CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
# Keys beside those of SIZES, whose windows are of 3 tokens.
CASES = {
    "gemma2": [
        *({}, CAPS, *(CAPS | {key: None} for key in CAPS)),
        *({"sliding_window": 8}, {"sliding_window": None}, {"layer_types": ["full_attention"] * 2}),
    ],
    "mistral": [{}, {"sliding_window": 8}, {"sliding_window": None}],
}
# Where one of the ways to the same result reads a key that the others leave out.
ATTENTION = {"falcon": "sdpa"}


def weight(name, shape):
    """The weight that a model is computed with."""
    seed = np.random.default_rng(zlib.crc32(name.encode()))
    return 0.5 * seed.standard_normal(shape, np.float32)


def compute(kind, given):
    """(outputs, shapes of the parameters) of a configuration; None where it ends in an error."""
    import torch
    import transformers

    try:
        config = type(transformers.AutoConfig.for_model(kind)).from_dict(given)
        config._attn_implementation = ATTENTION.get(kind, "eager")
        model = getattr(transformers, SIZES[kind][0])(config).eval()
        with torch.no_grad():
            for name, own in model.named_parameters():
                own.copy_(torch.from_numpy(weight(name, own.shape)))
            ids = torch.tensor([IDS])
            inputs = {"input_ids": ids}
            if kind == "clip_vision_model":
                inputs = {"pixel_values": torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8)}
            elif config.is_encoder_decoder:
                inputs["decoder_input_ids"] = ids.flip(1)
            return model(**inputs)[0], {n: w.shape for n, w in model.named_parameters()}
    except Exception:
        return None


def agree(one, other):
    """Whether two models have the same parameters and outputs."""
    same = one is not None and other is not None and one[1] == other[1]
    return same and bool((one[0] - other[0]).abs().max() < 1e-5)


def meaning(kind, key):
    """'error', 'absent', 'false', or 'other': a meaning of its own."""
    given = SIZES[kind][1]
    null = compute(kind, given | {key: None})
    if null is None:
        return "error"
    if agree(null, compute(kind, {k: v for k, v in given.items() if k != key})):
        return "absent"
    return "false" if agree(null, compute(kind, given | {key: False})) else "other"


def logits(kind, keys):
    """The first logits of the last token."""
    found = compute(kind, SIZES[kind][1] | keys)
    return None if found is None else [round(x, 5) for x in found[0][0, -1, :8].tolist()]


def record(keys):
    """{model_type: {key: meaning}} of this transformers."""
    import transformers

    transformers.logging.set_verbosity_error()
    return {kind: {key: meaning(kind, key) for key in keys[kind]} for kind in SIZES}


if __name__ == "__main__":
    import transformers

    releases = json.loads(FILE.read_text())
    releases[transformers.__version__] = record(releases["keys"])
    own = {kind: [logits(kind, keys) for keys in cases] for kind, cases in CASES.items()}
    releases.setdefault("logits", {})[transformers.__version__] = own
    FILE.write_text(json.dumps(releases, indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{FILE}\n")
