"""Training on PEs: hand values, plain JAX, both engines, cycles by formula, zeros, messages."""

import collections
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.paths import ROOT

from wafer import fabric, models
from wafer.compiler.compile import compile_graph
from wafer.compiler.dense_kernel import DenseCost, dense_cost, fullest_tile, in_flight, loss_cost
from wafer.compiler.experiment import config_graph, options_of
from wafer.config import load
from wafer.engines.fabric import floor, network
from wafer.engines.fabric.network import DenseLayer
from wafer.experiment import Experiment
from wafer.fabric.program.ops import mem
from wafer.fabric.training import softmax
from wafer.fabric.training.layers import schedule
from wafer.fabric.training.regions import way_links
from wafer.models.families.fc_mnist import image_batch
from wafer.spec import WSE2, Region

# The documents' FC-MNIST with three layers, on scikit-learn's 8 x 8 digits.
DIGITS = (64, 50, 50, 10)
FLOOR = ((0, 0, 8, 10), (9, 0, 10, 10), (20, 0, 5, 5), (26, 0, 1, 2))


def stack(sizes, rectangles, *, density=None, seed=0, **options):
    """A built network, its first parameters, and its masks (None where all weights exist)."""
    rng = np.random.default_rng(seed)
    layers, tree, masks = [], {}, {}
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        name = f"fc_{i}"
        mask = None if density is None else rng.random((a, b)) < density
        layers.append(DenseLayer(name, a, b, mask))
        kernel = rng.normal(size=(a, b)).astype(np.float32) / np.sqrt(a)
        masks[name] = np.ones((a, b), bool) if mask is None else mask
        bias = 0.1 * rng.normal(size=b).astype(np.float32)
        tree[name] = {"kernel": kernel * masks[name], "bias": bias}
    names = [*tree, "loss", "input"]
    regions = [Region(n, *r) for n, r in zip(names, rectangles, strict=False)]
    return network.build(layers, regions, **options), tree, masks


def rows(net, seed=0):
    rng = np.random.default_rng(seed)
    count = net.batch * net.micro_batches
    x = rng.normal(size=(count, net.layers[0].fan_in)).astype(np.float32)
    return x, rng.integers(0, net.layers[-1].fan_out, count)


def period(net):
    """Cycles per micro-batch of the slowest kernel, by closed forms."""
    layers, loss = net.costs
    return max(cost.period for cost in (*layers, loss))


def jax_loss(tree, x, y):
    h = x
    for i, layer in enumerate(tree.values()):
        h = h if i == 0 else jax.nn.relu(h)
        h = h @ layer["kernel"] + layer["bias"]
    return -jnp.take_along_axis(jax.nn.log_softmax(h), y[:, None], axis=1).mean()


@jax.jit
def jax_step(tree, velocity, masks, x, y, rate, momentum):
    """SGD in plain JAX; pruned weights stay 0."""
    loss, grads = jax.value_and_grad(jax_loss)(tree, x, y)
    for name, mask in masks.items():
        grads[name]["kernel"] = grads[name]["kernel"] * mask
    velocity = jax.tree.map(lambda v, g: momentum * v + g, velocity, grads)
    return loss, jax.tree.map(lambda p, v: p - rate * v, tree, velocity), velocity


def measured(net, tree):
    """Cycles of a step, which are within 10 % of those predicted."""
    _, report = network.step(net, network.init(net, tree), *rows(net), learning_rate=0.1)
    assert abs(report.cycles / net.predicted - 1) < 0.1
    return report.cycles


def dense(sizes):
    return [DenseLayer(f"fc_{i}", a, b) for i, (a, b) in enumerate(itertools.pairwise(sizes))]


def assert_close(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)


def check_steps(net, tree, masks, *, steps=3, momentum=0.0):
    """Every step's loss and weights equal plain JAX's; returns the last report."""
    state, velocity = network.init(net, tree), jax.tree.map(np.zeros_like, tree)
    for seed in range(steps):
        x, y = rows(net, seed)
        loss, tree, velocity = jax_step(tree, velocity, masks, x, jnp.asarray(y), 0.1, momentum)
        state, report = network.step(net, state, x, y, learning_rate=0.1)
        assert report.loss == pytest.approx(float(loss), abs=1e-5)
        assert_close(network.params(net, state), tree)
    return report


