"""What commands do, functions do; code of a cell stands where a run file has a name."""

import json
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.runs import config

import wafer
import wafer.cli
from wafer import models, sparsity, vsl
from wafer.errors import ConfigError, DataError
from wafer.models.user import model as own
from wafer.models.user.trust import child_environment
from wafer.session import loop

CELL = """
def Sign(scale=1.0):  # a direction: the run multiplies it by minus the rate
    return optax.chain(optax.scale_by_sign(), optax.scale(scale))

def warm(step):  # as Linear from 0 to 0.01 over 4 steps
    return 0.01 * step / 4

def rising(step):  # as linear with init 0 and slope 0.1
    return 0.1 * step

def Bigram(vocab_size=32):
    init = lambda key: {"weight": jax.random.normal(key, (vocab_size, vocab_size))}
    apply = lambda params, tokens, key: params["weight"][tokens]
    return own.plain(init, apply, vocab_size=vocab_size)

def speech():
    return {"mel": (("S", 80), "float32")}

class Idea(sparsity.Dynamic):
    def grow_scores(self, ctx):  # as SET, on a key of its own
        return jax.random.uniform(jax.random.fold_in(ctx.key, 1), ctx.weight.shape)
"""
WARM = {
    "scheduler": "Linear",
    "initial_learning_rate": 0.0,
    "end_learning_rate": 0.01,
    "total_iters": 4,
}


@pytest.fixture(scope="module")
def cell():
    """What a notebook's cell defines: no module has it."""
    names = {"__name__": "__main__", "jax": jax, "optax": optax, "sparsity": sparsity, "own": own}
    exec(CELL, names)
    return names


def fresh(program: str) -> str:
    """What a new process says."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_schedules_of_a_cell_are_those_of_the_keys(cell, tmp_path):
    gmp = {"algorithm": "gmp", "update": 1}
    keys = config(sparsity=gmp | {"schedule": {"type": "linear", "init": 0.0, "slope": 0.1}})
    keys["optimizer"]["learning_rate"] = WARM
    given = config(sparsity=gmp | {"schedule": cell["rising"]})
    given["optimizer"]["learning_rate"] = cell["warm"]
    runs = [
        wafer.train(sections, model_dir=tmp_path / name)
        for name, sections in (("keys", keys), ("cell", given))
    ]
    first, second = (wafer.history(run).train for run in runs)
    np.testing.assert_allclose(first["loss"], second["loss"], rtol=1e-6)
    assert first["step"].tolist() == [1, 2, 3, 4]
    tag = next(tag for tag in first if tag.startswith("sparsity/") and tag.endswith("/actual"))
    np.testing.assert_array_equal(first[tag], second[tag])


def test_a_record_says_what_to_register(cell, tmp_path, caplog):
    sections = config(optimizer={"optimizer_type": cell["Sign"], "learning_rate": constant(0.1)})
    sections["model"] = {"name": cell["Bigram"], "vocab_size": 32}
    assert wafer.train(sections, model_dir=tmp_path, max_steps=2).step == 2
    assert "Changed since" not in caplog.text
    sections["optimizer"]["learning_rate"] = constant(0.2)
    assert wafer.train(sections, model_dir=tmp_path, max_steps=3).step == 3  # goes on
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("Changed since" in said and "notebook:rate#" in said for said in warned)
    model, params, record = wafer.load(tmp_path, trust_code=True)
    assert model.init(jax.random.key(0))["weight"].shape == params["weight"].shape
    name = record["config"]["model"]["name"]
    assert name.startswith("notebook:Bigram#")
    load = f"import wafer; wafer.load({str(tmp_path)!r}, trust_code=True)"
    assert f"wafer.register_model({name!r}, Bigram)" in fresh(load)
    again = f"""
