"""A small model section of every family that has a Hugging Face form."""

SIZES = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 2}
TEXT = SIZES | {"filter_size": 64, "max_position_embeddings": 16}
VISION = {"image_size": 8, "patch_size": 4, "filter_size": 32, "num_hidden_layers": 2}
VISION |= {"hidden_size": 16, "num_heads": 2}
BERT = TEXT | {"dropout_rate": 0.1}
SEQ2SEQ = {
    "vocab_size": 300,
    "tgt_vocab_size": 300,
    "hidden_size": 16,
    "attention_inner_dim": 16,
    "filter_size": 32,
}
SEQ2SEQ |= {"num_heads": 2, "num_hidden_layers": 2, "decoder_num_hidden_layers": 2}
SECTIONS = {
    "gpt2": TEXT,
    "starcoder": TEXT,
    "btlm": TEXT,
    "jais": TEXT,
    "crystalcoder": TEXT,
    "gptj": TEXT,
    "codegen": TEXT | {"num_heads": 4, "rotary_dim": 4},
    "gpt-neox": TEXT,
    "bloom": TEXT,
    "falcon": TEXT,
    "falcon-40b": TEXT | {"num_heads": 4, "extra_attention_params": {"num_kv_groups": 2}},
    "falcon-rw": TEXT,
    "mpt": TEXT,
    "llama": TEXT,
    "mistral": TEXT,
    "gemma2": TEXT,
    "mixtral": TEXT | {"moe": {"num_experts": 4, "top_k": 2}},
    "bert": BERT,
    "esm2": BERT,
    "bert-sequence-classifier": BERT,
    "bert-token-classifier": BERT,
    "bert-q&a": BERT,
    "roberta": BERT,
    "dpr": {"q_encoder": BERT | {"name": "dpr-question-encoder"}}
    | {"ctx_encoder": BERT | {"name": "dpr-context-encoder"}},
    "dpr-reader": BERT,
    "t5": SEQ2SEQ,
    "transformer": SEQ2SEQ
    | {"src_max_position_embeddings": 16, "tgt_max_position_embeddings": 16}
    | {"final_norm": False, "scale_embedding": True, "scale_logits": False}  # Marian's structure
    | {"attention_type": "scaled_dot_product"},
    "clip-vit": VISION,
    "llava": {"image_model": VISION | {"name": "clip-vit"}, "text_model": TEXT | {"name": "llama"}}
    | {"image_token_index": 299},
}
REMOTE = {"btlm", "jais", "crystalcoder"}  # their code lies beside the published weights


def section(name):
    return {"name": name, **SECTIONS[name]}
