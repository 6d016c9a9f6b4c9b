"""The engine that trains dense nets on the fabric simulator, cycle by cycle.

A step runs on PEs (`wafer.engines.fabric.network`): forward, loss, backward, update. First states,
scores and checkpoints are the resident engine's, so that a run may move from one to the other.
Between steps the weights stay in the PEs' memory; what the training state holds is the host's copy.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from wafer.compiler.experiment import batch_on_wafer, compile_experiment
from wafer.engines.base import Engine, Features, Fill
from wafer.engines.fabric import network
from wafer.engines.resident import Resident, make as make_resident
from wafer.errors import Problem
from wafer.experiment import Experiment
from wafer.fabric.errors import FabricError
from wafer.models.base import Aux
from wafer.optim.chain import learning_rates
from wafer.optim.sections import SGD
from wafer.optim.step import Metrics, TrainState, norms
from wafer.spec import WSE2, Region

_LOG = logging.getLogger(__name__)


class OnPes(Engine):
    """Dense layers with ReLU, cross-entropy and SGD, a rectangle of PEs each.

    Args:
        resident: of the same run; makes first states and scores.
        regions: of the layers, from a floor plan.
        micro: samples of a micro-batch.
        micro_batches: of an optimizer step.
        momentum: of SGD; 0 keeps no velocity.
    """

    def __init__(
        self,
        resident: Resident,
        regions: Sequence[Region],
        *,
        micro: int,
        micro_batches: int,
        momentum: float,
    ) -> None:
        # Scores are computed where first states are made; the PEs' program is ``net.program``.
        self.sparsifier, self.mesh = resident.sparsifier, resident.mesh
        self.programs = resident.programs
        self._host, self._regions = resident, tuple(regions)
        self._micro, self._count, self._momentum = micro, micro_batches, momentum
        # The optimizer itself counts its steps and says its rate; moments come from the PEs.
        zeros = lambda params: jax.tree.map(jnp.zeros_like, params)
        self._count_step = jax.jit(
            lambda s, params: resident.tx.update(zeros(params), s, params)[1]
        )
        self._rate = jax.jit(lambda opt_state: learning_rates(opt_state)[0])
        self._net: network.Net | None = None
        self._is_logged = False
        # What lies in the PEs, and the parameters of the training state it belongs to.
        self._held: tuple[Any, network.Memory] | None = None

    @property
    def net(self) -> network.Net:
        """The network on its PEs.

        Raises:
            RuntimeError: there is no state yet whose masks it could be built for.
        """
        if self._net is None:
            raise RuntimeError("fabric: call init (or rebuild) first; masks decide the program")
        return self._net

    def init(self, key: Array) -> TrainState:
        """See ``Engine``."""
        return self._adopt(self._host.init(key))

    def rebuild(self, state: TrainState, fill: Fill) -> TrainState:
        """See ``Engine``."""
        return self._adopt(self._host.rebuild(state, fill))

    def _adopt(self, state: TrainState) -> TrainState:
        """Write the program for a state's masks, which stay: only static sparsity comes here."""
        params, _ = self.sparsifier.expand(state.params, state.opt_state, state.sparse)
        masks = self.sparsifier.masks(state.sparse)
        layers = []
        for stage in self._host.model.stages:
            mask = masks.get(f"{stage.name}/kernel")
            kept = None if mask is None else np.asarray(mask)
            fan_in, fan_out = params[stage.name]["kernel"].shape
            layers.append(network.DenseLayer(stage.name, fan_in, fan_out, kept))
        self._held = None
        # A resumed run's masks stay.
        held = lambda stack: [None if s.mask is None else s.mask.tobytes() for s in stack]
        if self._net is not None and held(self._net.layers) == held(layers):
            return state
        # The whole wafer: lanes between the regions lie outside the part that was asked for.
        self._net = network.build(
            layers,
            self._regions,
            batch=self._micro,
            micro_batches=self._count,
            momentum=self._momentum,
        )
        return state

    def step(
        self, state: TrainState, features: Features, *, topology: bool = True
    ) -> tuple[TrainState, Metrics]:
        """See ``Engine``; metrics also hold "fabric/cycles" and what goes with it."""
        del topology  # masks are static
        net, sparsifier = self.net, self.sparsifier
        params, opt_state = sparsifier.expand(state.params, state.opt_state, state.sparse)
        memory = self._memory(state, params, opt_state)
        opt_state = self._count_step(opt_state, params)
        images, labels = _rows(features)
        rate = float(self._rate(opt_state))
        memory, report = network.step(net, memory, images, labels, learning_rate=rate)
        self._log_first_step(report.cycles, len(images))
        if self._momentum:
            opt_state = optax.tree.set(opt_state, trace=network.read(net, memory, "velocities"))
        sparse, params, opt_state = sparsifier.update(
            state.sparse, network.params(net, memory), {}, opt_state, topology=False
        )
        after = state._replace(
            step=state.step + 1, params=params, opt_state=opt_state, sparse=sparse
        )
        after = self._host.replicate(after)
        self._held = (after.params, memory)
        return after, self._metrics(state, after, memory, report, len(images))

    def _memory(self, state: TrainState, params: PyTree, opt_state: PyTree) -> network.Memory:
        """What lies in the PEs already, or a state's arrays written into them."""
        if self._held is not None and self._held[0] is state.params:
            return self._held[1]
        velocities = optax.tree.get(opt_state, "trace") if self._momentum else None
        return network.init(self.net, params, velocities)

    def _metrics(
        self,
        before: TrainState,
        after: TrainState,
        memory: network.Memory,
        report: network.NetworkStep,
        samples: int,
    ) -> Metrics:
        grads = network.read(self.net, memory, "gradients")
        metrics = {
            "loss": report.loss,
            "tokens": samples,
            "grad_norm": optax.tree.norm(grads),
            "loss_scale": before.scale.loss_scale,
            "fabric/cycles": report.cycles,
            "fabric/cycles_per_sample": report.cycles / samples,
            "fabric/predicted_cycles_per_sample": self.net.predicted / samples,
            "fabric/busiest_pe": report.busy.max() / report.cycles,
        }
        if self._host.summaries:
            metrics |= norms("per_layer_grad_norm", grads)
            metrics |= norms("per_layer_params_norm", after.params)
        return {name: jnp.float32(value) for name, value in metrics.items()}

    def _log_first_step(self, cycles: int, samples: int) -> None:
        """Log the first step's cycles beside those of the closed forms."""
        if self._is_logged:
            return
        self._is_logged = True
        net = self.net
        seconds = cycles / WSE2.clock_hz
        _LOG.info(
            "Fabric: %d PEs in %d regions; a step takes %s cycles, %.0f per sample (closed form: "
            "%.0f, %+.1f %%), %s samples/s at %.2f GHz",
            sum(r.width * r.height for r in net.regions),
            len(net.regions),
            f"{cycles:,}",
            cycles / samples,
            net.predicted / samples,
            100 * (cycles / net.predicted - 1),
            f"{samples / seconds:,.0f}",
            WSE2.clock_hz / 1e9,
        )

    def predict(
        self, state: TrainState, features: Features, names: tuple[str, ...]
    ) -> tuple[Aux, dict[str, Array]]:
        """See ``Engine``; on the host."""
        return self._host.predict(state, features, names)


