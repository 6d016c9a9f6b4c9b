"""Compare our models with recorded outputs of transformers, run by run.

Shared by tests/models/convert/test_parity.py and parity_report.py. A golden folder holds config,
weights, ``io.npz`` (RUN/in_* inputs, RUN/* outputs, 0 at padding) and ``meta.json``.
"""

import collections
import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
from helpers.paths import GOLDEN, ROOT
from safetensors.numpy import save_file

from wafer import vsl
from wafer.models import Batch, build, generate
from wafer.models.convert.api import convert_table, from_hf, to_hf
from wafer.models.convert.engine import export_tensors
from wafer.models.convert.files import open_tensors, read_config
from wafer.models.families.encoder_config import EncoderConfig
from wafer.models.families.llava import LlavaConfig
from wafer.models.families.seq2seq_config import Seq2SeqConfig
from wafer.models.families.vision import VisionConfig
from wafer.models.paths import named_leaves

KEPT = GOLDEN / "hf"
SHARED = ROOT.parent / "shared" / "goldens" / "hf"  # beside the checkout


def cases():
    """Every golden folder: the small set of the project, and the shared ones where they are."""
    folders = {
        p.name: p for root in (SHARED, KEPT) if root.exists() for p in sorted(root.iterdir())
    }
    return {name: path for name, path in sorted(folders.items()) if path.is_dir()}


def shaken(model):
    """Parameters where no bias is 0 and no scale 1, so that every one of them shows."""
    noise = np.random.default_rng(1)
    return jax.tree.map(  # in NumPy: nothing is compiled for each shape
        lambda x: jnp.asarray(x + 0.2 * noise.standard_normal(x.shape).astype(x.dtype)),
        jax.tree.map(np.asarray, model.init(jax.random.key(0))),
    )


def masked_layout(mask, positions=None, *, keep_pads=False):
    """Lay out [B, S] rows with any mask: left padding too.

    keep_pads: padded slots compute as Hugging Face's do (they see the row's tokens, nobody sees
    them), which matters where their outputs enter a loss.
    """
    rows, size = mask.shape
    valid = mask.astype(bool)
    start = np.arange(rows)[:, None] * size + valid.argmax(1)[:, None]
    count = mask.sum(1)[:, None]
    real = np.ones_like(valid) if keep_pads else valid
    places = np.broadcast_to(np.arange(size) if positions is None else positions, mask.shape)

    def flat(x, where, other):
        return jnp.asarray(np.where(where, x, other).reshape(-1), jnp.int32)

    base = vsl.padded_layout(jnp.asarray(np.full(rows, size) if keep_pads else mask.sum(1)), size)
    return dataclasses.replace(
        base,
        rows=None,  # static: with it, runs would not share a compilation
        segments=flat(np.arange(rows)[:, None], real, -1),
        positions=flat(places, real, 0),
        starts=flat(start, real, rows * size),
        ends=flat(start + count, real, 0),
    )


def shifted(labels):
    """Labels of a causal model moved to the slot that predicts them."""
    out = np.full_like(labels, -100)
    out[:, :-1] = labels[:, 1:]
    return out


def to_batch(cfg, inputs):
    """Turn recorded inputs into our batch."""
    if isinstance(cfg, VisionConfig):
        zeros = jnp.zeros((1,), jnp.int32)
        layout = vsl.layout_from_lengths(jnp.ones((1,), jnp.int32), 1)
        extras = {"pixel_values": jnp.asarray(inputs["pixel_values"])}
        return Batch(zeros, zeros, jnp.ones((1,)), layout, extras)
    ids = inputs["input_ids"]
    mask = inputs.get("attention_mask", np.ones_like(ids))
    if isinstance(cfg, Seq2SeqConfig):
        return _seq2seq_batch(cfg, inputs, ids, mask)
    qa = isinstance(cfg, EncoderConfig) and cfg.head == "qa"
    layout = masked_layout(mask, inputs.get("position_ids"), keep_pads=qa)
    labels = inputs.get("labels", np.full_like(ids, -100))
    encoder = isinstance(cfg, EncoderConfig)
    extras = {}
    if encoder:
        if "token_type_ids" in inputs:
            extras["segment_ids"] = jnp.asarray(inputs["token_type_ids"].reshape(-1))
        for name in ("next_sentence_label", "start_positions", "end_positions"):
            if name in inputs:
                extras[name] = jnp.asarray(inputs[name])
        if labels.ndim == 1:
            extras["class_labels"] = jnp.asarray(labels)
            labels = np.full_like(ids, -100)
    else:
        labels = shifted(labels)
    if "pixel_values" in inputs:
        extras["pixel_values"] = jnp.asarray(inputs["pixel_values"])
    return _batch(ids, labels, layout, extras)