def test_two_pes_by_hand():
    """x = (1, 2), class 0, weights 0: the loss is log 2 and w falls by x (p - label)."""
    for rectangle in ((0, 0, 1, 1), (0, 0, 2, 1), (3, 3, 2, 2)):
        net, tree, _ = stack((2, 2), [rectangle], batch=1)
        zero = jax.tree.map(np.zeros_like, tree)
        state, report = network.step(
            net, network.init(net, zero), [[1.0, 2.0]], [0], learning_rate=1.0
        )
        assert report.loss == pytest.approx(np.log(2), abs=1e-6)
        layer = network.params(net, state)["fc_0"]
        np.testing.assert_allclose(layer["kernel"], [[0.5, -0.5], [1.0, -1.0]], atol=1e-6)
        np.testing.assert_allclose(layer["bias"], [0.5, -0.5], atol=1e-6)


CASES = {
    "uneven slices": {"rectangles": ((0, 0, 4, 3), (4, 0, 2, 4)), "micro_batches": 3},
    "far apart, out of order": {"rectangles": ((9, 5, 3, 2), (0, 0, 2, 3)), "micro_batches": 3},
    "one column, one row": {"rectangles": ((0, 0, 1, 5), (1, 0, 5, 1)), "micro_batches": 4},
    "turned": {"rectangles": ((0, 0, 2, 6), (5, 1, 4, 3)), "micro_batches": 2},
    "loss and input on two PEs": {
        "rectangles": ((1, 0, 3, 2), (4, 0, 2, 2), (7, 0, 1, 2), (0, 0, 1, 2)),
        "micro_batches": 4,
    },
    "loss in a row, entered at its eastern end": {
        "rectangles": ((0, 0, 3, 3), (3, 0, 2, 2), (3, 3, 2, 1)),
        "micro_batches": 2,
    },
    "momentum": {"rectangles": ((0, 0, 3, 2), (3, 0, 2, 2)), "micro_batches": 2, "momentum": 0.9},
    "sparse": {
        "rectangles": ((0, 0, 3, 2), (3, 0, 2, 2)),
        "micro_batches": 4,
        "density": 0.4,
        "momentum": 0.9,
    },
}


@pytest.mark.native  # minutes in JAX; test_two_pes_by_hand runs there too
@pytest.mark.parametrize("name", CASES)
def test_every_step_equals_plain_jax(name):
    case = dict(CASES[name])
    net, tree, masks = stack((6, 5, 4), case.pop("rectangles"), batch=3, **case)
    check_steps(net, tree, masks, momentum=case.get("momentum", 0.0))
    if name == "turned":
        assert net.shares[0].turned
    if name == "loss and input on two PEs":
        assert [len(line) for line in net.lines.values()] == [2, 2]


@pytest.mark.native  # minutes in JAX
def test_weights_never_leave_their_rectangle():
    """Between regions travel one micro-batch's activations and gradients, no more."""
    net, tree, _ = stack((6, 5, 4), ((1, 1, 3, 2), (6, 1, 2, 2)), batch=2, micro_batches=3)
    x, y = rows(net)
    state, report = network.step(net, network.init(net, tree), x, y, learning_rate=0.1)
    end = fabric.simulate(net.program, network.init(net, tree))
    first, second = net.regions[:2]
    words = 3 * 2 * 5  # micro-batches x samples x features, of outputs and of their gradients
    control = 3  # per micro-batch, the wavelet that sets the line's switches back
    east, west = np.asarray(end.links)[[1, 0], :, first.x + first.width].sum(axis=1)
    assert east == west == words + control
    assert first.x + first.width < second.x  # the column between the two
    held = {array.name: array.words for array in net.program.arrays}
    assert net.shares[0].turned
    assert held["fc_0/weights"] == 3 * 2 + 2  # 3 inputs of a row, 2 outputs of a column, 2 biases
    assert report.busy.shape == state["loss"].shape[:2]


@pytest.mark.slow
def test_both_engines_give_the_same_bits_and_cycles():
    net, tree, _ = stack((3, 3, 2), ((0, 0, 2, 2), (2, 0, 1, 2)), batch=2, micro_batches=2)
    start, (x, y) = network.init(net, tree), rows(net)
    results = [
        network.step(net, start, x, y, learning_rate=0.1, implementation=name)
        for name in ("native", "jax")
    ]
    (one, report), (other, reference) = results
    jax.tree.map(np.testing.assert_array_equal, one, other)
    np.testing.assert_array_equal(report.busy, reference.busy)
    assert report.cycles == reference.cycles
    assert report.loss == reference.loss


