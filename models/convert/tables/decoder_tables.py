"""Key tables of the decoder families: Hugging Face names on the left, ours on the right."""

from collections.abc import Callable, Iterable, Mapping

from wafer.models.convert.codecs import Fused, trailing_one
from wafer.models.convert.engine import (
    Table,
    TensorRow,
    embedding,
    fused,
    linear,
    linears,
    norm,
    repeated,
    under,
)
from wafer.models.families.decoder_config import DecoderConfig

_BUFFERS = (
    r".*\.attn\.(bias|masked_bias|causal_mask)",
    r"(.*\.)?(rotary_emb|maybe_rotary|rotary)\.(original_)?(inv_freq|cos_cached|sin_cached)",
    r".*\.attention\.(bias|masked_bias)",
    r".*\.embed_positions",
)
_INPUTS = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
_ATTENTION = {**_INPUTS, "o_proj": "out"}
_GATED = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
_EXPERTS = {"w1": "gate", "w3": "up", "w2": "down"}
_NORMS = {"input_layernorm": "norm1", "post_attention_layernorm": "norm2"}
_SANDWICH = {
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm1_post",
    "pre_feedforward_layernorm": "norm2",
    "post_feedforward_layernorm": "norm2_post",
}
# Of classes that score texts, choose among answers, or guide training by a value.
_OTHER_HEADS = (r"(score|v_head|multiple_choice_head|qa_outputs|classifier)\..*",)


def decoder_table(
    cfg: DecoderConfig, prefix: str, rows: list[TensorRow], head: str = "lm_head"
) -> Table:
    """Put the trunk under its prefix, as models with a head have it; add the head.

    Files in the wild spell the trunk both ways, so the other spelling is accepted.

    Args:
        cfg: whose layers are counted.
        prefix: of the trunk's tensors where there is a head.
        rows: of the trunk; '{i}' stands for a layer.
        head: name of the language-model head's tensors.
    """
    shown = prefix if cfg.with_lm_head else ""
    experts = cfg.moe.num_experts if cfg.moe else 0
    named = under(repeated(rows, cfg.num_hidden_layers, experts), shown)
    shared = cfg.share_embedding_weights and cfg.with_lm_head
    tables = [row.foreign for row in named if row.ours == ("embed/token/embedding",)]
    tied = (tables[0], f"{head}.weight") if shared and tables else None

    def spellings(name: str) -> Iterable[str]:
        return [name.removeprefix(prefix), prefix + name]

    return Table(
        rows=[*named, *linear(head, "lm_head")],
        ignored=[*_BUFFERS, rf"{head}\.weight"] if shared else _BUFFERS,
        spellings=spellings,
        unused=_OTHER_HEADS if cfg.with_lm_head else [*_OTHER_HEADS, rf"{head}\..*"],
        tied=tied,
    )


def _gpt2(cfg: DecoderConfig) -> Table:
    bigcode = cfg.name in {"santacoder", "starcoder", "octocoder", "wizardcoder", "sqlcoder"}
    kind = "per_head" if bigcode and cfg.num_kv_heads > 1 else "concat"
    rows = [
        *embedding("wte", "embed/token"),
        *embedding("wpe", "embed/position"),
        TensorRow("relative_pe.slopes", ("position/slopes",), trailing_one()),
        *norm("h.{i}.ln_1", "layers_{i}/norm1"),
        *fused("h.{i}.attn.c_attn", "layers_{i}/attn", kind, cfg, transposed=bigcode),
        *linear("h.{i}.attn.c_proj", "layers_{i}/attn/out", transposed=bigcode),
        *norm("h.{i}.ln_2", "layers_{i}/norm2"),
        *linear("h.{i}.mlp.c_fc", "layers_{i}/ffn/up", transposed=bigcode),
        *linear("h.{i}.mlp.c_fc2", "layers_{i}/ffn/gate", transposed=bigcode),
        *linear("h.{i}.mlp.c_proj", "layers_{i}/ffn/down", transposed=bigcode),
        *norm("ln_f", "norm_f"),
    ]
    return decoder_table(cfg, "transformer.", rows)