def _seq2seq_batch(cfg, inputs, ids, mask):
    labels = inputs.get("labels")
    target = inputs.get("decoder_input_ids")
    if target is None:
        target = np.full_like(labels, cfg.decoder_start_token_id)
        target[:, 1:] = labels[:, :-1]
        target[target == -100] = 0
    labels = np.full_like(target, -100) if labels is None else labels
    layout = masked_layout(np.ones_like(target))
    extras = {"source_tokens": jnp.asarray(ids.reshape(-1)), "source_layout": masked_layout(mask)}
    return _batch(target, labels, layout, extras)


def _batch(ids, labels, layout, extras):
    labels = labels.reshape(-1)
    weights = jnp.asarray((labels >= 0).astype(np.float32))
    return Batch(jnp.asarray(ids.reshape(-1)), jnp.asarray(labels), weights, layout, extras)


def relative(ours, reference):
    """Largest difference over the largest reference value."""
    return float(np.abs(np.asarray(ours) - reference).max() / np.abs(reference).max())


# Parity needs the arithmetic, not the speed: the cheapest compilation XLA offers.
CHEAP = {"xla_backend_optimization_level": 0}


def compiled(model):
    """The same model with each kind jitted: all layers and all runs share one compilation."""

    def cheap(fn):
        return jax.jit(fn, compiler_options=CHEAP)

    kinds = {kind: (roles, cheap(fn)) for kind, (roles, fn) in model.kinds.items()}
    return dataclasses.replace(model, kinds=kinds)


def run_stages(model, params, batch):
    """Fold the stages, keeping every activation stream: (last carry, {stage: carry})."""
    carry, seen = None, {}
    for stage in model.stages:
        carry = model.kinds[stage.kind][1](model.stage_params(stage, params), carry, batch, None)
        seen[stage.name] = carry
    return carry, seen


# recorded output -> key of our output dict (encoders and towers); None: the carry itself
OUTPUTS = {
    "logits": "logits",
    "prediction_logits": "logits",
    "seq_relationship_logits": "nsp",
    "pooler_output": "pooled",
    "last_hidden_state": "hidden",
    "start_logits": "start",
    "end_logits": "end",
    "relevance_logits": "relevance",
}


def hidden_states(cfg, seen):
    """Our activations under the recorded names; the last of a normed stack is left to outputs."""
    if isinstance(cfg, Seq2SeqConfig):
        out = {"enc_hs0": seen["embed"].source, "dec_hs0": seen["embed"].target}
        last = cfg.num_hidden_layers - (1 if cfg.norm_first else 0)
        for i in range(last):
            out[f"enc_hs{i + 1}"] = seen[f"encoder_layers_{i}"].source
        for i in range(cfg.decoder_layers - (1 if cfg.norm_first else 0)):
            out[f"dec_hs{i + 1}"] = seen[f"decoder_layers_{i}"].target
        final = "encoder_norm" if cfg.norm_first else f"encoder_layers_{last - 1}"
        return out | {"encoder_last_hidden_state": seen[final].source}
    stack = cfg.text_model if isinstance(cfg, LlavaConfig) else cfg
    out = {"hs0": seen["embed"].x}
    if isinstance(cfg, LlavaConfig) and seen["projector"] is not None:
        out["image_hidden_states"] = seen["projector"]
    encoder = isinstance(cfg, EncoderConfig | VisionConfig)
    for i in range(stack.num_hidden_layers - (0 if encoder else 1)):
        out[f"hs{i + 1}"] = seen[f"layers_{i}"].x
    return out