import jax, wafer
from wafer.models.user import model as own
{CELL[CELL.index("def Bigram") : CELL.index("def speech")]}
wafer.register_model({name!r}, Bigram)
{load}
print("loaded")
"""
    assert fresh(again).endswith("loaded\n")


def test_a_sweep_runs_classes_of_a_cell_here_and_goes_on(cell, tmp_path):
    arm = {"algorithm": cell["Idea"], "sparsity": 0.5, "update": {"freq": 2}}
    grid = {
        "base": config(),
        "seeds": [1, 2],
        "arms": {"set": {"sparsity": arm | {"algorithm": "set"}}, "idea": {"sparsity": arm}},
    }
    only = {"base": config(), "seeds": [1, 2], "arms": {"idea": {"sparsity": arm}}}
    lines = []
    first = wafer.sweep(only, tmp_path, say=lines.append)
    assert [(row.arm, row.seed) for row in first.rows] == [("idea", 1), ("idea", 2)]
    assert "0 of 2 runs" not in lines[0]
    assert first.metric == "loss"
    assert not first.missing
    again = wafer.sweep(only, tmp_path, say=lines.append)
    assert lines[-1].startswith("1 arms, 2 seeds: 0 of 2 runs")
    assert again.rows == first.rows
    assert "| idea | 2 |" in str(again)
    with pytest.raises(ConfigError, match=r"'notebook:Idea#.*' is in this process alone"):
        wafer.sweep(grid, tmp_path / "other", jobs=2)


def test_a_run_that_fails_here_is_named_and_the_others_go_on(cell, tmp_path):
    def Broken(rate=0.0):
        raise RuntimeError("no such thing")

    optimizer = {"optimizer_type": cell["Sign"], "learning_rate": 0.01}
    arms = {"sign": {"optimizer": optimizer}, "cold": {"optimizer": optimizer | {"scale": 0.0}}}
    grid = {"base": config(), "seeds": [1], "arms": arms}
    (tmp_path / "sign/1").mkdir(parents=True)
    (tmp_path / "sign/1/checkpoints").write_text("a file where a folder belongs")
    outcome = wafer.sweep(grid, tmp_path)
    assert [row.arm for row in outcome.rows] == ["cold"]
    assert list(outcome.missing) == ["sign/1"]
    with pytest.raises(ConfigError, match="no such thing"):
        wafer.sweep(grid | {"arms": {"x": {"optimizer.optimizer_type": Broken}}}, tmp_path / "x")


def interrupt_once(monkeypatch):
    """Send Ctrl-C while the first step is taken."""
    first = iter([True])

    def largest(value):
        if next(first, False):
            signal.raise_signal(signal.SIGINT)
        return value

    monkeypatch.setattr(loop, "all_max", largest)


@pytest.fixture
def _python_takes_interrupts():
    """As in a terminal: a job in the background ignores them, and other tests leave their own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before or signal.SIG_DFL)


