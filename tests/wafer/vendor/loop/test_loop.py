"""The vendor's loops, line by line: the documents' examples, and what their statements mean."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import wafer.loop as cstorch
import wafer.loop.experimental as older
from wafer import models, sparsity
from wafer.loop.tracing.tape import differentiate, evaluate
from wafer.models.families.fc_mnist import image_batch


class MNIST(nn.Module):
    """The network of the documents' first example."""

    @nn.compact
    def __call__(self, inputs):
        x = nn.relu(nn.Dense(16, name="fc1")(inputs))
        return nn.log_softmax(nn.Dense(10, name="fc2")(x))


def nll_loss(outputs, targets):
    return -jnp.take_along_axis(outputs, targets[:, None], axis=1).mean()


def get_digits(batch_size, batches=6):
    """Rows of 64 pixels whose class is where their light is; the same in every pass."""
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 10, (batches, batch_size))
    inputs = rng.normal(0, 0.3, (batches, batch_size, 64)).astype(np.float32)
    inputs[np.arange(batches)[:, None], np.arange(batch_size)[None], targets * 6] += 2
    return [(x, t.astype(np.int32)) for x, t in zip(inputs, targets, strict=True)]


def train_mnist(num_csx=1, steps=12, log=None, saved=None, checkpoint_steps=5):
    """The documents' custom training loop, in their order."""
    backend = cstorch.backend("CSX", seed=1)
    with backend.device:
        model = MNIST()
    compiled_model = cstorch.compile(model, backend)
    optimizer = cstorch.optim.configure_optimizer(
        optimizer_type="SGD", params=compiled_model.parameters(), lr=0.1, momentum=0.9
    )
    lr_scheduler = cstorch.optim.configure_lr_scheduler(
        optimizer,
        learning_rate={"scheduler": "Linear", "initial_learning_rate": 0.2, "end_learning_rate": 0}
        | {"total_iters": 20},
    )
    grad_scaler = cstorch.amp.GradScaler(loss_scale="dynamic", init_scale=8.0)
    traced = []

    @cstorch.trace
    def training_step(batch):
        inputs, targets = batch
        outputs = compiled_model(inputs)
        traced.append(1)
        loss = nll_loss(outputs, targets)
        cstorch.amp.optimizer_step(loss, optimizer, grad_scaler, max_gradient_norm=1.0)
        lr_scheduler.step()
        return loss

    @cstorch.step_closure
    def log_loss(loss, step):
        log.append((step, loss.item()))

    @cstorch.checkpoint_closure
    def save_checkpoint(step):
        saved.append((step, compiled_model.state_dict(), optimizer.learning_rate.item()))

    dataloader = cstorch.DataLoader(get_digits, batch_size=8)
    executor = cstorch.DataExecutor(
        dataloader,
        num_steps=steps,
        checkpoint_steps=checkpoint_steps,
        cs_config=cstorch.CSConfig(num_csx=num_csx),
    )
    for step, batch in enumerate(executor, start=1):
        loss = training_step(batch)
        log_loss(loss, step)
        save_checkpoint(step)
    assert len(traced) == 1  # static graph: Python ran the body once
    return compiled_model


def reference(steps=12):
    """The same training as one pure function: optax and jax.grad."""
    cstorch.backend("CSX", seed=1)
    model = cstorch.compile(MNIST())
    batches = get_digits(8)
    # The first parameters are those of the loop: the same seed, the same draw.
    params = nn.meta.unbox(model.inner.init(model.backend.key(), batches[0][0]))["params"]
    tx = optax.chain(
        optax.clip_by_global_norm(1.0), optax.sgd(lambda t: 0.2 * (1 - t / 20), momentum=0.9)
    )
    state, losses = tx.init(params), []

    @jax.jit
    def step(params, state, inputs, targets):
        loss = lambda p: nll_loss(model.inner.apply({"params": p}, inputs), targets)
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    for i in range(steps):
        params, state, value = step(params, state, *batches[i % len(batches)])
        losses.append(float(value))
    return losses, params


@pytest.fixture(scope="module")
def one_system():
    log, saved = [], []
    return train_mnist(log=log, saved=saved).state_dict(), log, saved


def test_the_loop_trains_like_the_pure_function(one_system):
    params, log, _ = one_system
    losses, want = reference()
    assert [step for step, _ in log] == list(range(1, 13))
    np.testing.assert_allclose([loss for _, loss in log], losses, rtol=1e-4)
    assert losses[-1] < 0.6 * losses[0]
    for name in ("fc1", "fc2"):
        np.testing.assert_allclose(params[name]["kernel"], want[name]["kernel"], atol=1e-5)


