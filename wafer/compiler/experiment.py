"""``wafer compile``: a configuration's floor plan, report and pictures, kept for the next time.

The kept answer is found by what it depends on: model and sparsity sections, the shapes of a
sample, the options of the compilation (machine, batch, copies, seed), and the code. A folder is
renamed into place whole, so that a run that is killed, or two at once, leave no half of one.
"""

import dataclasses
import hashlib
import json
import logging
import math
import os
import pathlib
import shutil
from collections.abc import Sequence
from typing import NamedTuple

import jax

from wafer.cache import cache_folder
from wafer.compiler.check import check_plan
from wafer.compiler.compile import CompileOptions, compile_graph, trace
from wafer.compiler.decode.kernels import Inference, decoding_graph, fastest_mesh, with_decoding
from wafer.compiler.graph import Graph
from wafer.compiler.picture import picture_html, save
from wafer.compiler.plan import Compiled
from wafer.compiler.report import from_json, report_text, summary, summary_html, to_json
from wafer.compiler.view import floor_view
from wafer.config import RunConfig
from wafer.data.batching.batches import feature_shapes, to_batch
from wafer.data.sections.base import InputSection
from wafer.errors import ConfigError, Problem
from wafer.experiment import BatchShape, Experiment, batch_shape
from wafer.models.errors import has
from wafer.models.factored.lora import trainable
from wafer.models.families.decoder_config import DecoderConfig
from wafer.models.files import atomic_write, made_folder
from wafer.models.paths import named_leaves
from wafer.models.shown.html import table
from wafer.spec import SPECS, WaferSpec
from wafer.version import __version__, code_digest
from wafer.vsl.attend import attention_as

_LOG = logging.getLogger(__name__)
FILES = (
    *("compile_report.txt", "compile_report.json", "floor_plan.html"),
    *("floor_plan.svg", "floor_plan.png"),  # with matplotlib
)
_MICRO = 16  # samples that pass through dense layers together where the file names none


class CompileResult(NamedTuple):
    """A compilation, where its files are, and whether it was kept from before."""

    compiled: Compiled
    folder: pathlib.Path
    kept: bool

    def __repr__(self) -> str:
        return f"{summary(self.compiled)}report and floor plan in {self.folder}"

    def _repr_html_(self) -> str:
        folder = table("", (), [("report and floor plan in", self.folder)])
        return picture_html(self.compiled) + summary_html(self.compiled) + folder


def _section(cfg: RunConfig) -> InputSection:
    section = cfg.train_input or cfg.eval_input
    if section is None:
        message = "missing; a sample's shape comes from train_input or eval_input"
        raise ConfigError([Problem(("train_input",), message)])
    return section


def _sample_shapes(experiment: Experiment) -> dict[str, jax.ShapeDtypeStruct]:
    """One sequence, not a packed row."""
    sample = _section(experiment.cfg).model_copy(update={"use_vsl": False})
    return feature_shapes(sample, experiment.model.config, (1,))


def config_graph(experiment: Experiment) -> Graph:
    """Kernels of an experiment's loss, for one sample, without memory for weights.

    Raises:
        ConfigError: nothing to take a sample's shape from.
        CompileError: operations that no kernel does.
    """
    features = _sample_shapes(experiment)
    trains = named_leaves(trainable(experiment.model, experiment.shapes))
    selected = experiment.sparsifier.select(experiment.shapes)
    densities = {
        name: 1 - float(chosen.algorithm.sparsity(0, 0)) for name, chosen in selected.items()
    }
    loss = lambda params, features: experiment.model.loss(params, to_batch(features))[0]
    with attention_as("dense"):
        return trace(
            loss,
            experiment.shapes,
            features,
            frozen=frozenset(name for name, yes in trains if not yes),
            densities=densities,
        )


def batch_on_wafer(section: InputSection, accumulation: int = 1) -> BatchShape:
    """Lay out a step on one wafer: a micro-batch passes through dense layers together."""
    return batch_shape(section, accumulation=accumulation, most=_MICRO)


def spec_of(cfg: RunConfig, name: str = "wse2") -> WaferSpec:
    """The machine, or the part of it that ``runconfig.fabric`` names.

    Raises:
        ConfigError: a part larger than the whole.
    """
    asked, whole = cfg.runconfig.fabric, SPECS[name]
    sides = {"width": asked.width or whole.width, "height": asked.height or whole.height}
    problems = [
        Problem(("runconfig", "fabric", key), f"{side} PEs; {name} has {getattr(whole, key)}")
        for key, side in sides.items()
        if side > getattr(whole, key)
    ]
    if problems:
        raise ConfigError(problems)
    return dataclasses.replace(whole, **sides)


def options_of(experiment: Experiment, *, seed: int, spec: str = "wse2") -> CompileOptions:
    """Return what the compiler needs to know besides the graph.

    Args:
        experiment: the sections of ``runconfig``, the input and the optimizer are read.
        seed: of the placer.
        spec: 'wse2' or 'wse3'.
    """
    cfg, run = experiment.cfg, experiment.cfg.runconfig
    section = _section(cfg)
    weights = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(experiment.shapes))
    several = 0 if run.multireplica or run.num_replicas == -1 else run.num_replicas
    return CompileOptions(
        name=cfg.model["name"],
        spec=spec_of(cfg, spec),
        batch=section.batch_size,
        micro=batch_on_wafer(section).rows,
        state_bytes=experiment.moment_bytes() / max(weights, 1),
        train=cfg.train_input is not None and cfg.optimizer is not None,
        replicas=several,
        # What copies must divide; without training data they share nothing.
        portions=0 if cfg.train_input is None else experiment.portions,
        seed=seed,
    )