@pytest.mark.usefixtures("_python_takes_interrupts")
def test_an_interrupt_ends_the_callers_loop_after_the_checkpoint(tmp_path, monkeypatch):
    interrupt_once(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        wafer.train(config(), model_dir=tmp_path / "run")
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["2"]
    trained = wafer.train(config(), model_dir=tmp_path / "run")
    assert (trained.step, trained.stop) == (4, 0)

    interrupt_once(monkeypatch)
    arms = {"a": {"optimizer.learning_rate": constant(0.1)}, "b": {"model.hidden_size": 8}}
    grid = {"base": config(), "seeds": [1], "arms": arms}
    with pytest.raises(KeyboardInterrupt):
        wafer.sweep(grid, tmp_path / "sweep")
    starts = (tmp_path / "sweep/a/1/starts.jsonl").read_text().splitlines()
    assert [json.loads(line)["code"] for line in starts] == [130]
    assert not (tmp_path / "sweep/b").exists()
    outcome = wafer.sweep(grid, tmp_path / "sweep", arms=["a"])
    assert [row.arm for row in outcome.rows] == ["a"]


def test_a_named_checkpoint_is_evaluated_without_a_trace(tmp_path, monkeypatch):
    trained = wafer.train(config(), model_dir=tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    scores = wafer.evaluate(config(), trained.checkpoints[-1])
    experiment = wafer.Experiment.from_config(config())
    assert wafer.evaluate(experiment, trained) == scores  # a run stands for its newest checkpoint
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not wafer.history(trained).eval
    assert wafer.evaluate(config(), model_dir=trained) == scores
    assert wafer.history("run").eval["loss"].tolist() == [scores["loss"]]
    assert wafer.load(trained)[2]["step"] == 4


def constant(value):
    def rate(step):
        return jnp.float32(value)

    return rate


def test_functions_of_one_name_stay_apart(tmp_path):
    arms = {f"a{value}": {"optimizer.learning_rate": constant(value)} for value in (0.0, 0.1)}
    grid = {"base": config(), "seeds": [1], "arms": arms}
    still, moves = wafer.sweep(grid, tmp_path).rows
    alone = wafer.train(
        config(optimizer={"learning_rate": 0.0}),
        mode="train_and_eval",
        model_dir=tmp_path / "alone",
    )
    assert still.metric == pytest.approx(alone.scores[4]["loss"], rel=1e-6) != moves.metric
    first, again = (config(optimizer={"learning_rate": constant(0.5)}) for _ in range(2))
    first, again = (wafer.Experiment.from_config(one).cfg.to_dict() for one in (first, again))
    assert first == again  # a cell that is run once more means the same
    arms["a0.1"] = {"optimizer.learning_rate": constant(0.2)}
    with pytest.raises(ConfigError, match=r"was run with optimizer\.learning_rate"):
        wafer.sweep(grid, tmp_path)


NAMES = """
import functools, jax
from wafer.models.user.code import give_name

def first(level):
    @jax.jit
    def rate(step):
        return level if step in {"a", "b", "c", "d"} else {"x": level}
    return rate

class Idea:
    @staticmethod
    def grow(x):
        return x + 1

print(*(give_name("sparsity", one) for one in (first(1.0), first(1.0), first(2.0), Idea)))
"""


def test_a_name_is_the_same_in_every_process(monkeypatch):
    lines = []
    for seed in "12":  # of hashes, which order sets
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        lines.append(fresh(NAMES))
    names = lines[0].split()
    assert lines[0] == lines[1]
    assert names[0] == names[1] != names[2]
    assert fresh(NAMES.replace("x + 1", "x + 2")).split()[3] != names[3]  # in a static method


READS = """
import numpy as np
from functools import lru_cache as losses

SCALE = 1.0
LEVELS = {"a": [1.0, 2.0]}
TABLE = np.arange(3.0)
other = 1

def half(x):
    return again(x) / 2

def again(x):
    return x and half(x - 1)

class Base:
    def grow(self, x):
        return x.losses + x.other

class Idea(Base):
    rate = 0.5
    def drop(self, x):
        return [half(x) * SCALE for _ in LEVELS["a"]] + TABLE

class Holder:
    def schedule(self, step):
        return half(step)
"""


@pytest.mark.parametrize(
    ("was", "now", "idea", "schedule"),
    [
        ("SCALE = 1.0", "SCALE = 2.0", True, False),
        ("2.0]", "2.5]", True, False),
        ("3.0", "4.0", True, False),
        ("x - 1", "x - 2", True, True),
        ("x.losses +", "x.losses -", True, False),
        ("0.5", "0.25", True, False),
        ("return half(step)", "return again(step)", False, True),
        ("other = 1", "other = 2", False, False),  # a global whose name an attribute has
        ("lru_cache", "partial", False, False),
    ],
)
def test_a_name_is_of_all_code_and_data_of_the_user_that_is_read(was, now, idea, schedule):
    from wafer.models.user.code import give_name

    def names(text):
        held = {"__name__": "__main__"}
        exec(text, held)
        return give_name("sparsity", held["Idea"]), give_name("data", held["Holder"]().schedule)

    assert READS.count(was) == 1
    before, after = names(READS), names(READS.replace(was, now))
    assert before == names(READS)
    assert [a != b for a, b in zip(before, after, strict=True)] == [idea, schedule]


def test_an_arm_after_an_arm_of_a_cell_and_an_exit(cell, tmp_path):
    def leave(weight, level, key, view):
        raise SystemExit(3)

    arm = {"algorithm": cell["Idea"], "sparsity": 0.5, "update": {"freq": 2}}
    arms = {
        "sparse": {"sparsity": arm},
        "dense": {"after": "sparse", "sparsity": None},
        "leaves": {"sparsity": {"algorithm": "static", "sparsity": 0.5, "init_method": leave}},
        "last": {"sparsity": arm | {"sparsity": 0.25}},
    }
    outcome = wafer.sweep({"base": config(), "seeds": [1], "arms": arms}, tmp_path)
    assert {row.arm for row in outcome.rows} == {"sparse", "dense", "last"}
    assert list(outcome.missing) == ["leaves/1"]


def test_a_task_of_a_cell(cell):
    def rows(batch_size, seed, max_sequence_length=16):
        yield {}

    inputs = {"data_processor": rows, "task": cell["speech"], "batch_size": 2}
    kept = wafer.config.parse_config(config(train_input=None) | {"train_input": inputs})
    assert kept.to_dict()["train_input"]["data_processor"].startswith("notebook:rows#")
    assert kept.train_input.task.startswith("notebook:speech#")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"optimizer": {"optimizer_type": lambda: None, "learning_rate": 0.01}}, "has no name"),
        ({"model": {"name": "notebook:Gone"}}, "wafer.register_model('notebook:Gone', Gone)"),
        ({"sparsity": {"algorithm": "notebook:Gone", "sparsity": 0.5}}, "wafer.sparsity.register"),
        ({"train_input": {"task": "notebook:gone"}}, "wafer.register_task"),
    ],
)
def test_what_is_said(section, said):
    sections = config(**section)
    if "train_input" in section:
        sections["train_input"]["data_processor"] = fresh
    with pytest.raises(ConfigError) as error:
        wafer.config.parse_config(sections)
    assert said in str(error.value)