def test_checkpoints_are_taken_when_the_step_is_done(one_system):
    params, _, saved = one_system
    assert [step for step, _, _ in saved] == [5, 10, 12]
    np.testing.assert_array_equal(saved[-1][1]["fc1"]["kernel"], params["fc1"]["kernel"])
    assert not np.array_equal(saved[0][1]["fc1"]["kernel"], params["fc1"]["kernel"])
    assert saved[0][2] == pytest.approx(0.2 * (1 - 4 / 20))  # the rate the fifth step used


@pytest.mark.parametrize("num_csx", [2, 4])
def test_the_number_of_systems_does_not_change_the_loop(one_system, num_csx):
    log, saved = [], []
    params = train_mnist(num_csx=num_csx, log=log, saved=saved).state_dict()
    np.testing.assert_allclose([x for _, x in log], [x for _, x in one_system[1]], rtol=1e-5)
    np.testing.assert_allclose(params["fc1"]["kernel"], one_system[0]["fc1"]["kernel"], atol=1e-6)


def train_sparse(api, steps=6, num_csx=1):
    """The workshop's 28 lines: RigL around a loop, in the documents' two spellings."""
    backend = cstorch.backend("CSX", seed=2)
    model = cstorch.compile(MNIST(), backend)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if api == "2.0":
        sparsity_opt = cstorch.sparse.RigLSparsityOptimizer(
            model.named_parameters(), sparsity=0.75, schedule=2
        )
    else:
        sparsity = cstorch.sparse.RigL(sparsity=0.75, update={"freq": 2})
        model.apply(sparsity)
        optimizer.apply(sparsity)
    masks = []

    @cstorch.trace
    def training_step(inputs, targets):
        if api == "2.0":
            sparsity_opt.apply_sparsity()
        outputs = model(inputs)
        loss = nll_loss(outputs, targets)
        optimizer.zero_grad()
        cstorch.backward(loss)
        optimizer.step()
        if api == "2.0":
            sparsity_opt.step()
        return loss

    dataloader = cstorch.utils.data.DataLoader(get_digits, 8)
    systems = cstorch.utils.CSConfig(num_csx=num_csx)
    executor = cstorch.utils.data.DataExecutor(dataloader, num_steps=steps, cs_config=systems)
    for inputs, targets in executor:
        training_step(inputs, targets)
        masks.append(np.asarray(model.params["fc1"]["kernel"]) != 0)
    return model.state_dict(), masks


def test_both_generations_of_the_sparse_interface_train_alike():
    old, masks = train_sparse("2.0")
    new, _ = train_sparse("2.2")
    for name in ("fc1", "fc2"):
        np.testing.assert_array_equal(old[name]["kernel"], new[name]["kernel"])
    kept = [(mask).sum() for mask in masks]
    assert max(kept) == kept[0] == 256  # a quarter of 64 x 16; new ones begin at 0
    assert (masks[0] != masks[3]).any()  # RigL moved connections
    assert np.count_nonzero(old["fc1"]["bias"]) > 0


def test_two_systems_choose_the_same_connections():
    one, masks = train_sparse("2.0", steps=4)
    two, same = train_sparse("2.0", steps=4, num_csx=2)
    for a, b in zip(masks, same, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(one["fc1"]["kernel"], two["fc1"]["kernel"], atol=1e-6)


def test_sparse_training_in_a_loop_is_the_library_around_optax():
    """The loop against ``sparsity.wrap``: same masks, same weights."""
    got, _ = train_sparse("2.2", steps=4)
    backend = cstorch.backend("CSX", seed=2)
    model = cstorch.compile(MNIST(), backend)
    batches = get_digits(8)
    params = model.inner.init(backend.key(), batches[0][0])["params"]
    sparsifier = sparsity.configure({"algorithm": "rigl", "sparsity": 0.75, "update": {"freq": 2}})
    tx = sparsity.wrap(sparsifier, optax.sgd(0.1, momentum=0.9), backend.key())
    state = tx.init(params)
    params = sparsifier.apply(params, state.sparse)
    loss = lambda p, x, t: nll_loss(model.inner.apply({"params": p}, x), t)
    for inputs, targets in batches[:4]:
        grads = jax.grad(loss)(params, inputs, targets)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(got["fc1"]["kernel"], params["fc1"]["kernel"], atol=1e-6)


FC_MNIST = {
    "name": "fc_mnist",
    "input_size": 64,
    "hidden_size": 16,
    "depth": 2,
    "initializer": {"name": "xavier_uniform"},
}


def get_images():
    mask = np.ones(8, np.int32)
    return [{"images": x, "labels": t, "attention_mask": mask} for x, t in get_digits(8)]


def run_bundle(state=None, steps=4, path=None):
    backend = cstorch.backend(seed=3)
    model = cstorch.compile(models.build(FC_MNIST), backend)
    optimizer = cstorch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95))
    algorithm = cstorch.sparse.configure(0.5)
    model.apply(algorithm)
    optimizer.apply(algorithm)
    scaler = cstorch.amp.GradScaler(loss_scale=4.0)
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        algorithm.load_state_dict(state["sparsity"])
        scaler.load_state_dict(state["grad_scaler"])
    losses = []

    @cstorch.trace
    def step(batch):
        loss = model(batch)
        cstorch.amp.optimizer_step(loss, optimizer, scaler)
        losses_of(loss)

    @cstorch.step_closure
    def losses_of(loss):
        losses.append(float(loss))

    batches = get_images()
    batches = batches[2:] if state is not None else batches
    for batch in cstorch.DataExecutor(cstorch.DataLoader(lambda: batches), num_steps=steps):
        step(batch)
    if path is not None:
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        kept |= {"sparsity": algorithm.state_dict(), "grad_scaler": scaler.state_dict()}
        cstorch.save(kept | {"global_step": steps, "config": {"model": FC_MNIST}}, path)
    return losses, model


