"""The dry modes: ``validate_only`` (shapes, no arrays) and ``compile_only`` (XLA's figures).

For pipelined execution, and on the fabric, kernels are matched and a floor plan is compiled.
"""

import math
import pathlib
import re
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.table import Table

from wafer.compiler.experiment import compile_experiment, config_graph
from wafer.compiler.report import graph_table, summary
from wafer.config import RunConfig, unseen_lines
from wafer.config.engines import engine_row
from wafer.engines.choose import check
from wafer.engines.teacher import require_fit
from wafer.errors import CheckpointError, ConfigError, DataError, Problem
from wafer.experiment import Experiment, Part
from wafer.models.checkpoint.reader import build_stored, open_params
from wafer.models.checkpoint.stores import local_path
from wafer.models.paths import named_leaves
from wafer.models.user.trust import looking
from wafer.session.build import Run
from wafer.session.foreign import is_hf_folder, open_like
from wafer.session.logs import CONSOLE
from wafer.sparsity import Selected
from wafer.sparsity.stored.inference import forward_of
from wafer.vendor.mdl.weights import check_mdl

_MIB = 2**20
_LISTED = 200  # rows of a table that a user still reads
_ROWS = 64  # that validation reads of each input, from all over it


def validate_only(cfg: RunConfig) -> None:
    """Check everything that can be checked without arrays, and list what will be sparse.

    Folders of data that are there are opened, and rows from all over them read. Of a file that
    names code which is not trusted, each other section is checked by itself.

    Raises:
        ConfigError: parts of the configuration that do not go together.
        DataError: rows that are not what the configuration says.
    """
    if cfg.unseen:
        for line in filter(None, [*unseen_lines(cfg), _teacher_line(cfg)]):
            CONSOLE.print(line, markup=False, highlight=False)
        CONSOLE.print("All else is valid, section by section. Nothing was run (--validate_only).")
        return
    experiment = Experiment.from_config(cfg)
    check(experiment)
    leaves = named_leaves(experiment.shapes)
    selected = experiment.sparsifier.select(experiment.shapes)
    total = sum(math.prod(leaf.shape) for _, leaf in leaves)
    sparse = sum(math.prod(chosen.shape) for chosen in selected.values())
    if selected:
        CONSOLE.print(_sparse_table(selected))
    CONSOLE.print(
        f"{cfg.model['name']}: {total:,} parameters in {len(leaves)} arrays, {sparse:,} of them "
        f"({sparse / total:.1%}) in {len(selected)} sparsified; optimizer state "
        f"{experiment.moment_bytes() / _MIB:.1f} MiB"
    )
    if makes_floor_plan(cfg):
        graph = config_graph(experiment)
        CONSOLE.print(graph_table(graph, cfg.model["name"]), markup=False, highlight=False)
    lines = (
        _start_line(experiment),
        _teacher_line(cfg, experiment),
        _data_line(experiment, "train"),
        _data_line(experiment, "eval"),
    )
    for line in filter(None, lines):
        CONSOLE.print(line, markup=False, highlight=False)
    CONSOLE.print("The configuration is valid. Nothing was run (--validate_only).")


def _sparse_table(selected: Mapping[str, Selected]) -> Table:
    """List what becomes sparse; in a deep model layers that are alike share a row."""
    table = Table("parameter", "shape", "algorithm", "first level", title="Sparsified parameters")
    deep = len(selected) > _LISTED
    algorithms = {id(c.algorithm): c.algorithm for c in selected.values()}
    levels = {key: float(algorithm.sparsity(0, 0)) for key, algorithm in algorithms.items()}
    rows: Counter[tuple[str, ...]] = Counter()
    for name, chosen in selected.items():
        shape = "x".join(map(str, chosen.shape))
        shown = re.sub(r"\d+", "*", name) if deep else name
        level = f"{levels[id(chosen.algorithm)]:.1%}"
        rows[shown, shape, type(chosen.algorithm).__name__, level] += 1
    for (name, *rest), count in rows.items():
        table.add_row(f"{name} ({count} x)" if count > 1 else name, *rest)
    return table


def _start_line(experiment: Experiment) -> str:
    """Say what the run begins from; '' where nothing is named. Values are not read.

    Raises:
        CheckpointError: no checkpoint, or one of another model.
    """
    start = experiment.cfg.runconfig.checkpoint_path
    if start is None:
        return ""
    path = local_path(start)
    if not path.exists():
        raise CheckpointError(f"checkpoint_path: {path}: no such file or folder")
    if path.suffix == ".mdl" or is_hf_folder(path):
        check = check_mdl if path.suffix == ".mdl" else open_like
        check(path, experiment.model)
        return f"checkpoint_path: {path} fits the model"
    stored = {name: leaf.shape for name, leaf in open_params(path)[1].items()}
    own = {name: leaf.shape for name, leaf in named_leaves(experiment.shapes)}
    wrong = [name for name in own if name in stored and stored[name] != own[name]]
    if wrong:
        raise CheckpointError(
            f"{path}: {wrong[0]} is {stored[wrong[0]]}, the run file's `model` has "
            f"{own[wrong[0]]} ({len(wrong)} arrays of another shape)"
        )
    return f"checkpoint_path: {path}, {len(stored)} arrays, {len(own.keys() & stored)} of them ours"


