"""``import wafer``: what is public, that it loads nothing by itself, and that it is enough."""

import inspect
import subprocess
import sys

import jax
import numpy as np
import pytest
import yaml
from helpers.runs import tiny

import wafer
from wafer.commands.inputs import load_decoding
from wafer.errors import CheckpointError, ConfigError
from wafer.models.paths import named_leaves

FUNCTIONS = ("compile", "convert", "evaluate", "evaluate_tasks", "example", "finalize")
FUNCTIONS += (
    "generate",
    "history",
    "load",
    "plan",
    "preprocess",
    "profile",
    "prune",
    "sweep",
    "train",
)
REGISTER = ("register_model", "register_optimizer", "register_task")

SOURCE = 'def f{0}(x):\n    """Return x plus {0}."""\n    return x + {0}\n'


def fresh(program):
    """Run a program in a new interpreter; what it printed."""
    command = [sys.executable, "-P", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_names():
    names = {*FUNCTIONS, *REGISTER, "Experiment", "__version__"}
    assert names == set(wafer.__all__) <= set(dir(wafer))
    with pytest.raises(AttributeError, match="no attribute 'trian'; there are Experiment,"):
        wafer.trian  # noqa: B018


def test_importing_wafer_or_its_command_line_loads_no_jax():
    program = (
        "import sys, wafer, wafer.cli\n"
        "print([name for name in ('jax', 'pydantic', 'numpy') if name in sys.modules])\n"
        "sys.exit(wafer.cli.main(['--help']))"
    )
    said = fresh(program)
    assert said.startswith("[]\n")
    assert all(verb in said for verb in ("run", "compile", "jobs", "convert"))


def test_a_submodule_does_not_hide_a_function():
    import wafer.cli
    import wafer.commands.planning.compile
    import wafer.commands.planning.plan
    import wafer.commands.run

    names = [name for name in wafer.__all__ if not name.startswith("_")]
    assert len(names) == len(FUNCTIONS) + len(REGISTER) + 1
    assert all(callable(getattr(wafer, name)) for name in names)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_are_documented(name):
    function = getattr(wafer, name)
    text = inspect.getdoc(function)
    for section in ("Args:", "Returns:", "Raises:", "Examples:"):
        assert section in text, f"{name} has no {section}"
    assert f"wafer.{name}(" in text, "the example does not call it"
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.annotation is not parameter.empty
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        assert f"    {stars}{parameter.name}: " in text, (
            f"{name}: {parameter.name} is not described"
        )


@pytest.fixture(scope="module")
def params():
    """Sections of a small sparse run, without its data's folder."""
    data = {"data_processor": "PyStdlibDataProcessor", "vocab_size": 300, "max_sequence_length": 64}
    data |= {"batch_size": 4, "use_vsl": True}
    model = {"vocab_size": 300, "hidden_size": 16, "filter_size": 32, "max_position_embeddings": 64}
    run = {"max_steps": 4, "eval_frequency": 2, "checkpoint_steps": 2, "seed": 1, "log_steps": 1}
    sparsity = {"algorithm": "static", "sparsity": 0.75}
    optimizer = {"optimizer_type": "AdamW", "learning_rate": 0.01}
    sections = tiny(runconfig=run, model=model, optimizer=optimizer, sparsity=sparsity)
    return sections | {"train_input": data, "eval_input": data}


@pytest.fixture
def run_file(params, tmp_path):
    """The sections as a file, and some text to train on."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "m.py").write_text("".join(SOURCE.format(i) for i in range(60)))
    inputs = {
        name: params[name] | {"source_dir": str(source)} for name in ("train_input", "eval_input")
    }
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(params | inputs))
    return path


def test_train_evaluate_generate_finalize_load(run_file, tmp_path):
    folder = str(tmp_path / "run")
    experiment = wafer.Experiment.from_yaml(run_file, model_dir=folder)
    trained = wafer.train(experiment, mode="train_and_eval")
    assert (trained.step, trained.stop) == (4, 0)
    assert [path.name for path in trained.checkpoints] == ["2", "4"]
    assert [record["step"] for record in trained.metrics] == [1, 2, 3, 4]
    assert list(trained.scores) == [0, 2, 4]

    scores = wafer.evaluate(run_file, model_dir=folder)
    assert scores["loss"] == pytest.approx(trained.scores[4]["loss"], rel=1e-5)
    earlier = wafer.evaluate(experiment, trained.checkpoints[0])
    assert earlier["loss"] == pytest.approx(trained.scores[2]["loss"], rel=1e-5)

    texts = wafer.generate(folder, "def f", max_new_tokens=4, num_samples=2)
    assert len(texts) == 2
    assert all(text.startswith("def f") for text in texts)

    for kernels in ("csr", "dense"):
        chosen = wafer.generate(folder, "def f", max_new_tokens=4, num_samples=2, kernels=kernels)
        assert chosen == texts
    for dtype in ("bfloat16", "int8"):
        short = wafer.generate(folder, "def f", max_new_tokens=4, kernels="csr", dtype=dtype)
        assert short[0].startswith("def f")

    report = wafer.finalize(trained.checkpoints[-1], tmp_path / "dense")
    assert {tensor.sparsity for tensor in report.sparse} == {0.75}
    assert wafer.generate(report.target, "def f", max_new_tokens=4, num_samples=2) == texts

    model, loaded, meta = wafer.load(report.target)
    assert (model.config.hidden_size, meta["step"]) == (16, 4)
    for (name, kept), (_, value) in zip(
        named_leaves(trained.params), named_leaves(loaded), strict=True
    ):
        np.testing.assert_array_equal(kept, value, err_msg=name)
    up = np.asarray(dict(named_leaves(loaded))["layers_0/ffn/up/kernel"])
    assert (up == 0).mean() == 0.75

    again = wafer.train(run_file, model_dir=folder, max_steps=5)
    assert again.step == 5
    assert [record["step"] for record in again.metrics] == [1, 2, 3, 4, 5]


def test_plan_and_experiment_need_no_data(params):
    scaling = wafer.plan(params, [1, 2])
    assert [p.systems for p in scaling.predictions] == [1, 2]
    experiment = wafer.Experiment.from_yaml("models/configs/gpt_pystdlib.yaml")
    assert wafer.plan(experiment, [1]).parameters == sum(
        leaf.size for leaf in jax.tree.leaves(experiment.shapes)
    )


def test_errors_teach(params, run_file, tmp_path):
    with pytest.raises(ConfigError, match=r"max_step: .*did you mean.*max_steps"):
        wafer.train(params, max_step=3)
    with pytest.raises(ConfigError, match="spec: 'wse4'; there are wse2 and wse3"):
        wafer.compile(params, spec="wse4")
    with pytest.raises(CheckpointError, match=r"neither a checkpoint .* nor a model_dir"):
        wafer.load(tmp_path)
    with pytest.raises(ValueError, match="kernels: 'sparse'; choose auto or csr or dense"):
        load_decoding(tmp_path, "sparse")
    with pytest.raises(ValueError, match="dtype: bfloat16 is for csr kernels"):
        load_decoding(tmp_path, "dense", "bfloat16")
    with pytest.raises(CheckpointError, match="holds no checkpoint to evaluate; train first"):
        wafer.evaluate(run_file, model_dir=str(tmp_path / "empty"))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        wafer.finalize(tmp_path / "nothing", tmp_path / "dense")
