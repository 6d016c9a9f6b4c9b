"""A small model section of every family that has a Hugging Face form."""

SIZES = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 2}
TEXT = SIZES | {"filter_size": 64, "max_position_embeddings": 16}
VISION = {"image_size": 8, "patch_size": 4, "filter_size": 32, "num_hidden_layers": 2}
VISION |= {"hidden_size": 16, "num_heads": 2}
BERT = TEXT | {"dropout_rate": 0.1}
SEQ2SEQ = {"vocab_size": 300, "tgt_vocab_size": 300, "hidden_size": 16, "attention_inner_dim": 16}
SEQ2SEQ |= {"filter_size": 32}
SEQ2SEQ |= {"num_heads": 2, "num_hidden_layers": 2, "decoder_num_hidden_layers": 2}
DECODERS = ("gpt2", "starcoder", "btlm", "jais", "crystalcoder", "gptj", "gpt-neox", "bloom")
DECODERS += ("falcon", "falcon-rw", "mpt", "llama", "mistral", "qwen2", "qwen3", "olmo2", "phi3")
DECODERS += ("gemma", "gemma2", "gemma3_text", "starcoder2", "opt")
ENCODERS = ("bert", "bert-sequence-classifier", "bert-token-classifier", "bert-q&a")
ENCODERS += ("esm2", "roberta", "dpr-reader")
# Marian's structure.
MARIAN = {"src_max_position_embeddings": 16, "tgt_max_position_embeddings": 16}
MARIAN |= {"final_norm": False, "scale_embedding": True, "scale_logits": False}
MARIAN |= {"attention_type": "scaled_dot_product"}
SECTIONS = dict.fromkeys(DECODERS, TEXT) | dict.fromkeys(ENCODERS, BERT)
SECTIONS |= {
    "codegen": TEXT | {"num_heads": 4, "rotary_dim": 4},
    "falcon-40b": TEXT | {"num_heads": 4, "extra_attention_params": {"num_kv_groups": 2}},
    **dict.fromkeys(("mixtral", "qwen3_moe"), TEXT | {"moe": {"num_experts": 4, "top_k": 2}}),
    "dpr": {"q_encoder": BERT | {"name": "dpr-question-encoder"}}
    | {"ctx_encoder": BERT | {"name": "dpr-context-encoder"}},
    "t5": SEQ2SEQ,
    "transformer": SEQ2SEQ | MARIAN,
    "clip-vit": VISION,
    "llava": {"image_model": VISION | {"name": "clip-vit"}, "text_model": TEXT | {"name": "llama"}}
    | {"image_token_index": 299},
}
REMOTE = {"btlm", "jais", "crystalcoder"}  # their code lies beside the published weights


def section(name):
    return {"name": name, **SECTIONS[name]}