def _teacher_line(cfg: RunConfig, experiment: Experiment | None = None) -> str:
    """Say whether the teacher fits; '' where there is none. Values are not read.

    Raises:
        CheckpointError: no checkpoint.
        ConfigError: it does not fit the model of the experiment.
    """
    section = cfg.distillation
    if section is None or not section.weight or "train" not in cfg.runconfig.mode:
        return ""
    path = pathlib.Path(section.checkpoint_path)
    record, params = open_params(path)
    with looking() as refused:
        try:
            model, _ = build_stored(record, path, params), forward_of(record, path)
        except ValueError:
            if not refused:
                raise
            return (
                f"distillation: not checked: {path} names code, {refused[-1]!r}, which is not "
                "imported (--trust_code imports it)"
            )
    if experiment is None:
        return f"distillation: {path} is a {model.config.name}"
    require_fit(experiment, model)
    return f"distillation: {path}, a {model.config.name}, fits the model"


def _data_line(experiment: Experiment, part: Part) -> str:
    """Say what lies in the folders of an input section; '' where it names none."""
    cfg = experiment.cfg
    section: Any = cfg.train_input if part == "train" else cfg.eval_input
    folders = _folders(section)
    if not folders or part not in cfg.runconfig.mode:
        return ""
    missing = [folder for folder in folders if not pathlib.Path(folder).exists()]
    if missing:
        return f"{part}_input: not looked at, {missing[0]} is not there"
    with tempfile.TemporaryDirectory() as kept:
        data = experiment.dataset(part, kept)
        source = data.source
        picked = np.unique(np.linspace(0, len(source) - 1, _ROWS).astype(int))
        rows = [data.example(int(i)) for i in picked]
    ids = [int(row["input_ids"].max()) for row in rows if "input_ids" in row]
    largest = f", ids up to {max(ids):,}" if ids else ""
    return f"{part}_input: {len(source):,} examples; {len(rows)} of them are sound{largest}"


def _folders(section: object) -> list[str]:
    """List the folders that an input section or the parts of its mixture name."""
    parts = (section, *(getattr(section, "mixture", None) or ()))
    keys = ("data_dir", "src_data_dir", "img_data_dir", "state_dir")
    named = [getattr(part, key, None) or () for part in parts for key in keys]
    return [folder for own in named for folder in ((own,) if isinstance(own, str) else own)]


def makes_floor_plan(cfg: RunConfig) -> bool:
    """Whether the engine that the file names runs on a floor plan of the wafer."""
    name = cfg.runconfig.execution_strategy
    return name is not None and engine_row(name).floor_plan


def floor_plan(cfg: RunConfig) -> None:
    """Compile a run for the wafer: report and pictures in ``model_dir/cs_HASH``.

    Raises:
        CapacityError: it does not fit.
        CompileError: operations that no kernel does.
        ConfigError: the engine does not do what the file asks for.
    """
    experiment = Experiment.from_config(cfg)
    check(experiment)
    result = compile_experiment(experiment)
    CONSOLE.print(summary(result.compiled), markup=False, highlight=False)
    CONSOLE.print(
        f"Report and floor plan are in {result.folder}. Nothing was run (--compile_only)."
    )


def compile_only(job: Run) -> None:
    """Lower and compile the training step, and report what XLA says of it.

    Raises:
        DataError: there is no training data to take shapes from.
        ConfigError: the run streams its weights: no one program is a step.
    """
    if not job.engine_info.whole_step_program:
        message = "a streamed step is a program per kind of layer; `wafer plan` has its figures"
        raise ConfigError([Problem(("runconfig", "compile_only"), message)])
    data, shape = job.train, job.experiment.batch("train")
    if data is None:
        raise DataError("compile_only compiles the training step; the file has no train_input")
    loader = data.loader(shape.samples, num_epochs=None)
    rows = next(loader)
    loader.close()
    features: Any = job.place_batch(rows, shape)
    state = job.warmup.first_state()
    start = time.perf_counter()
    engine: Any = job.engine  # with the program of a whole step
    compiled = engine.compiled_step(state, features, topology=False)
    seconds = time.perf_counter() - start
    memory: Any = compiled.memory_analysis()
    cost: Any = compiled.cost_analysis()
    flops = float((cost or {}).get("flops", math.nan))
    tokens = int(rows["attention_mask"].astype(bool).sum())  # images count as one each
    CONSOLE.print(f"Compiled the training step in {seconds:.1f} s.")
    CONSOLE.print(
        f"  {flops / 1e9:.2f} GFLOP per step of {tokens:,} tokens (as XLA counts: loops once)"
    )
    for key in ("argument", "output", "temp"):
        size = getattr(memory, f"{key}_size_in_bytes")
        CONSOLE.print(f"  {key:<9}{size / _MIB:9.1f} MiB")
    CONSOLE.print("Nothing was run (--compile_only).")