def test_softmax_of_vector_operations():
    """exp, 1/s and log without an instruction for them; its cycles are its operations'."""
    classes, batch = 7, 5
    rng = np.random.default_rng(0)
    scores = (10 * rng.normal(size=(classes, batch))).astype(np.float32)
    scores[:, 0] = [90, -90, 0, 0, 0, 0, 0]  # far beyond what exp can hold
    labels = np.eye(classes)[rng.integers(0, classes, batch)].T
    layout = fabric.Layout(1)
    for name in ("scores", "labels", "out", *softmax.WORDS["wide"]):
        layout.array(name, classes * batch)
    for name in softmax.WORDS["narrow"]:
        layout.array(name, batch)
    layout.array("loss", 1)
    first = softmax.gradient_ops(mem("scores"), mem("labels"), mem("out"), classes, batch)
    second = softmax.loss_ops(mem("labels"), mem("loss", 0, 0), classes, batch)
    layout.task("main", first + second, active=True)
    program = layout.build()
    state = fabric.simulate(program, {"scores": scores.ravel(), "labels": labels.ravel()})
    power = np.exp(scores.astype(np.float64) - scores.max(axis=0))
    share = power / power.sum(axis=0)
    out = np.asarray(fabric.read(program, state, "out")).reshape(classes, batch)
    np.testing.assert_allclose(out, share - labels, atol=3e-7)
    loss = float(fabric.read(program, state, "loss")[0, 0, 0])
    assert loss == pytest.approx(-(np.log(np.maximum(share, 1e-300)) * labels).sum(), rel=1e-6)
    cost, start = loss_cost(classes, batch), 16  # two microthreads that receive and send
    wanted = cost.forward + cost.backward - 2 * start
    assert int(fabric.cycles(state)) == wanted + 61 - 15  # a task's start, not a launch


@pytest.mark.slow
@pytest.mark.parametrize("density", [None, 0.25])
def test_cycles_are_those_of_the_closed_forms(density):
    """A whole step and the steady state, within 10 %, for dense and sparse layers."""
    cycles = []
    for micro_batches in (2, 12, 16):
        net, tree, _ = stack(DIGITS, FLOOR, density=density, batch=8, micro_batches=micro_batches)
        cycles.append(measured(net, tree))
    if density is None:
        assert abs((cycles[2] - cycles[1]) / 4 / period(net) - 1) < 0.1


STEADY = {
    "bound by its PEs": ((16, 12, 12, 4), ((0, 0, 16, 12), (16, 0, 12, 12), (28, 0, 12, 4)), 8, 8),
    "long vectors": ((16, 12, 12, 4), ((0, 0, 16, 12), (16, 0, 12, 12), (28, 0, 12, 4)), 16, 8),
    "short vectors": ((32, 25, 25, 10), ((0, 0, 32, 25), (32, 0, 25, 25), (57, 0, 25, 10)), 4, 8),
    "by its streams": ((32, 25, 10), ((0, 0, 32, 25), (32, 0, 25, 10)), 16, 16),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STEADY)
def test_the_steady_state_takes_the_period(name):
    """Within 10 %, one weight per PE; more micro-batches than are in flight."""
    sizes, rectangles, batch, loss = STEADY[name]
    width = sum(r[2] for r in rectangles)
    cycles = []
    for micro_batches in (32, 48):
        places = (*rectangles, (width, 0, 1, loss))
        net, tree, _ = stack(sizes, places, batch=batch, micro_batches=micro_batches)
        cycles.append(measured(net, tree))
    assert abs((cycles[1] - cycles[0]) / 16 / period(net) - 1) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("density", "seed"),
    [*((d, 0) for d in (1.0, 0.75, 0.55, 0.45, 0.25, 0.1)), *((0.5, seed) for seed in range(3))],
)
def test_cycles_fall_with_sparsity_as_predicted(density, seed):
    """The fullest PE is rarely the one at the chains' roots, and rows need not keep step."""
    net, tree, _ = stack(DIGITS, FLOOR, density=density, seed=seed, batch=8, micro_batches=8)
    measured(net, tree)