def our_outputs(model, params, batch):
    """Everything a run records: outputs and hidden states by recorded name."""
    carry, seen = run_stages(model, params, batch)
    ours = hidden_states(model.config, seen)
    for name, key in OUTPUTS.items():
        ours[name] = carry.get(key) if isinstance(carry, dict) else carry
    return {name: value for name, value in ours.items() if value is not None}


def compare_outputs(ours, outputs, mask):
    """Errors of one run by output name."""
    errors = {}
    for name, reference in outputs.items():
        if name not in ours:
            continue
        value = np.asarray(ours[name]).reshape(reference.shape)
        if mask is not None and reference.shape[:2] == mask.shape:
            value = value * mask.reshape(mask.shape + (1,) * (reference.ndim - 2))
        errors[name] = relative(value, reference)
    return errors


def loss_and_grads(model, params, batches):
    """{run: (loss, gradients)} as torch has them: Marian's pad row learns from the logits alone."""
    untied = model
    if model.config.name == "transformer":
        untied = build(model.config.model_copy(update={"share_embedding_weights": False}))
        head = {"kernel": params["embed"]["token"]["embedding"].T, **params["lm_head"]}
        params = {**params, "lm_head": head}
    graded = jax.jit(jax.value_and_grad(untied.loss, has_aux=True), compiler_options=CHEAP)
    losses = {}
    for run, batch in batches.items():
        (loss, _), grads = graded(params, batch)
        if untied is not model:
            table = grads["embed"]["token"]["embedding"].at[0].set(0)
            grads["embed"]["token"]["embedding"] = table + grads["lm_head"].pop("kernel").T
        losses[run] = loss, grads
    return losses


def compare_loss(model, loss, grads, meta, expected):
    """|loss difference| and the largest relative difference of gradient norms, per parameter."""
    if getattr(model.config, "head", "") == "qa":
        # Padding slots compute here; torch's padding_idx drops their gradient to the pad row.
        grads["embed"]["token"]["embedding"] = grads["embed"]["token"]["embedding"].at[0].set(0)
    table = convert_table(model.config)
    squared = collections.Counter()  # experts are one tensor in memory, several in the file
    for tensor in export_tensors(model, table, dict(named_leaves(grads))):
        grad = tensor.read().astype(np.float64)
        squared[_fused_experts(tensor.name)] += float(np.square(grad).sum())
    total, worst, checked, squares = meta["grad_global_norm"], 0.0, 0, 0.0
    for name, square in squared.items():
        norm = square**0.5
        reference = _recorded_norm(meta["grad_norms"], name, table)
        if reference is not None:  # None: a buffer there
            checked += 1
            squares += norm**2
            # A key bias has gradient 0 under softmax: rounding, against which nothing is relative.
            worst = max(worst, abs(norm - reference) / max(reference, 1e-3 * total))
    return {
        "loss": abs(float(loss) - expected),
        "grad_norm": worst,
        "global_norm": abs(squares**0.5 - total) / total,
        "grads_checked": checked,
    }


def _fused_experts(name):
    expert = r"(block_sparse_moe|mlp)\.experts\.\d+"
    name = re.sub(rf"{expert}\.(w[13]|(gate|up)_proj)\.weight", "mlp.experts.gate_up_proj", name)
    name = re.sub(rf"{expert}\.(w2|down_proj)\.weight", "mlp.experts.down_proj", name)
    return name.replace("block_sparse_moe.gate", "mlp.gate")


def _recorded_norm(norms, name, table):
    names = [name, *table.spellings(name)]
    names += [n.replace("embed_out.", "lm_head.") for n in names]  # v5's memory name
    return next((norms[n] for n in names if n in norms), None)


def greedy_tokens(model, params, meta):
    """(ours, recorded) continuation by the cached generator."""
    prompt, out = meta["greedy"]["prompt"][0], meta["greedy"]["out"][0]
    skip = 1 if isinstance(model.config, Seq2SeqConfig) else len(prompt)
    ours = generate(model, params, prompt, len(out) - skip)[0].tolist()
    return ours, out[skip:]


