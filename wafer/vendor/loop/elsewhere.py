"""Names of the vendor's Python API that are not here, with what to use instead."""

from typing import NoReturn

from wafer.models.errors import did_you_mean

_GENERATE = "use `wafer generate`, or wafer.models.generation.decode in Python"
_TREE = "use jax.tree.map or jax.tree.flatten_with_path"
_FILES = "use save and load; `wafer convert` reads and writes the vendor's .mdl"
_NAMES = "use model.named_parameters(); programs name operations by jax.named_scope"
_SHARDS = "use CSConfig(num_csx=...); one process loads every batch"
_PROFILE = "use jax.profiler.trace(folder), or `wafer run` with op_profiler_config"
_SCHEDULES = "use optim.lr_scheduler, or a learning_rate section with configure_lr_scheduler"
# Name below the package -> what to use.
ELSEWHERE = {
    "add_debug_name": _NAMES,
    "cirh": "use jax.lax.top_k and wafer.models.generation.sampling",
    "core": "use trace; whether a step is traced is current_backend().tracing",
    "current_backend_impl": "use current_backend()",
    "current_torch_device": "arrays are placed by the loop; use current_backend().mesh",
    "get_debug_name": _NAMES,
    "lib": "the vendor's compiled library; JAX compiles here",
    "pb": "the vendor's cluster messages; use CSConfig",
    "profiler": _PROFILE,
    "saver": _FILES,
    "set_debug_scope": _NAMES,
    "storage": _FILES,
    "summarize_tensor": "use a step_closure that calls numpy.save",
    "workflow": "use executor.profiler",
    "backend.BackendType": "use current_backend().name: 'CSX', 'CPU' or 'GPU'",
    "backend.get_backend_args": "the arguments of backend() are its signature",
    "distributed.cluster_resolver": _SHARDS,
    "distributed.destroy_process_group": _SHARDS,
    "distributed.get_worker_state": "a loader's state is state_dict() of a Grain iterator",
    "distributed.hit_worker_cache_limit": "there is no worker cache; read from local disk",
    "distributed.init_process_group": _SHARDS,
    "distributed.is_available": _SHARDS,
    "distributed.reduce": "values of a traced step are whole already, whatever num_csx is",
    "distributed.service_resolver": _SHARDS,
    "experimental.Compression": _FILES,
    "experimental.get_loop_iteration_slice": _GENERATE,
    "experimental.listener": "use a step_closure",
    "experimental.run_implicit_autoregressive_loop": _GENERATE,
    "experimental.start_implicit_loop": _GENERATE,
    "experimental.update_implicit_loop": _GENERATE,
    "metrics.RougeScoreMetric": "use wafer.data.readers.text.rouge in a step_closure",
    "nn.DiceCELoss": "use optax.losses; metrics.DiceCoefficientMetric measures",
    "nn.Scope": "use jax.named_scope",
    "nn.SelectiveGrad": "use selective_grad of configure_optimizer",
    "nn.SmoothL1Loss": "use optax.losses.huber_loss",
    "nn.StripPadding": "use vsl.strip_padding",
    "optim.ParamsT": "a type of torch; parameters are model.parameters()",
    "optim.configure_param_groups": "use groups with params, lr and weight_decay",
    "optim.configure_scheduler": _SCHEDULES,
    "optim.scheduler": _SCHEDULES,
    "optim.weight_decay_scheduler": "use a weight_decay section with configure_optimizer",
    "optim.lr_scheduler.ScalePerParamLR": "use adjust_learning_rate of configure_optimizer",
    "sparse.SparsityWrapperOptimizer": "use model.apply(algorithm) and optimizer.apply(algorithm)",
    "sparse.configure_sparsity_wrapper": "use sparse.configure",
    "sparse.default_sparse_param_filter": "use param_filter of sparse.configure",
    "sparse.map_sparsity_algorithm": "use sparse.configure({'algorithm': name, ...})",
    "utils.benchmark": "use executor.profiler over a loop without a step; `wafer data stats`",
    "utils.call_once": "use functools.cache",
    "utils.extract_loss": "the loss is what the traced step returns",
    "utils.kernel": "XLA chooses kernels here",
    "utils.nest": _TREE,
    "utils.num_kv_groups": "XLA chooses kernels here",
    "utils.utils": "use fnmatch on names of model.named_parameters()",
    "utils.data.DistributedSampler": _SHARDS,
    "utils.data.MbsSetting": "the micro-batch is `micro_batch_size` of a run file",
    "utils.data.Schedule": "use checkpoint_closure, or a condition on the step",
    "utils.data.SyntheticDataset": "use utils.data.get_random_dataloader",
    "utils.data.sampler": _SHARDS,
}


def explain(module: str, name: str) -> NoReturn:
    """Raise the error of a name that a module of this package lacks.

    Raises:
        ImportError: with what to use instead, where the vendor has the name. (``from ... import``
            would swallow the text of an AttributeError.)
        AttributeError: no release has it.
    """
    below = module.removeprefix("wafer.loop").removeprefix(".")
    full = f"{below}.{name}" if below else name
    if full in ELSEWHERE:
        raise ImportError(f"{full} of cerebras.pytorch is not here: {ELSEWHERE[full]}")
    near = did_you_mean(full, ELSEWHERE)
    raise AttributeError(f"module {module!r} has no attribute {name!r}{near}")