def _gptj(cfg: DecoderConfig) -> Table:
    if cfg.name == "codegen":
        attention = fused("h.{i}.attn.qkv_proj", "layers_{i}/attn", "codegen", cfg)
    else:
        attention = linears("h.{i}.attn", "layers_{i}/attn", _INPUTS)
    rows = [
        *embedding("wte", "embed/token"),
        *norm("h.{i}.ln_1", "layers_{i}/norm1"),
        *attention,
        *linear("h.{i}.attn.out_proj", "layers_{i}/attn/out"),
        *linear("h.{i}.mlp.fc_in", "layers_{i}/ffn/up"),
        *linear("h.{i}.mlp.fc_out", "layers_{i}/ffn/down"),
        *norm("ln_f", "norm_f"),
    ]
    return decoder_table(cfg, "transformer.", rows)


def _neox(cfg: DecoderConfig) -> Table:
    rows = [
        *embedding("embed_in", "embed/token"),
        *norm("layers.{i}.input_layernorm", "layers_{i}/norm1"),
        *norm("layers.{i}.post_attention_layernorm", "layers_{i}/norm2"),
        *fused("layers.{i}.attention.query_key_value", "layers_{i}/attn", "per_head", cfg),
        *linear("layers.{i}.attention.dense", "layers_{i}/attn/out"),
        *linear("layers.{i}.mlp.dense_h_to_4h", "layers_{i}/ffn/up"),
        *linear("layers.{i}.mlp.dense_4h_to_h", "layers_{i}/ffn/down"),
        *norm("final_layer_norm", "norm_f"),
    ]
    return decoder_table(cfg, "gpt_neox.", rows, head="embed_out")


def _bloom(cfg: DecoderConfig) -> Table:
    rows = [
        *embedding("word_embeddings", "embed/token"),
        *norm("word_embeddings_layernorm", "embed/norm"),
        *norm("h.{i}.input_layernorm", "layers_{i}/norm1"),
        *fused("h.{i}.self_attention.query_key_value", "layers_{i}/attn", "per_head", cfg),
        *linear("h.{i}.self_attention.dense", "layers_{i}/attn/out"),
        *norm("h.{i}.post_attention_layernorm", "layers_{i}/norm2"),
        *linear("h.{i}.mlp.dense_h_to_4h", "layers_{i}/ffn/up"),
        *linear("h.{i}.mlp.dense_4h_to_h", "layers_{i}/ffn/down"),
        *norm("ln_f", "norm_f"),
    ]
    return decoder_table(cfg, "transformer.", rows)


def _falcon(cfg: DecoderConfig) -> Table:
    first, second = "input_layernorm", "post_attention_layernorm"
    if cfg.use_untied_layer_norm:
        first, second = "ln_attn", "ln_mlp"
    # Grouped for one kv head is [queries, k, v], the layout of the 7b model as well.
    kind = "per_head" if cfg.num_kv_heads == cfg.num_heads else "grouped"
    rows = [
        *embedding("word_embeddings", "embed/token"),
        *norm(f"h.{{i}}.{first}", "layers_{i}/norm1"),
        *norm(f"h.{{i}}.{second}", "layers_{i}/norm2"),
        *fused("h.{i}.self_attention.query_key_value", "layers_{i}/attn", kind, cfg),
        *linear("h.{i}.self_attention.dense", "layers_{i}/attn/out"),
        *linear("h.{i}.mlp.dense_h_to_4h", "layers_{i}/ffn/up"),
        *linear("h.{i}.mlp.dense_4h_to_h", "layers_{i}/ffn/down"),
        *norm("ln_f", "norm_f"),
    ]
    return decoder_table(cfg, "transformer.", rows)


def _mpt(cfg: DecoderConfig) -> Table:
    rows = [
        *embedding("wte", "embed/token"),
        *embedding("wpe", "embed/position"),
        *norm("blocks.{i}.norm_1", "layers_{i}/norm1"),
        *fused("blocks.{i}.attn.Wqkv", "layers_{i}/attn", "concat", cfg),
        *linear("blocks.{i}.attn.out_proj", "layers_{i}/attn/out"),
        *norm("blocks.{i}.norm_2", "layers_{i}/norm2"),
        *linear("blocks.{i}.ffn.up_proj", "layers_{i}/ffn/up"),
        *linear("blocks.{i}.ffn.down_proj", "layers_{i}/ffn/down"),
        *norm("norm_f", "norm_f"),
    ]
    return decoder_table(cfg, "transformer.", rows)


