"""Loggers of metrics outside of the run's folder: Weights & Biases and MLflow.

Their packages are imported where the run file has ``runconfig.wandb`` or ``runconfig.mlflow``, and
nowhere else. Training and evaluations of a process write into one run of theirs; a run that is
resumed in its ``model_dir`` continues it.
"""

import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Protocol

from wafer.config.runconfig import MLflow, RunSection, Wandb
from wafer.models.errors import optional
from wafer.models.user.yamlfile import YamlMapping


class Logger(Protocol):
    """Takes scalars of a step."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record scalars under their tags at a step."""
        ...

    def close(self) -> None:
        """End a run that began with this logger."""
        ...


class WandbLogger:
    """Scalars of a run of Weights & Biases; its files lie in ``folder``/wandb.

    Args:
        options: of ``wandb.init``.
        folder: ``model_dir``.
        config: the run's sections, kept with it.
    """

    def __init__(self, options: Wandb, folder: pathlib.Path, config: YamlMapping) -> None:
        wandb = optional("wandb", "runconfig.wandb")
        self._began = wandb.run is None
        self._run = wandb.run
        if self._began:
            known = folder / "wandb" / "run_id"
            given = options.model_dump(exclude={"run_id", "run_name"}, exclude_none=True)
            given |= {"id": options.run_id or _read(known), "name": options.run_name}
            self._run = wandb.init(**given, dir=str(folder), config=config)
            known.parent.mkdir(parents=True, exist_ok=True)
            known.write_text(self._run.id, encoding="utf-8")
            # The step of an evaluation may lie before the last one of the training.
            self._run.define_metric("*", step_metric="step")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record scalars under their tags at a step."""
        self._run.log({**scalars, "step": step})

    def close(self) -> None:
        """Finish the run, if it began here."""
        if self._began:
            self._run.finish()


class MLflowLogger:
    """Metrics of a run of MLflow.

    Args:
        options: where the run is kept.
        folder: ``model_dir``.
        config: the run's sections, kept with it as params.json.
    """

    def __init__(self, options: MLflow, folder: pathlib.Path, config: YamlMapping) -> None:
        self._mlflow = mlflow = optional("mlflow", "runconfig.mlflow")
        self._began = mlflow.active_run() is None
        if self._began:
            uri, name = options.tracking_uri, options.experiment
            mlflow.set_tracking_uri(uri or f"sqlite:///{folder.resolve() / 'mlflow.db'}")
            if uri is None and mlflow.get_experiment_by_name(name) is None:
                # Else its files would lie in the working directory.
                mlflow.create_experiment(name, (folder.resolve() / "mlartifacts").as_uri())
            mlflow.set_experiment(name)
            known = folder / "mlflow_run_id"
            run = mlflow.start_run(run_id=_read(known), run_name=options.run_name)
            if not known.exists():
                mlflow.log_dict(config, "params.json")
                known.write_text(run.info.run_id, encoding="utf-8")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record scalars under their tags at a step."""
        # Tags of harness tasks with a filter have a comma, which MLflow refuses.
        named = {re.sub(r"[^\w/.\- ]", "_", tag): float(x) for tag, x in scalars.items()}
        self._mlflow.log_metrics(named, step=step)

    def close(self) -> None:
        """End the run, if it began here."""
        if self._began:
            self._mlflow.end_run()


def loggers(keys: RunSection, folder: pathlib.Path, config: YamlMapping) -> Iterator[Logger]:
    """Begin, or join, the runs that ``runconfig`` asks for.

    Args:
        keys: ``runconfig``.
        folder: ``model_dir``.
        config: the run's sections.

    Raises:
        MissingPackageError: a package is not installed.
    """
    if keys.wandb is not None:
        yield WandbLogger(keys.wandb, folder, config)
    if keys.mlflow is not None:
        yield MLflowLogger(keys.mlflow, folder, config)


def _read(path: pathlib.Path) -> str | None:
    return path.read_text(encoding="utf-8").strip() if path.exists() else None
