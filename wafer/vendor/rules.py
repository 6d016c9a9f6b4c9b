"""What one section of the vendor's run files means for another, as small functions.

Each takes the ``Translated`` sections and changes them in place; all are listed in ``RULES``.
"""

from collections.abc import Iterator
from typing import Any

from wafer.errors import Problem
from wafer.models.names import MODELS
from wafer.vendor.defaults import code_of, set_defaults, set_input_defaults
from wafer.vendor.parts import translate_parts
from wafer.vendor.seq2seq import translate_seq2seq

_PARTS = ("train_input", "eval_input")


def _inputs(out: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in _PARTS:
        if isinstance(out.sections.get(part), dict):
            yield part, out.sections[part]


def _drop(out: Any, section: dict[str, Any], path: str) -> None:
    out.ignored.append(path)
    del section[path.rpartition(".")[2]]


def _sections(out: Any) -> None:
    """Drop sections that mean nothing for training."""
    for name in ("predict_input", "csconfig"):
        value = out.sections.get(name)
        if name == "csconfig" and value not in (None, {"use_cbfloat16": False}):
            continue  # reported as an unknown section, with advice
        if name in out.sections:
            _drop(out, out.sections, name)


def _check_halves(out: Any) -> None:
    """Check keys that choose training or evaluation data, which the section itself does."""
    for part, section in _inputs(out):
        train = part == "train_input"
        splits = ("train",) if train else ("val", "test", "eval")
        for key, own in (("is_training", (train,)), ("split", splits)):
            if key not in section or (key == "split" and "MNIST" not in str(_processor(section))):
                continue
            if section[key] in own:
                _drop(out, section, f"{part}.{key}")
            else:
                message = f"{section[key]!r}: not computed here: {part} reads {own[0]!r} data"
                out.problems.append(Problem((part, key), message))
                del section[key]


def _processor(section: dict[str, Any]) -> Any:
    return section.get("data_processor")


def _mnist(out: Any) -> None:
    """Releases before 2.4 read MNIST without naming a processor."""
    model = out.sections.get("model")
    if isinstance(model, dict) and model.get("name") == "fc_mnist":
        for _, section in _inputs(out):
            section.setdefault("data_processor", "MNISTDataProcessor")


def _schedules(out: Any) -> None:
    """Drop what a scheduler of releases before 2.1 did not read."""
    optimizer = out.sections.get("optimizer")
    entries = optimizer.get("learning_rate") if isinstance(optimizer, dict) else None
    if not isinstance(entries, list):
        return
    kept = []
    for i, entry in enumerate(entries):
        own = dict(entry) if isinstance(entry, dict) else entry
        if isinstance(own, dict):
            where = f"optimizer.learning_rate.{i}"
            if "steps" in own and "decay_steps" in own:  # steps won
                _drop(out, own, f"{where}.decay_steps")
            if "alpha" in own and str(own.get("scheduler")).lower().startswith("linear"):
                _drop(out, own, f"{where}.alpha")
        kept.append(own)
    optimizer["learning_rate"] = kept


def _mask_scaling(out: Any) -> None:
    """``dynamic_mlm_scale`` divides by the masked tokens of the batch, whatever the weight."""
    model = out.sections.get("model")
    for part, section in _inputs(out):
        if "dynamic_mlm_scale" not in section:
            continue
        if section.pop("dynamic_mlm_scale") and part == "train_input" and isinstance(model, dict):
            model["mlm_loss_scaling"] = "num_masked"
            model.pop("mlm_loss_weight", None)


# (family of the model, data processor, key of the model that the data take over, still the model's)
_MODEL_KEYS_OF_DATA = (
    ("encoder", "BertSum", "vocab_file", False),
    ("encoder", "BertTokenClassifier", "label_vocab_file", False),
    ("encoder", "BertCSV", "disable_nsp", True),
    ("llava", "Llava", "image_start_idx", False),
)


def _copy_to_data(out: Any) -> None:
    """Hand keys of the model on to the data, where releases have them in either place."""
    model, family = _model(out)
    entry = MODELS.get(str(model.get("name")))
    known = {**entry.presets, **model} if entry else model  # RoBERTa has no next sentences
    for own, processor, key, stays in _MODEL_KEYS_OF_DATA:
        if family != own or key not in known:
            continue
        for _, section in _inputs(out):
            if str(_processor(section)).startswith(processor):
                section.setdefault(key, known[key])
        if not stays:
            model.pop(key, None)


# (family, key of train_input, key of the model): as many positions as the longest rows
_LENGTHS = (
    ("seq2seq", "src_max_sequence_length", "src_max_position_embeddings"),
    ("seq2seq", "tgt_max_sequence_length", "tgt_max_position_embeddings"),
    ("encoder", "max_sequence_length", "max_position_embeddings"),
)


def _lengths(out: Any) -> None:
    """Take the number of positions from the data's length where the model does not say it."""
    model, family = _model(out)
    train = out.sections.get("train_input")
    for own, source, key in _LENGTHS:
        if family == own and isinstance(train, dict) and isinstance(train.get(source), int):
            model.setdefault(key, train[source])


def _defaults(out: Any) -> None:
    """Set the vendor's defaults where Hugging Face's, which presets have, are others."""
    model, family = _model(out)
    set_defaults(model, code_of(str(model.get("name"))), out.release)
    for _, section in _inputs(out):
        set_input_defaults(section, out.release)
    if model.get("sliding_window_every_other_decoder_layer"):
        pattern = "sliding_window_every_other_decoder_layer_pattern"
        model.setdefault(pattern, "full_attention_first")
    for path, why in translate_parts(model, out.release):
        out.problems.append(Problem(("model", *path), why))
    if family == "seq2seq":
        for key, why in translate_seq2seq(model, out.release):
            out.problems.append(Problem(("model", key), why))


def _drop_overwritten(out: Any) -> None:
    """Drop what BERT's pre-training and DPR's towers replace by ``dropout_rate`` since 2.4."""
    model, _ = _model(out)
    if out.release is None or out.release < (2, 4):
        return
    sections = {"model": model} if model.get("name") in ("bert", "roberta", "esm2") else {}
    for part in ("encoder", "q_encoder", "ctx_encoder"):
        if isinstance(model.get(part), dict):
            sections[f"model.{part}"] = model[part] = dict(model[part])
    for path, section in sections.items():
        if "embedding_dropout_rate" in section:
            _drop(out, section, f"{path}.embedding_dropout_rate")


def _loss_scaling(out: Any) -> None:
    """Decide what a decoder's ``loss_weight`` without ``loss_scaling: batch_size`` means.

    Until 1.7 every loss was divided by rows; 1.8 did so where a weight is given; since 1.9 the
    weight is dropped. So any weight asks for the release, 1 as well.
    """
    model, family = _model(out)
    if family != "decoder" or model.get("loss_scaling", "num_tokens") != "num_tokens":
        return
    weighted = model.get("loss_weight", 1.0) not in (1, "1", "1.0")
    if out.release and (out.release < (1, 8) or (weighted and out.release == (1, 8))):
        model["loss_scaling"] = "batch_size"
    elif weighted and out.release:
        _drop(out, model, "model.loss_weight")
    elif out.release:
        model.pop("loss_weight", None)
    elif "loss_weight" in model:
        message = (
            "needs loss_scaling: batch_size until 1.8, and has no effect since 1.9; drop it, write "
            "loss_scaling: batch_size, or add the release, such as `release: '1.7'`"
        )
        out.problems.append(Problem(("model", "loss_weight"), message))


def _model(out: Any) -> tuple[dict[str, Any], str]:
    model = out.sections.get("model")
    if not isinstance(model, dict):
        return {}, ""
    return model, getattr(MODELS.get(str(model.get("name"))), "family", "")


def _outliers(out: Any) -> None:
    """Move ``selective_grad``, which release 2.3 has below the model, to the optimizer."""
    model, optimizer = out.sections.get("model"), out.sections.get("optimizer")
    if isinstance(model, dict) and isinstance(optimizer, dict) and "selective_grad" in model:
        optimizer.setdefault("selective_grad", model.pop("selective_grad"))
        out.renamed["optimizer", "selective_grad"] = ("model", "selective_grad")


def _preferences(out: Any) -> None:
    """``name: dpo`` trains its ``policy_model``; until 2.3 its keys are beside ``dpo``."""
    model = out.sections.get("model")
    if isinstance(model, dict) and isinstance(model.get("policy_model"), dict):
        model |= model.pop("policy_model")
        for key in model:
            if key not in ("name", "dpo"):
                out.renamed["model", key] = ("model", "policy_model", key)


RULES = (
    _sections,
    _mnist,
    _preferences,
    _outliers,
    _check_halves,
    _schedules,
    _mask_scaling,
    _copy_to_data,
    _lengths,
    _loss_scaling,
    _drop_overwritten,
    _defaults,
)