def test_zero_weights_take_no_cycles():
    """One more kept weight in every pass of a PE: three more fmacs over the samples."""
    full = dense_cost(6, 5, 1, 1, batch=4)
    mask = np.ones((6, 5), bool)
    mask[2, 3] = False
    less = dense_cost(6, 5, 1, 1, batch=4, nnz=mask)
    assert full.forward - less.forward == 1 + 43 + 4
    assert full.backward - less.backward == 2 * (1 + 43 + 4)
    cycles = []
    for keep in (30, 20, 0):
        kept = np.arange(30).reshape(6, 5) < keep
        net = network.build(
            [DenseLayer("fc_0", 6, 5, kept)], [Region("fc_0", 0, 0, 1, 1)], batch=4, micro_batches=1
        )
        tree = {"fc_0": {"kernel": np.ones((6, 5)), "bias": np.zeros(5)}}
        state, report = network.step(net, network.init(net, tree), *rows(net), learning_rate=0.1)
        assert (network.params(net, state)["fc_0"]["kernel"][~kept] == 0).all()
        cycles.append(report.cycles)
    # Forward pass and gradient of each weight, a word more to update and, two a cycle, to clear.
    assert cycles[0] - cycles[1] == 10 * (2 * (1 + 43 + 4) + 1) + 10 // 2
    assert cycles[1] > cycles[2]


def test_fullest_tile_and_schedule():
    mask = np.zeros((4, 4), bool)
    mask[:2, :2] = True
    assert fullest_tile(4, 4, 2, 2, mask) == 4
    assert fullest_tile(4, 4, 2, 2, None) == 4
    assert 1 < fullest_tile(100, 100, 10, 10, 1000) < 40
    for micro_batches, flying in ((1, 3), (5, 2), (7, 4)):
        order = schedule(micro_batches, flying)
        assert sorted(order) == sorted(itertools.product("FB", range(micro_batches)))
        for m in range(micro_batches):
            assert order.index(("F", m)) < order.index(("B", m))
        ahead = np.cumsum([1 if kind == "F" else -1 for kind, _ in order])
        assert ahead.max() == min(micro_batches, flying)
    costs = [dense_cost(64, 50, 10, 8, batch=8), dense_cost(50, 10, 5, 5, batch=8)]
    assert in_flight(costs, loss_cost(10, 8))[0] > in_flight(costs, loss_cost(10, 8))[1]


def test_streams_that_bind_a_layer_keep_more_micro_batches_in_flight():
    """Where streams bind a layer, a word is there after its period: others go in between."""
    loss = DenseCost(10, 0, 0, 0, words_in=10, words_back=10)
    lower = DenseCost(10, 20, 0, 0, words_in=60, words_out=10, words_back=40)
    upper = DenseCost(10, 20, 0, 0, words_in=60, gradients=40, words_out=60)
    assert (upper.period, lower.period, loss.period) == (100, 60, 10)
    # Of 100 cycles: scores 10, loss 10, gradients 60 beside inputs, passes 30; then words 60, the
    # gradients 100 beside images, passes 2 x 30.
    assert in_flight([upper, lower], loss) == [1 + 2 + 3, 1 + 2]
    # Of 120: the PEs of the first layer bind it, and gradients take the 40 cycles of their words.
    assert in_flight([upper._replace(busy=120), lower], loss) == [1 + 1 + 2, 1 + 1]


def test_streams_share_no_link_that_they_fill():
    """The way of the first gradients, found before those of the second layer, makes room."""
    regions = [
        Region("fc_0", 0, 0, 32, 10), Region("fc_1", 6, 10, 25, 25), Region("fc_2", 1, 10, 5, 25),
        Region("loss", 0, 11, 1, 20),
    ]  # fmt: skip
    layers = dense(DIGITS)
    placed = floor.lay_out(layers, regions, 4)
    turned = {"fc_0": False, "fc_1": False, "fc_2": True}
    ways = floor.find_streams((40, 40), placed, layers, turned, batch=1, most=100)
    words = collections.Counter()
    for (a, b), way in ways.items():
        size = 64 if a == "input" else 10 if "loss" in (a, b) else 50
        for link in way_links(way):
            words[link] += size
    assert max(words.values()) == 64  # the images alone


