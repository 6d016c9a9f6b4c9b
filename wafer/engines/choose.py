"""Which executor runs a configuration: resident when it fits, weight streaming otherwise or asked.

Pipelined execution and the fabric are chosen by asking for them only. The estimate counts what
grows with the model: weights, optimizer state and gradients. Activations come on top, so nine
tenths of the free memory is the limit.
"""

import logging
import math
import pathlib
from typing import Any

import jax

from models.paths import named_leaves
from sparsity import Sparsifier
from wafer.config import RunConfig
from wafer.engines.fabric.engine import OnPes
from wafer.engines.fabric.requirements import on_pes
from wafer.engines.resident import Resident, swarmx_mesh
from wafer.engines.stagewise.memoryx import FileStore, RamStore, Store
from wafer.engines.stagewise.pipelined import Pipelined
from wafer.engines.stagewise.regions import meshes
from wafer.engines.stagewise.schedule import bubble
from wafer.engines.stagewise.streaming import Streaming
from wafer.errors import ConfigError, Problem

__all__ = ["choose", "free_memory", "make_executor", "micro_batches", "state_bytes"]

_LOG = logging.getLogger(__name__)
_GIB, _MIB = 2**30, 2**20
_SHARE = 0.9  # of the free memory


def state_bytes(shapes: Any, tx: Any, sparsifier: Sparsifier) -> tuple[int, int]:
    """Estimate (weights, optimizer state) in bytes; weights stored as csr count when kept.

    Args:
        shapes: of the dense parameters.
        tx: the optimizer.
        sparsifier: says what is sparse.
    """
    moments = jax.eval_shape(tx.init, shapes)
    size = lambda leaf: math.prod(leaf.shape) * leaf.dtype.itemsize
    weights = sum(map(size, jax.tree.leaves(shapes)))
    state = sum(map(size, jax.tree.leaves(moments)))
    leaves = dict(named_leaves(shapes))
    saved = 0.0
    for name, chosen in sparsifier.select(shapes).items():
        if chosen.algorithm.compute == "csr":
            saved += size(leaves[name]) * float(chosen.algorithm.sparsity(0, 0))
    kept = 1 - saved / max(weights, 1)
    return round(weights * kept), round(state * kept)


def free_memory(device: Any) -> int:
    """Bytes a device has left; on a CPU what the system says is available."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats:
        return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    lines = pathlib.Path("/proc/meminfo")
    if not lines.exists():  # not Linux: nothing to compare with
        return 2**63
    table = dict(line.split(":", 1) for line in lines.read_text().splitlines())
    return int(table["MemAvailable"].split()[0]) * 1024


def choose(cfg: RunConfig, weights: int, moments: int, device: Any) -> str:
    """Return 'resident', 'weight_streaming', 'pipelined' or 'fabric', and log why."""
    asked = cfg.runconfig.execution_strategy
    on_host = jax.local_device_count() if device.platform == "cpu" else 1
    copies = min(on_host, cfg.runconfig.num_csx)  # systems that share one memory
    needed, free = (2 * weights + moments) * copies, free_memory(device)
    fits = needed <= _SHARE * free
    chosen = asked or ("resident" if fits else "weight_streaming")
    why = "asked for" if asked else "it fits" if fits else "resident does not fit"
    _LOG.info(
        "Execution: %s (%s). Resident takes %.2f GiB for weights, gradients and optimizer state, "
        "%.2f GiB is free",
        chosen,
        why,
        needed / _GIB,
        free / _GIB,
    )
    return chosen


def _store(cfg: RunConfig, total: int, device: Any) -> Store:
    """Open the store the configuration names; a file where RAM cannot hold it and none is named."""
    section = cfg.runconfig.memoryx
    kind = section.store
    on_host = free_memory(device if device.platform == "cpu" else jax.devices("cpu")[0])
    if kind == "ram" and total > _SHARE * on_host and "store" not in section.model_fields_set:
        kind = "file"
    if kind == "ram":
        _LOG.info("MemoryX: %.2f GiB in host memory", total / _GIB)
        return RamStore()
    base = pathlib.Path(section.path or cfg.runconfig.model_dir) / "memoryx"
    folder = base / f"process-{jax.process_index()}" if jax.process_count() > 1 else base
    size = total * (2 if section.durable else 1)
    _LOG.info("MemoryX: %.2f GiB in %s (file of %.2f GiB)", total / _GIB, folder, size / _GIB)
    return FileStore(folder, durable=section.durable)


def _pipelined(cfg: RunConfig, made: Any, **common: Any) -> Pipelined:
    """Build the pipeline, and say how it is laid out and how much of it idles."""
    if jax.process_count() > 1:
        message = (
            f"pipelined: the stages must be in one process, this run has {jax.process_count()}; "
            "use weight_streaming or resident, or one process"
        )
        raise ConfigError([Problem(("runconfig", "execution_strategy"), message)])
    settings, section = cfg.runconfig.pipeline, cfg.train_input
    found = Pipelined(
        made.model,
        made.tx,
        made.sparsifier,
        made.scaler,
        meshes(cfg.runconfig.num_csx, settings.devices),
        stages=settings.stages,
        recompute=settings.recompute,
        **common,
    )
    count, stages = micro_batches(cfg), len(found.regions)
    if section is not None:
        _LOG.info(
            "Pipeline: %d stages on %d device(s), %d micro-batch(es) a step: %.1f %% of the "
            "timetable idle%s",
            stages,
            settings.devices,
            count,
            100 * bubble(stages, count),
            "" if count >= stages else "; a smaller train_input.micro_batch_size fills it",
        )
    return found


def micro_batches(cfg: RunConfig) -> int:
    """M: micro-batches of an optimizer step on each system."""
    section = cfg.train_input
    if section is None:
        return 1
    micro = section.micro_batch_size
    share = section.batch_size // cfg.runconfig.num_csx
    parts = share // micro if isinstance(micro, int) else 1
    return parts * (1 if cfg.optimizer is None else cfg.optimizer.grad_accum_steps)


def make_executor(
    cfg: RunConfig, made: Any, *, dropout: bool
) -> Resident | Streaming | Pipelined | OnPes:
    """Build the executor of a run.

    Args:
        cfg: the configuration.
        made: its plan.
        dropout: draw dropout masks.

    Raises:
        ValueError: fewer devices than systems.
        ConfigError: the run cannot be pipelined.
        MemoryXError: the store cannot be made.
    """
    mesh = swarmx_mesh(cfg.runconfig.num_csx)
    device = mesh.local_devices[0]
    optimizer = cfg.optimizer
    summaries = optimizer is not None and optimizer.log_summaries
    weights, moments = state_bytes(made.shapes, made.tx, made.sparsifier)
    clips = optimizer is not None and optimizer.max_gradient_norm is not None
    common = (made.model, made.tx, made.sparsifier, made.scaler, mesh)
    chosen = choose(cfg, weights, moments, device)
    if chosen in {"resident", "fabric"}:
        resident = Resident(*common, dropout=dropout, summaries=summaries)
        # Scores are the host's: a run that only evaluates needs no PEs.
        trains = chosen == "fabric" and "train" in cfg.runconfig.mode
        return on_pes(cfg, made, resident) if trains else resident
    if chosen == "pipelined":
        return _pipelined(cfg, made, dropout=dropout, summaries=summaries, global_norm=clips)
    return Streaming(
        *common,
        store=_store(cfg, weights + moments, device),
        dropout=dropout,
        summaries=summaries,
        global_norm=clips,
        residual_bytes=cfg.runconfig.memoryx.residual_mib * _MIB,
    )
