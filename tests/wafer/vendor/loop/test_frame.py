"""The frame around a step in the vendor's programs: groups, optimizers, checkpoints, modes."""

import os
import pathlib
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers import gigagpt
from helpers.paths import ROOT

import wafer.loop as cstorch

TINY = gigagpt.GPTConfig(max_position_embeddings=8, vocab_size=16, depth=1, heads=2, width=8)
ROWS = np.random.default_rng(0).integers(0, 16, (6, 4, 9)).astype(np.int32)


def batches(count=6):
    return [(rows[:, :-1], rows[:, 1:]) for rows in ROWS[:count]]


def train(folder, steps, start=None, num_csx=1):
    """gigaGPT's statements in their order; returns the losses by step and the model."""
    systems = cstorch.distributed.ClusterConfig(num_csx=num_csx)
    backend = cstorch.backend("CSX", cluster_config=systems)
    with backend.device:
        model = gigagpt.GPTModel(TINY)
    compiled_model = cstorch.compile(model, backend)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.5}, {"params": others, "weight_decay": 0.0}]
    optimizer = cstorch.optim.AdamW(
        groups, lr=0.1, weight_decay=0.5, correct_bias=True, betas=(0.9, 0.95), eps=1e-8
    )
    linear = cstorch.optim.lr_scheduler.LinearLR(
        optimizer, initial_learning_rate=0.0, end_learning_rate=0.1, total_iters=2
    )
    constant = cstorch.optim.lr_scheduler.ConstantLR(optimizer, val=0.1, total_iters=9)
    lr_scheduler = cstorch.optim.lr_scheduler.SequentialLR(
        optimizer, schedulers=[linear, constant], milestones=[2]
    )
    all_params = (p for group in optimizer.param_groups for p in group["params"])
    step_before = 0
    if start is not None:
        state = cstorch.load(start)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        lr_scheduler.load_state_dict(state["lr_scheduler"])
        step_before = state["global_step"]
    losses, rates = {}, []

    @cstorch.checkpoint_closure
    def save_checkpoint(step):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"lr_scheduler": lr_scheduler.state_dict(), "global_step": step}
        cstorch.save(state, folder / f"checkpoint_{step}.mdl")

    @cstorch.trace
    def training_step(batch):
        input_ids, labels = batch
        loss = compiled_model(input_ids, labels)
        cstorch.backward(loss)
        cstorch.nn.utils.clip_grad_norm_(list(all_params), 1.0)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        return loss

    @cstorch.step_closure
    def log_loss(loss, step):
        losses[step] = loss.item()
        rates.append(lr_scheduler.get_last_lr())
        assert executor.profiler.rate_tracker.total_samples == 4 * (step - step_before)

    loader = cstorch.utils.data.DataLoader(lambda: batches()[step_before:])
    executor = cstorch.utils.data.DataExecutor(
        loader, num_steps=steps - step_before, checkpoint_steps=3
    )
    for step, batch in enumerate(executor, start=step_before + 1):
        loss = training_step(batch)
        log_loss(loss, step)
        save_checkpoint(step)
    if not step_before:  # the rates that the next step will use, one for each group
        assert rates[:3] == [[pytest.approx(r)] * 2 for r in (0.05, 0.1, 0.1)]
    return losses, model


@pytest.mark.slow
def test_gigagpts_frame_is_optax_with_two_groups(tmp_path):
    losses, model = train(tmp_path, 3)
    reference = gigagpt.GPTModel(TINY)
    graph, params, rest = nnx.split(reference, nnx.Param, ...)
    tx = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(0.9, 0.95),
        optax.add_decayed_weights(0.5, lambda p: jax.tree.map(lambda w: w.ndim > 1, p)),
        optax.scale_by_schedule(lambda t: -jnp.minimum(0.05 * t, 0.1)),
    )
    state = tx.init(params)
    loss_of = jax.jit(
        jax.value_and_grad(lambda p, x, y: nnx.merge(graph, p, rest, copy=True)(x, y))
    )
    for step, batch in enumerate(batches(3), start=1):
        value, grads = loss_of(params, *batch)
        assert losses[step] == pytest.approx(float(value), rel=1e-5)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    got = model.state_dict()["ln_f"]
    for name, value in nnx.to_pure_dict(params)["ln_f"].items():
        np.testing.assert_allclose(got[name], value, atol=1e-5)


@pytest.mark.slow
def test_gigagpts_frame_continues_and_shares_batches(tmp_path):
    whole, _ = train(tmp_path, 6)
    rest, _ = train(tmp_path, 6, start=tmp_path / "checkpoint_3.mdl")
    assert rest == {step: pytest.approx(whole[step], abs=1e-6) for step in (4, 5, 6)}
    two, _ = train(tmp_path / "two", 3, num_csx=2)
    assert two == {step: pytest.approx(whole[step], rel=1e-4) for step in (1, 2, 3)}