def greedy_inputs(cfg, meta):
    """(inputs, first slot, recorded continuation) to check greedy tokens without a cache."""
    prompt, out = meta["greedy"]["prompt"][0], meta["greedy"]["out"][0]
    if isinstance(cfg, Seq2SeqConfig):
        inputs = {"input_ids": np.asarray([prompt]), "decoder_input_ids": np.asarray([out[:-1]])}
        return inputs, 0, out[1:]
    return {"input_ids": np.asarray([out[:-1]])}, len(prompt) - 1, out[len(prompt) :]


def padded_stream(batch, like):
    """Put a batch of one sequence into a stream of another batch's shape."""
    if "source_tokens" in batch.extras:
        return batch
    capacity, rows = like.layout.capacity, like.layout.lengths.shape[0]
    length = batch.layout.capacity
    layout = vsl.layout_from_lengths(jnp.asarray([length] + [0] * (rows - 1)), capacity)
    fill = capacity - length
    flat = (jnp.pad(x, (0, fill)) for x in (batch.tokens, batch.labels, batch.weights))
    return Batch(*flat, layout, batch.extras)


def round_trip(path, folder):
    """Write what was read; names of tensors that did not come back bit for bit."""
    to_hf(*from_hf(path, dtype=None), folder)
    before, after = open_tensors(path), open_tensors(folder)
    plain = lambda tensors: {n.replace("vision_model.", ""): n for n in tensors}  # v4 has it
    names, written = plain(before), plain(after)
    pairs = {name: (before[names[name]], after[written[name]]) for name in names.keys() & written}
    equal = lambda one, other: one.dtype == other.dtype and np.array_equal(one, other)
    differing = {name for name, pair in pairs.items() if not equal(*pair)}
    return sorted(differing | (names.keys() ^ written.keys()))


def copied(target, name, add=(), drop=(), **config):
    """Copy a kept folder with tensors added or dropped and keys of config.json replaced."""
    tensors = {n: np.array(t) for n, t in open_tensors(KEPT / name).items() if n not in drop}
    target.mkdir(exist_ok=True)
    save_file(tensors | dict(add), target / "model.safetensors")
    (target / "config.json").write_text(json.dumps(read_config(KEPT / name) | config))
    return target


def meta(path):
    """What is recorded of a model, without its arrays."""
    return json.loads((path / "meta.json").read_text())


def load(path):
    """(model, params, meta, {run: (inputs, outputs, mask)}) of a golden folder."""
    model, params = from_hf(path)
    recorded = meta(path)
    arrays = np.load(path / "io.npz")
    runs = {}
    for run in recorded["runs"]:
        named = {k.removeprefix(f"{run}/"): arrays[k] for k in arrays if k.startswith(f"{run}/")}
        inputs = {k[3:]: v for k, v in named.items() if k.startswith("in_")}
        outputs = {k: v for k, v in named.items() if not k.startswith("in_")}
        runs[run] = (inputs, outputs, inputs.get("attention_mask"))
    return model, params, recorded, runs


def compare(path):
    """All errors of a golden folder: {run: {output: error}}, loss, gradients, greedy tokens."""
    model, params, meta, runs = load(path)
    batches = {run: to_batch(model.config, inputs) for run, (inputs, _, _) in runs.items()}
    scored = [run for run in runs if meta["runs"][run]["loss"] is not None]
    if "greedy" in meta:
        inputs, first, recorded = greedy_inputs(model.config, meta)
        batches["greedy"] = padded_stream(to_batch(model.config, inputs), batches["full"])

    staged = compiled(model)
    outputs = {run: our_outputs(staged, params, batch) for run, batch in batches.items()}
    losses = loss_and_grads(model, params, {run: batches[run] for run in scored})
    result = {}
    for run, (_, recorded_outputs, mask) in runs.items():
        result[run] = compare_outputs(outputs[run], recorded_outputs, mask)
        if run in losses:
            loss, grads = losses[run]
            expected = meta["runs"][run]["loss"]
            result[run] |= compare_loss(model, loss, grads, meta, expected)
    if "greedy" in meta:
        logits = np.asarray(outputs["greedy"]["logits"])[first : first + len(recorded)]
        result["greedy"] = logits.argmax(-1).tolist() == recorded
    return result