def _llama(
    cfg: DecoderConfig,
    *,
    norms: Mapping[str, str] = _NORMS,
    mlp: Mapping[str, str] = _GATED,
    moe: str = "block_sparse_moe",
    experts: Mapping[str, str] = _EXPERTS,
) -> Table:
    """Map LLaMA's layout.

    Args:
        cfg: of a decoder.
        norms: of a layer, theirs -> ours.
        mlp: parts of the feed-forward.
        moe: name of the routed experts.
        experts: parts of each.
    """
    layer, own = "layers.{i}", "layers_{i}"
    rows = [
        *embedding("embed_tokens", "embed/token"),
        *(row for a, b in norms.items() for row in norm(f"{layer}.{a}", f"{own}/{b}")),
        *linears(f"{layer}.self_attn", f"{own}/attn", _ATTENTION),
        *norm(f"{layer}.self_attn.q_norm", f"{own}/attn/query_norm"),
        *norm(f"{layer}.self_attn.k_norm", f"{own}/attn/key_norm"),
        *linears(f"{layer}.mlp", f"{own}/ffn", mlp),
        *linear(f"{layer}.{moe}.gate", f"{own}/moe/router"),
        *linears(f"{layer}.{moe}.experts.{{e}}", f"{own}/moe/experts_{{e}}", experts),
        *norm("norm", "norm_f"),
    ]
    return decoder_table(cfg, "model.", rows)


def _phi3(cfg: DecoderConfig) -> Table:
    """Map LLaMA's layout with fused projections: [q | k | v] and [gate | up]."""
    layer, own = "layers.{i}", "layers_{i}"
    gated = (f"{own}/ffn/gate/kernel", f"{own}/ffn/up/kernel")
    rows = [
        *embedding("embed_tokens", "embed/token"),
        *(row for a, b in _NORMS.items() for row in norm(f"{layer}.{a}", f"{own}/{b}")),
        *fused(f"{layer}.self_attn.qkv_proj", f"{own}/attn", "concat", cfg),
        *linear(f"{layer}.self_attn.o_proj", f"{own}/attn/out"),
        TensorRow(f"{layer}.mlp.gate_up_proj.weight", gated, Fused("concat", 1, 0, True)),
        *linear(f"{layer}.mlp.down_proj", f"{own}/ffn/down"),
        *norm("norm", "norm_f"),
    ]
    return decoder_table(cfg, "model.", rows)


def _opt(cfg: DecoderConfig) -> Table:
    layer, own = "decoder.layers.{i}", "layers_{i}"
    rows = [
        *embedding("decoder.embed_tokens", "embed/token"),
        *embedding("decoder.embed_positions", "embed/position"),
        *norm(f"{layer}.self_attn_layer_norm", f"{own}/norm1"),
        *linears(f"{layer}.self_attn", f"{own}/attn", {**_INPUTS, "out_proj": "out"}),
        *norm(f"{layer}.final_layer_norm", f"{own}/norm2"),
        *linears(layer, f"{own}/ffn", {"fc1": "up", "fc2": "down"}),
        *norm("decoder.final_layer_norm", "norm_f"),
    ]
    return decoder_table(cfg, "model.", rows)


DECODER_TABLES: dict[str, Callable[[DecoderConfig], Table]] = {
    "gpt2": _gpt2,
    "btlm": _gpt2,
    "jais": _gpt2,
    "crystalcoder": _gpt2,
    "gpt_bigcode": _gpt2,
    "gptj": _gptj,
    "codegen": _gptj,
    "gpt_neox": _neox,
    "bloom": _bloom,
    "falcon": _falcon,
    "mpt": _mpt,
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _llama,
    "qwen2": _llama,
    "qwen3": _llama,
    "qwen3_moe": lambda cfg: _llama(cfg, moe="mlp", experts=_GATED),
    "olmo2": lambda cfg: _llama(cfg, norms=_SANDWICH),
    "phi3": _phi3,
    "gemma": _llama,
    "gemma2": lambda cfg: _llama(cfg, norms=_SANDWICH),
    "gemma3_text": lambda cfg: _llama(cfg, norms=_SANDWICH),
    "starcoder2": lambda cfg: _llama(cfg, mlp={"c_fc": "up", "c_proj": "down"}),
    "opt": _opt,
}