@pytest.mark.slow
@pytest.mark.skipif("GIGAGPT" not in os.environ, reason="a checkout of Cerebras/gigaGPT")
def test_the_published_program_runs_with_twelve_changed_lines(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    changed = gigagpt.port(pathlib.Path(os.environ["GIGAGPT"]), tmp_path)
    assert len(changed) <= 12, changed
    for name in ("train", "val"):
        (np.arange(2000) % 16).astype(np.uint16).tofile(tmp_path / f"{name}.bin")
    keys = ["max_position_embeddings: 8", "vocab_size: 16", "depth: 1", "heads: 2", "width: 8"]
    keys += ["dataset: .", "batch_size: 4", "sequence_length: 8", "num_steps: 6"]
    keys += ["checkpoint_steps: 3", "warmup_steps: 2", "backend: CSX", "learning_rate: 1.0e-2"]
    (tmp_path / "tiny.yaml").write_text("\n".join(keys))
    paths = f"{ROOT}:{ROOT / 'tests'}:{os.environ.get('PYTHONPATH', '')}"
    said = ""
    for words in (
        ["train.py", "tiny.yaml"],
        ["train.py", "tiny.yaml", "--checkpoint_path", "out/checkpoint_6.mdl", "--num_steps", "8"],
        ["eval.py", "tiny.yaml", "--checkpoint_path", "out/checkpoint_8.mdl"],
    ):
        run = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        said += run.stderr
    assert "Step=8, Loss=" in said
    assert "Average eval loss" in said


class Line(nn.Module):
    """Two weights and a bias, which see the batch at once."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1, name="dense")(x)[:, 0]


class Momentum(cstorch.optim.Optimizer):
    """A user's optimizer, as one writes it for torch."""

    def __init__(self, params, lr=1e-3, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    def preinitialize(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["velocity"] = jnp.zeros_like(p.value)

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                velocity = group["momentum"] * self.state[p]["velocity"] + p.grad
                self.state[p]["velocity"] = velocity
                p.value = p - group["lr"] * velocity


def fit(make, steps=4, state=None, scale=None):
    """Fit a line with a schedule; returns the parameters and what a checkpoint would hold."""
    cstorch.backend(seed=5)
    model = cstorch.compile(Line())
    optimizer = make(model.parameters())
    scheduler = cstorch.optim.lr_scheduler.StepLR(
        optimizer, initial_learning_rate=0.1, step_size=2, gamma=0.5
    )
    scaler = cstorch.amp.GradScaler("dynamic", init_scale=4.0)
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])

    @cstorch.trace
    def step(x, y, factor):
        loss = ((model(x) - y) ** 2).mean() * factor
        cstorch.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()

    done = 0 if state is None else state["scheduler"]["step"]
    for i in range(done, steps):
        x = np.random.default_rng(i).normal(size=(8, 2)).astype(np.float32)
        step(x, x @ np.float32([1, -2]) + 1, jnp.float32(scale[i] if scale else 1))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return state | {"scheduler": scheduler.state_dict()}


def test_a_users_own_optimizer_class():
    own = fit(Momentum)
    ours = fit(lambda params: cstorch.optim.SGD(params, lr=0.1, momentum=0.9))
    for name, value in ours["model"]["dense"].items():
        np.testing.assert_allclose(own["model"]["dense"][name], value, atol=1e-6)
    half = fit(Momentum, steps=2)
    again = fit(Momentum, state=half)
    np.testing.assert_allclose(
        again["model"]["dense"]["kernel"], own["model"]["dense"]["kernel"], atol=1e-7
    )
    skipped = fit(Momentum, steps=1, scale=[np.inf])
    untouched = fit(Momentum, steps=1, scale=[0.0])
    for name, value in untouched["model"]["dense"].items():
        np.testing.assert_array_equal(skipped["model"]["dense"][name], value)
    assert not np.any(skipped["optimizer"]["dense"]["kernel"]["velocity"])


class LinenNorm(nn.Module):
    """A norm with running statistics."""

    @nn.compact
    def __call__(self, x, train):
        return nn.BatchNorm(use_running_average=not train, momentum=0.9, name="bn")(x)


class NnxNorm(cstorch.nn.Module):
    """The same, of nnx."""

    def __init__(self):
        self.bn = nnx.BatchNorm(3, momentum=0.9, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.bn(x)


@pytest.mark.parametrize("make", [LinenNorm, NnxNorm])
def test_running_statistics_change_in_training_alone(make):
    cstorch.backend()
    model = cstorch.compile(make())
    step = cstorch.trace(model)
    x = np.float32([[0, 1, 2], [2, 3, 4]])
    np.testing.assert_allclose(step(x), [[-1] * 3, [1] * 3], atol=1e-4)
    running = model.state_dict()["running_state"]
    mean = next(leaf for path, leaf in jax.tree.leaves_with_path(running) if "mean" in str(path))
    np.testing.assert_allclose(mean, 0.1 * x.mean(axis=0), atol=1e-6)
    kept = model.state_dict()
    model.eval()
    want = (x - 0.1 * x.mean(axis=0)) / np.sqrt(0.9 + 0.1 * x.var(axis=0) + 1e-5)
    np.testing.assert_allclose(step(x), want, atol=1e-5)
    np.testing.assert_allclose(model(x), want, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, kept, model.state_dict())
    again = cstorch.compile(make())
    again.load_state_dict(kept)  # a Linen module takes it with its first input
    cstorch.trace(again.eval())(x)
    jax.tree.map(np.testing.assert_array_equal, kept, again.state_dict())


@pytest.mark.parametrize("mode", ["compile_only", "validate_only"])
def test_a_step_that_is_compiled_and_not_run(mode, caplog):
    backend = cstorch.backend("CSX", **{mode: True})
    model = cstorch.compile(Line(), "CSX" if mode == "" else backend)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=1.0)
    seen = []

    @cstorch.trace
    def step(x):
        loss = model(x).sum()
        cstorch.backward(loss)
        optimizer.step()
        return loss

    show = cstorch.step_closure(seen.append)
    loader = cstorch.DataLoader(lambda: [np.ones((4, 2), np.float32)] * 3)
    caplog.set_level("INFO")
    for count, batch in enumerate(cstorch.DataExecutor(loader), start=1):
        if count == 1:
            loss = step(batch)
            before = model.state_dict()
            show(loss)
    assert (count, seen, loss.shape) == (1, [], ())
    np.testing.assert_array_equal(model.state_dict()["dense"]["kernel"], before["dense"]["kernel"])
    assert "nothing ran" in caplog.text


def test_half_types_by_the_vendors_functions():
    cstorch.backend("CPU")
    assert not cstorch.use_cs()
    assert cstorch.amp.get_floating_point_dtype_str() == "float32"
    model = cstorch.compile(models_dense(), "CSX")
    assert cstorch.use_cs()
    x = np.float32([[1 + 2**-9]])
    exact = float(model(x)[0, 0])
    try:
        cstorch.amp.set_half_dtype("bfloat16")
        cstorch.amp.enable_mixed_precision()
        assert cstorch.amp.get_floating_point_dtype() == jnp.bfloat16
        with cstorch.amp.autocast():
            half = model(x)
            with cstorch.amp.disable_casts():
                assert float(model(x)[0, 0]) == exact
    finally:
        cstorch.amp.set_half_dtype("float16")
        cstorch.amp.enable_mixed_precision(enable=False)
    assert half.dtype == jnp.float32
    assert (exact, float(half[0, 0])) == (1 + 2**-9, 1.0)
    with pytest.raises(ValueError, match="'cbfloat16', expected float16 or bfloat16; use bfloat16"):
        cstorch.amp.set_half_dtype("cbfloat16")


def models_dense():
    """An nnx layer that is the identity."""
    ones = nnx.initializers.ones
    return nnx.Linear(1, 1, use_bias=False, kernel_init=ones, rngs=nnx.Rngs(0))


def test_release_18s_configure_and_summaries():
    backend = cstorch.configure(seed=3, checkpoint_steps=2, num_csx=2, model_dir="x")
    assert (backend.seed, backend.cluster.num_csx) == (3, 2)
    saved, written = [], []
    keep = cstorch.checkpoint_closure(saved.append)

    class Writer:
        def add_scalar(self, name, value, step):
            written.append((name, value, step))

    loader = cstorch.DataLoader(lambda: [np.ones(2, np.float32)] * 5)
    for step, _ in enumerate(cstorch.DataExecutor(loader), start=1):
        assert cstorch.current_executor().cs_config.num_csx == 2
        cstorch.scalar_summary("norm", 0.5 * step)
        keep(step)
    cstorch.save_summaries(Writer(), 5)
    assert (saved, written) == ([2, 4, 5], [("norm", 2.5, 5)])
    with pytest.raises(TypeError, match="num_csxx"):
        cstorch.configure(num_csxx=2)


def test_errors_of_groups_and_parameters():
    cstorch.backend()
    model, other = cstorch.compile(models_dense()), cstorch.compile(models_dense())
    first = list(model.parameters())
    with pytest.raises(
        ValueError, match=r"group has betas; groups may differ in lr and weight_decay"
    ):
        cstorch.optim.AdamW([{"params": first, "betas": (0, 0)}])
    with pytest.raises(ValueError, match="expected parameters of one compiled model, found 2"):
        cstorch.optim.SGD([*first, *other.parameters()])
    with pytest.raises(ValueError, match=r"found no parameter \(an iterator that has ended"):
        cstorch.nn.utils.clip_grad_norm_([], 1.0)
    two = cstorch.compile(gigagpt.GPTModel(TINY))
    with pytest.raises(ValueError, match=r"no group has .* add one with lr 0.0"):
        cstorch.optim.SGD([{"params": list(two.parameters())[:1]}])
    with pytest.raises(RuntimeError, match=r"GPTModel is not compiled; call compile"):
        gigagpt.GPTModel(TINY).parameters()