def _key(experiment: Experiment, options: CompileOptions, inference: Inference | None) -> str:
    """Digest what a floor plan depends on."""
    model = experiment.cfg.model
    inputs = {
        "model": model,
        "sparsity": experiment.cfg.sparsity and experiment.cfg.sparsity.section,
        "sample": _sample_shapes(experiment),
        "options": dataclasses.asdict(options),
        "inference": inference and dataclasses.asdict(inference),
        "versions": (__version__, jax.__version__, code_digest(str(model["name"]))),
    }
    text = json.dumps(inputs, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def _write(compiled: Compiled, folder: pathlib.Path, files: Sequence[str]) -> None:
    (folder / FILES[0]).write_text(report_text(compiled), encoding="utf-8")
    (folder / FILES[1]).write_text(json.dumps(to_json(compiled), indent=1), encoding="utf-8")
    floor_view(compiled).save(folder / FILES[2])
    if len(files) > 3:
        save(compiled, folder)


def _keep(compiled: Compiled, target: pathlib.Path, files: Sequence[str]) -> None:
    """Write the files beside their place and rename them into it."""
    try:
        with atomic_write(target) as folder:
            folder.mkdir()
            _write(compiled, folder, files)
    except OSError:
        if not target.is_dir():
            raise
        _LOG.debug("%s is there already", target)  # another run was quicker: its files are the same


def _read_plan(folder: pathlib.Path, files: Sequence[str]) -> Compiled | None:
    if not all((folder / name).is_file() for name in files):
        shutil.rmtree(folder, ignore_errors=True)  # perhaps nothing drew its pictures
        return None
    try:
        return from_json(json.loads((folder / FILES[1]).read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError) as error:
        _LOG.warning("%s is damaged (%s); compiling again", folder, error)
        shutil.rmtree(folder, ignore_errors=True)
        return None


def compile_experiment(
    experiment: Experiment,
    folder: str | os.PathLike[str] | None = None,
    *,
    seed: int = 0,
    spec: str = "wse2",
    inference: Inference | None = None,
) -> CompileResult:
    """Compile an experiment for the wafer and write its report and pictures into ``folder``.

    Without matplotlib no pictures are written, and a log line tells how to install it.

    Args:
        experiment: ``runconfig.num_replicas`` and ``multireplica`` are followed.
        folder: made if it is not there; None is ``model_dir/cs_HASH``.
        seed: of the placer.
        spec: 'wse2' or 'wse3'.
        inference: from ``inference_of``: a plan of a decoder's forward kernels for one token.

    Raises:
        CapacityError: it does not fit.
        CompileError: operations that no kernel does.
        ConfigError: nothing to take a sample's shape from, or a part larger than the wafer.
    """
    cfg = experiment.cfg
    files = FILES if has("matplotlib", "drawing the floor plan") else FILES[:3]
    options = options_of(experiment, seed=seed, spec=spec)
    key = _key(experiment, options, inference)
    asked = cfg.runconfig.compile_dir
    store = cache_folder() if asked is None else pathlib.Path(asked)
    cached = None if store is None else store / "floor_plans" / key
    compiled = None if cached is None else _read_plan(cached, files)
    is_cached = compiled is not None
    if compiled is None:
        compiled = _compile(experiment, options, inference)
        if cached is not None:
            _keep(compiled, cached, files)
    folder = pathlib.Path(folder or pathlib.Path(cfg.runconfig.model_dir) / f"cs_{key}")
    with made_folder(folder):
        if cached is None:
            _write(compiled, folder, files)
        else:
            for name in files:
                shutil.copyfile(cached / name, folder / name)
    return CompileResult(compiled, folder, is_cached)


def _compile(
    experiment: Experiment, options: CompileOptions, inference: Inference | None
) -> Compiled:
    graph = config_graph(experiment)
    if inference is not None:
        graph = decoding_graph(graph, inference)
        options = dataclasses.replace(
            options, batch=1, micro=1, state_bytes=0.0, train=False, sequences=inference.sequences
        )
    compiled = compile_graph(graph, options)
    check_plan(compiled, graph)
    if inference is None:
        return compiled
    mesh = fastest_mesh(experiment.model.config, inference, options.spec)
    return with_decoding(compiled, graph, inference, mesh)


def inference_of(
    experiment: Experiment, context: int | None = None, sequences: int | None = None
) -> Inference:
    """What ``wafer compile --inference`` is asked for.

    Args:
        experiment: of a decoder.
        context: tokens of a sequence; None is the input's longest.
        sequences: written at once; None is one.

    Raises:
        ConfigError: a model that writes nothing, or numbers out of range.
    """
    model = experiment.model.config
    if not isinstance(model, DecoderConfig) or not model.with_lm_head:
        message = f"{model.name!r} writes no text; --inference is for decoders with a head"
        raise ConfigError([Problem(("model", "name"), message)])
    longest = model.max_length or math.inf
    if context is None:
        given = _section(experiment.cfg).max_sequence_length
        context = int(given or model.max_position_embeddings)
    sequences = 1 if sequences is None else sequences
    problems = []
    if not 1 <= context <= longest:
        problems.append(Problem(("context",), f"{context} tokens; the model has 1 to {longest}"))
    if sequences < 1:
        problems.append(Problem(("sequences",), f"{sequences}; expected 1 or more"))
    if problems:
        raise ConfigError(problems)
    return Inference(context, sequences)