MESSAGES = {  # a layer too large for its PEs, more PEs than inputs, no region, …
    r"fc_0: PE \(.*\) of its 2 x 2 needs [\d,]+ bytes; wse2 has 49,152 .*larger region": (
        lambda: stack((600, 40), [(0, 0, 2, 2)], batch=4)
    ),
    r"fc_0: 4 columns x 4 rows .*inputs \(1\.\.3\), the other the outputs \(1\.\.2\)": (
        lambda: stack((3, 2), [(0, 0, 4, 4)], batch=1)
    ),
    "no region for layer 'fc_0'": lambda: stack((3, 2), [], batch=1),
    "regions 'fc_0' and 'fc_1' overlap": (
        lambda: stack((3, 3, 3), [(0, 0, 2, 2), (1, 1, 2, 2)], batch=1)
    ),
    "one micro-batch is 51,200 bytes; .*smaller micro-batches": (
        lambda: stack((800, 2), [(0, 0, 8, 1)], batch=16)
    ),
    "b: takes 3 inputs, but a gives 2": (
        lambda: network.build([DenseLayer("a", 3, 2), DenseLayer("b", 3, 2)], [], batch=1)
    ),
    r"a: mask \(2, 3\), expected \(3, 2\)": (
        lambda: network.build([DenseLayer("a", 3, 2, np.ones((2, 3), bool))], [], batch=1)
    ),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_messages(message):
    with pytest.raises(fabric.FabricError, match=message):
        MESSAGES[message]()


def test_messages_of_a_step():
    net, tree, _ = stack((3, 2), [(0, 0, 1, 1)], batch=2)
    state = network.init(net, tree)
    with pytest.raises(fabric.FabricError, match=r"takes \[2, 3\] and \[2\], 1 micro-batches of 2"):
        network.step(net, state, np.zeros((3, 3)), np.zeros(3, int), learning_rate=0.1)
    with pytest.raises(fabric.FabricError, match=r"labels 0\.\.2; the last layer has 2"):
        network.step(net, state, np.zeros((2, 3)), [0, 2], learning_rate=0.1)
    with pytest.raises(fabric.FabricError, match="fc_0/bias: shape"):
        network.init(net, {"fc_0": {"kernel": np.zeros((3, 2)), "bias": np.zeros(3)}})


def digits():
    pixels, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    return (pixels / 8 - 1).astype(np.float32), labels.astype(np.int32)


def digits_model():
    model = models.build(
        {"name": "fc_mnist", "input_size": 64, "hidden_size": 50, "depth": 2, "num_classes": 10}
    )
    return model, jax.tree.map(np.asarray, model.init(jax.random.key(1)))


@pytest.mark.slow
def test_an_epoch_of_digits_is_that_of_plain_jax():
    """The model package's FC-MNIST, three layers in three rectangles, beside its own loss."""
    (images, labels), (model, tree) = digits(), digits_model()
    names = ["fc_0", "fc_1", "fc_2", "loss"]
    regions = [Region(n, *r) for n, r in zip(names, FLOOR, strict=True)]
    net = network.build(dense(DIGITS), regions, batch=8, micro_batches=8, momentum=0.9)
    state, velocity = network.init(net, tree), jax.tree.map(np.zeros_like, tree)

    @jax.jit
    def plain(tree, velocity, x, y):
        score = lambda t: model.loss(t, image_batch(x, y))[0]
        loss, grads = jax.value_and_grad(score)(tree)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
        return loss, jax.tree.map(lambda p, v: p - 0.05 * v, tree, velocity), velocity

    train, held = np.split(np.arange(len(images)), [len(images) * 4 // 5])
    for chosen in np.random.default_rng(0).permutation(train)[: 22 * 64].reshape(22, 64):
        x, y = images[chosen], labels[chosen]
        loss, tree, velocity = plain(tree, velocity, x, y)
        state, report = network.step(net, state, x, y, learning_rate=0.05)
        assert report.loss == pytest.approx(float(loss), abs=1e-5)
        assert abs(report.cycles / net.predicted - 1) < 0.1
        assert_close(network.params(net, state), tree)
    batch = image_batch(images[held], labels[held])
    right, wanted = (
        int((np.asarray(model.apply(t, batch)).argmax(1) == labels[held]).sum())
        for t in (network.params(net, state), tree)
    )
    assert right == wanted > 0.7 * 360  # by other writers; chance is 36


PLANS = {
    "24 x 12 PEs": ({"width": 24, "height": 12}, 8, (8, 16)),
    "whole wafer": ({}, 8, (24, 36)),
    "whole wafer, long vectors": ({}, 16, (40, 60)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_a_compiled_plan_trains_at_the_speed_of_its_report(name, tmp_path):
    """Whole steps, and the steady state's cycles per sample; the whole wafer's streams bind it."""
    cut, batch, counts = PLANS[name]
    path = tmp_path / "digits.yaml"
    path.write_text(
        "train_input: {data_processor: DigitsDataProcessor, batch_size: 64, micro_batch_size: 8}\n"
        "model: {name: fc_mnist, input_size: 64, hidden_size: 50, depth: 2, dropout: 0.0}\n"
        "optimizer: {optimizer_type: SGD, momentum: 0.9, learning_rate: 0.05}\n"
        "runconfig: {max_steps: 22}\n"
    )
    experiment = Experiment.from_yaml(path)
    graph = config_graph(experiment)
    spec = dataclasses.replace(WSE2, **cut)
    options = dataclasses.replace(options_of(experiment, seed=0), spec=spec, micro=batch)
    compiled = compile_graph(graph, options)
    _, tree = digits_model()
    build = functools.partial(network.build, dense(DIGITS), compiled.plan.regions, momentum=0.9)
    cycles = [measured(build(batch=batch, micro_batches=count), tree) for count in counts]
    samples = (counts[1] - counts[0]) * batch
    assert abs((cycles[1] - cycles[0]) / samples / compiled.cycles - 1) < 0.1


MNIST = ROOT / "models/configs/fc_mnist/fc_mnist.yaml"


def compiled_mnist(depth, side, batch):
    """The documents' FC-MNIST from its own file, compiled for a cut of the wafer; its model."""
    config = load(MNIST)
    config.model["depth"] = depth
    experiment = Experiment.from_config(config)
    graph = config_graph(experiment)
    cut = dataclasses.replace(WSE2, width=side, height=side)
    options = dataclasses.replace(options_of(experiment, seed=0), spec=cut, batch=batch)
    return compile_graph(graph, options), dense((784, *[50] * depth, 10)), experiment.model


def strokes(count, seed):
    """[N, 784] images of a bright stroke each, as MNIST's are scaled, and [N] labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    images = np.full((count, 28, 28), -0.42, np.float32)
    for image, label in zip(images, labels, strict=True):
        image[2 + 2 * label : 6 + 2 * label, 4:24] = rng.uniform(0, 2.8, (4, 20))
    return images.reshape(count, 784), labels


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "side", "micro_batches"), [(2, 40, (8, 16)), (10, 48, (1, 1))])
def test_the_documents_fc_mnist_trains_on_pes(depth, side, micro_batches):
    """Three layers, and the file's own eleven at its own batch: 784 inputs, 50 units, 10 classes.

    Every step equals plain JAX and takes the cycles predicted; the steady state those reported.
    """
    compiled, layers, model = compiled_mnist(depth, side, 4 * max(micro_batches))
    assert {r.name for r in compiled.plan.regions} == {*(n.name for n in layers), "loss"}
    got = tree = jax.tree.map(np.asarray, model.init(jax.random.key(1)))
    score = jax.jit(jax.value_and_grad(lambda t, x, y: model.loss(t, image_batch(x, y))[0]))
    cycles = {}
    for seed, count in enumerate(micro_batches):
        net = network.build(layers, compiled.plan.regions, batch=4, micro_batches=count)
        x, y = strokes(4 * count, seed)
        loss, grads = score(tree, x, y)
        state, report = network.step(net, network.init(net, got), x, y, learning_rate=0.05)
        assert report.loss == pytest.approx(float(loss), abs=1e-5)
        tree = jax.tree.map(lambda p, g: p - 0.05 * g, tree, grads)
        got = network.params(net, state)
        assert_close(got, tree)
        assert abs(report.cycles / net.predicted - 1) < 0.1
        cycles[count] = report.cycles
    if depth == 2:
        assert abs((cycles[16] - cycles[8]) / (8 * 4) / compiled.cycles - 1) < 0.1


@pytest.mark.native  # minutes in JAX
def test_a_deep_net_shares_colors():
    """Ten layers in a row: a stream takes a second color where one is left."""
    rectangles = [(3 * i, 0, 2, 2) for i in range(10)]
    net, tree, masks = stack((5, *[4] * 9, 3), rectangles, batch=2, micro_batches=2)
    assert len(net.program.colors) <= WSE2.colors - len(WSE2.memcpy_colors)
    check_steps(net, tree, masks, steps=1)