def test_columns_of_a_run_that_went_back(tmp_path):
    (tmp_path / "train").mkdir()
    records = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 9.0, "b": 1.0}, {"step": 2, "loss": 2}]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "train/metrics.jsonl").write_text(lines)
    columns = wafer.history(tmp_path).train
    np.testing.assert_array_equal(columns["loss"], [3.0, 2.0])
    assert "b" not in columns  # of the record that step 2 replaced
    assert wafer.history(tmp_path).eval == {}
    with pytest.raises(DataError, match="expected the model_dir"):
        wafer.history(tmp_path / "train")
    with pytest.raises(DataError, match="op_profiler_config"):
        wafer.profile(tmp_path)


def test_conversion_and_preprocessing_are_those_of_the_commands(tmp_path):
    run = wafer.train(config(), model_dir=tmp_path / "run", max_steps=2)
    there = wafer.convert(run.model_dir, tmp_path / "hf", src_fmt="wafer", tgt_fmt="hf")
    assert (there.path, there.model, there.tokenizer) == (tmp_path / "hf", "gpt2", False)
    back = wafer.convert(there.path, tmp_path / "back", src_fmt="hf", tgt_fmt="wafer")
    assert back[2:4] == there[2:4]
    _, params, _ = wafer.load(tmp_path / "back")
    jax.tree.map(np.testing.assert_array_equal, params, run.params)
    with pytest.raises(ValueError, match="tgt_fmt: 'ours'"):
        wafer.convert(there.path, src_fmt="hf", tgt_fmt="ours")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "to be or not to be " * 40}) + "\n")
    keys = {"tokenizer_type": "TrainBPE", "vocab_size": 300, "max_seq_length": 16}
    files = {"input_dir": str(tmp_path / "a.jsonl"), "processes": 1, "display_pbar": False}
    (done,) = wafer.preprocess(mode="LMData", output_dir=str(tmp_path / "rows"), **files, **keys)
    command = ["data", "preprocess", "LMData", "--output_dir", str(tmp_path / "same")]
    flags = [word for k, v in (files | keys).items() for word in (f"--{k}", str(v).lower())]
    flags[flags.index("trainbpe")] = "TrainBPE"
    assert wafer.cli.main([*command, *flags]) == 0
    rows = [min(path.glob("*.h5")).read_bytes() for path in (done.folder, tmp_path / "same")]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("package", [wafer, models, sparsity, vsl])
def test_tab_shows_public_names_alone(package):
    assert set(dir(package)) - {"models", "sparsity", "vsl"} == set(package.__all__)
    assert all(getattr(package, name) is not None for name in dir(package))