def test_a_loop_continues_from_what_it_saved(tmp_path):
    whole, _ = run_bundle()
    first, _ = run_bundle(steps=2, path=tmp_path / "checkpoint")
    state = cstorch.load(tmp_path / "checkpoint")
    assert state["global_step"] == 2
    rest, model = run_bundle(state, steps=2)
    assert first + rest == pytest.approx(whole, abs=1e-7)
    kernel = model.state_dict()["fc_1"]["kernel"]
    assert (kernel == 0).sum() == 128
    # Outside a traced step the model computes at once, without gradients.
    batch = get_images()[0]
    assert float(model.eval()(batch)) == pytest.approx(float(model(batch)))


def test_side_effects_happen_when_values_exist():
    """Python runs the body once, with tracers; a closure sees the values of each step."""
    cstorch.backend()
    seen, traced = [], []

    @cstorch.step_closure
    def show(value, scale, *, name):
        samples = cstorch.current_backend().executor.profiler.total_samples
        seen.append((name, float(value) * scale, samples))

    @cstorch.trace
    def double(x):
        traced.append(1)
        show(x.sum() * 2, 10, name="double")
        return x * 2

    loader = cstorch.DataLoader(lambda: [np.full(4, i, np.float32) for i in range(3)])
    for step, batch in enumerate(cstorch.DataExecutor(loader)):
        assert len(seen) == step  # those of the steps before are done
        double(batch)
        assert len(seen) == step  # this step's waits for its end
    assert seen == [("double", 0.0, 4), ("double", 80.0, 8), ("double", 160.0, 12)]
    assert traced == [1]


def test_a_loop_left_by_break_runs_its_last_closures():
    cstorch.backend()
    seen = []
    note = cstorch.step_closure(seen.append)
    loader = cstorch.DataLoader(lambda: [np.ones(2, np.float32)] * 5)
    for step, _ in enumerate(cstorch.DataExecutor(loader), start=1):
        note(step)
        if step == 2:
            break
    assert seen == [1, 2]
    assert cstorch.current_backend().executor is None


def test_gradients_accumulate_until_they_are_cleared():
    cstorch.backend()
    model = cstorch.compile(models.build(FC_MNIST))
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.5)
    batches = get_images()

    @cstorch.trace
    def accumulate(batch):
        cstorch.backward(model(batch) / 2)

    @cstorch.trace
    def update():
        optimizer.step()
        optimizer.zero_grad()

    bundle, params = model.inner, model.params

    def mean(p):
        flat = [image_batch(jnp.asarray(b["images"]), jnp.asarray(b["labels"])) for b in batches]
        return (bundle.loss(p, flat[0])[0] + bundle.loss(p, flat[1])[0]) / 2

    grads = jax.grad(mean)(params)
    want = jax.tree.map(lambda w, g: np.asarray(w - 0.5 * g), params, grads)
    for batch in batches[:2]:
        accumulate(batch)
    update()
    got = model.state_dict()
    np.testing.assert_allclose(got["fc_1"]["kernel"], want["fc_1"]["kernel"], atol=1e-6)