def _rows(features: Features) -> tuple[np.ndarray, np.ndarray]:
    """[N, pixels] images and [N] labels of a whole step, in the order of the micro-batches."""
    if not np.asarray(features["attention_mask"]).all():
        raise FabricError("a batch with empty rows; PEs train on whole ones (drop_last_batch)")
    images = np.asarray(features["images"])
    labels = np.asarray(features["labels"]).reshape(-1)
    return images.reshape(len(labels), -1), labels


def problems(experiment: Experiment) -> Iterator[Problem]:
    """What the PE programs do not do, by the keys that ask for it."""
    cfg, model = experiment.cfg, experiment.model
    if not model.config.is_dense_stack:
        message = (
            "fabric runs stacks of dense layers (model.name: fc_mnist); other kernels have a cost "
            "in `wafer compile`, no PE program. Use resident, weight_streaming or pipelined"
        )
        yield Problem(("runconfig", "execution_strategy"), message)
        return
    yield from _model(model.config)
    yield from _optimizer(cfg.optimizer)
    if cfg.runconfig.num_csx > 1:
        message = f"{cfg.runconfig.num_csx}: one wafer is simulated; use 1"
        yield Problem(("runconfig", "num_csx"), message)
    if any(algorithm.dynamic for _, algorithm in experiment.sparsifier.groups):
        message = "the PEs' program is written for one pattern; use static, or another execution"
        yield Problem(("sparsity", "algorithm"), message)


def _model(model: Any) -> Iterator[Problem]:
    if model.activation_fn != "relu":
        message = f"{model.activation_fn!r}: the PEs have relu"
        yield Problem(("model", "activation_fn"), message)
    if model.dropout > 0:
        yield Problem(("model", "dropout"), f"{model.dropout}: PEs draw no masks; use 0.0")
    if model.dtype != jnp.float32:
        message = f"activations of {model.dtype}: the PEs compute in float32; drop it"
        key = "mixed_precision" if model.compute_dtype is None else "compute_dtype"
        yield Problem(("model", key), message)


def _optimizer(section: Any) -> Iterator[Problem]:
    """SGD with or without momentum, one rate for all."""
    if section is None:
        return
    if not isinstance(section, SGD):
        message = f"{section.optimizer_type!r}: the PEs update by SGD, with or without momentum"
        yield Problem(("optimizer", "optimizer_type"), message)
        return
    decays = any(getattr(entry, "learning_rate", None) != 0 for entry in section.weight_decay)
    tagged = any(entry.param_group_tags for entry in section.learning_rate)
    asked = {
        "dampening": section.dampening != 0,
        "nesterov": section.nesterov,
        "maximize": section.maximize,
        "weight_decay": decays,
        "max_gradient_norm": section.max_gradient_norm is not None,
        "max_gradient_value": section.max_gradient_value is not None,
        "adjust_learning_rate": bool(section.adjust_learning_rate),
        "learning_rate": tagged,
        "selective_grad": bool(section.selective_grad),
        "loss_scaling_factor": section.loss_scaling_factor == "dynamic",
    }
    for key, is_asked in asked.items():
        if is_asked:
            message = "not in the PEs' update (w -= rate (momentum v + g), one rate for all)"
            yield Problem(("optimizer", key), f"{message}; drop it, or use another execution")


def make(experiment: Experiment) -> Engine:
    """Compile the floor plan, write its report and pictures, and make the engine.

    Scores are the host's: a run that only evaluates needs no PEs.

    Raises:
        CapacityError: the net does not fit the wafer, or the part of it that was asked for.
    """
    cfg, resident = experiment.cfg, make_resident(experiment)
    if "train" not in cfg.runconfig.mode:
        return resident
    result = compile_experiment(experiment)
    _LOG.info("Floor plan, report and pictures: %s", result.folder)
    accumulation = cfg.optimizer.grad_accum_steps if cfg.optimizer else 1
    batch = batch_on_wafer(experiment.section("train"), accumulation)
    return OnPes(
        resident,
        result.compiled.plan.regions,
        micro=batch.rows,
        micro_batches=batch.micro_batches,
        momentum=getattr(cfg.optimizer, "momentum", 0.0),
    )
