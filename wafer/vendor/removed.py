"""Keys of the vendor's TensorFlow stack and earlier ones, and their replacements."""

from wafer.errors import Problem

_HERE = "the data pipeline sets itself up here; drop it"
_CLUSTER = "there is no cluster to address here; drop it"
_PLACE = "every checkpoint holds the place in the data; drop it"
_PREDICT = "`wafer generate` predicts; drop it"
_ESTIMATOR = "of TensorFlow's Estimator; drop it"
_LENGTHS = (
    "of the TensorFlow stack. Here train_input.use_vsl: true packs several documents into a row, "
    "and model.enable_vts: true computes no padding; attention_mask says what is padding"
)


def _was(today: str) -> str:
    return f"of the TensorFlow stack; write {today}"


# last part of a key -> what to write instead
REMOVED: dict[str, str] = {
    "use_legacy_vsl": _LENGTHS,
    "vsl_pad_id": _LENGTHS,
    "save_checkpoints_steps": _was("runconfig.checkpoint_steps"),
    "save_checkpoints_secs": _was("runconfig.checkpoint_steps, which counts steps"),
    "tf_random_seed": _was("runconfig.seed"),
    "seed": _was("shuffle_seed for an input's order, runconfig.seed for a run"),
    "train_steps": _was("runconfig.num_steps"),
    "throttle_secs": _was("runconfig.eval_frequency, which counts steps"),
    "warm_start_path": _was("runconfig.checkpoint_path"),
    "csconfig": _was("its keys into runconfig"),
    "csrunconfig": _was("its keys into runconfig"),
    "pretrain_params_path": _was("runconfig.checkpoint_path"),
    "use_segment_embedding": _was("model.num_segments (0: no segments)"),
    "cls_dropout_rate": _was("model.classifier_dropout"),
    "num_cls_classes": _was("model.num_labels"),
    "beta_1": _was("optimizer.beta1"),
    "beta_2": _was("optimizer.beta2"),
    "dropout_seed": _was("runconfig.seed"),
    "vocab_file": _was("src_vocab_file where T5's text is read; rows of ids need none"),
    "use_relative_attention_bias": _was("model.position_embedding_type: relative"),
    "positional_embedding_type": _was("model.position_embedding_type"),
    "hidden_sizes": _was("model.hidden_size and model.depth"),
    "num_parallel_calls": _HERE,
    "num_buckets": _LENGTHS,
    "enable_gpu_optimizations": _ESTIMATOR,
    "start_delay_secs": _ESTIMATOR,
    "session_config": _ESTIMATOR,
    "predict_steps": _PREDICT,
    "inference_input": _PREDICT,
    "cs_ip": _CLUSTER,
    "orchestrator": _CLUSTER,
    "n_parallel_reads": _HERE,
    "parallel_calls": _HERE,
    "skip_steps": _PLACE,
    "save_iter_state_path": _PLACE,
    "cerebras": _PLACE,
    "wandb": "runs write TensorBoard events and metrics.jsonl; drop it",
}


def explain_removed(problem: Problem) -> Problem:
    """Add to the problem of an unknown key what replaced it, where the vendor's stack had it."""
    key = str(problem.path[-1]) if problem.path else ""
    advice = REMOVED.get(key.rpartition(".")[2])
    if advice is None or not problem.unknown:
        return problem
    return problem._replace(message=f"unknown {problem.unknown}: {advice}")