def test_overflowing_steps_leave_no_trace_but_the_smaller_scale():
    cstorch.backend()
    model = cstorch.compile(MNIST())
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = cstorch.optim.lr_scheduler.StepLR(
        optimizer, initial_learning_rate=0.1, step_size=1, gamma=0.5
    )
    scaler = cstorch.amp.GradScaler("dynamic", init_scale=2.0**15)

    @cstorch.trace
    def step(batch, factor):
        loss = nll_loss(model(batch[0]), batch[1]) * factor
        cstorch.amp.optimizer_step(loss, optimizer, scaler)
        scheduler.step()

    (batch, *_) = get_digits(8)
    step(batch, jnp.float32(jnp.inf))
    first = model.state_dict()
    assert float(scaler.loss_scale) == 2.0**14
    assert scheduler.state_dict() == {"step": 0}
    step(batch, jnp.float32(1))
    assert scheduler.state_dict() == {"step": 1}
    assert not np.array_equal(first["fc1"]["kernel"], model.state_dict()["fc1"]["kernel"])
    assert np.isfinite(first["fc1"]["kernel"]).all()


def test_backward_twice_and_through_what_came_before():
    def body(w, x):
        y = w * x
        (first,) = differentiate((y**2).sum(), [w])
        (second,) = differentiate((y * first).sum(), [w])  # `first` is a number by then
        v = w - 0.1 * first
        (third,) = differentiate((v * x).sum(), [v])
        return first, second, third

    w, x = jnp.asarray([1.0, 2.0]), jnp.asarray([3.0, 4.0])
    first, second, third = jax.jit(lambda *a: evaluate(body, *a))(w, x)
    np.testing.assert_allclose(first, 2 * w * x * x)
    np.testing.assert_allclose(second, x * first)
    np.testing.assert_allclose(third, x)


def test_errors_teach():
    cstorch.backend()
    model = cstorch.compile(MNIST())
    with pytest.raises(TypeError, match="a Linen module, an nnx module or a model of"):
        cstorch.compile(lambda x: x)
    with pytest.raises(RuntimeError, match="inside a step decorated with @trace"):
        cstorch.backward(jnp.ones(()))
    with pytest.raises(ValueError, match=r"a loss of shape \(\), this one has \(2,\)"):
        evaluate(lambda w: differentiate(w * 2, [w]), jnp.ones(2))
    with pytest.raises(ValueError, match="called inside"):
        evaluate(jax.jit(lambda v: differentiate(v.sum(), [v])), jnp.ones(2))
    with pytest.raises(TypeError, match="DataLoader takes a function"):
        cstorch.DataLoader([1, 2])
    loader = cstorch.DataLoader(lambda: [np.ones(3)])
    with pytest.raises(ValueError, match="2 systems cannot share a batch of 3"):
        list(cstorch.DataExecutor(loader, cs_config=cstorch.CSConfig(num_csx=2)))
    with pytest.raises(ValueError, match="length is unknown"):
        cstorch.DataExecutor(cstorch.DataLoader(lambda: iter([1])))
    with pytest.raises(ValueError, match="job_labels"):
        cstorch.CSConfig(job_labels=["a b"])
    with pytest.raises(AttributeError, match="no optimizer 'AdamX'; did you mean 'Adam"):
        cstorch.optim.AdamX(model.parameters())
    with pytest.raises(TypeError, match=r"expected model.parameters\(\) of a compiled"):
        cstorch.optim.SGD([jnp.ones(2)])
    with pytest.raises(RuntimeError, match="apply the sparsity algorithm to the model first"):
        cstorch.optim.SGD(model.parameters()).apply(cstorch.sparse.Static(0.5))
    with pytest.raises(ValueError, match="excludes max_gradient_value"):
        cstorch.amp.optimizer_step(
            jnp.ones(()), None, None, max_gradient_norm=1, max_gradient_value=1
        )


def test_the_first_names_lead_to_the_same_functions():
    assert older.compile_step is cstorch.trace
    assert {name: getattr(older, name) for name in older.__all__} == {
        name: getattr(cstorch, name) for name in cstorch.__all__
    }


def test_schedulers_and_optimizers_take_the_names_of_run_files():
    compiled = cstorch.compile(MNIST(), cstorch.backend("CSX", seed=1))
    optimizer = cstorch.optim.configure_optimizer(
        "AdamW", compiled.parameters(), learning_rate=0.5, weight_decay_rate=0.25
    )
    rates = optimizer.section.learning_rate, optimizer.section.weight_decay
    assert [rate.learning_rate for (rate,) in rates] == [0.5, 0.25]
    scheduler = cstorch.optim.lr_scheduler.ConstantLR(optimizer, val=0.25)
    assert scheduler.spec == {"scheduler": "Constant", "learning_rate": 0.25}
