"""``wafer prune``: a trained model, a fresh one, and training on with the mask."""

import re

import h5py
import jax
import numpy as np
import pytest
import yaml
from helpers.runs import TINY, TINY_ROWS, tiny

import wafer
from wafer import models
from wafer.errors import ConfigError
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.checkpoint.writer import write_params
from wafer.models.convert.api import to_hf
from wafer.models.paths import named_leaves

MODEL = TINY | {"num_hidden_layers": 2}


def sections(tmp_path, **changes):
    run = {"max_steps": 2, "checkpoint_steps": 2, "model_dir": str(tmp_path / "run"), "seed": 1}
    optimizer = {"optimizer_type": "AdamW", "learning_rate": 0.01}
    rows = TINY_ROWS | {"batch_size": 4}
    return tiny(model=MODEL, train_input=rows, optimizer=optimizer, runconfig=run | changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    wafer.train(sections(folder))
    (folder / "run.yaml").write_text(yaml.safe_dump(sections(folder)))
    return folder / "run"


@pytest.mark.slow
def test_a_trained_model_is_pruned_and_trains_on_with_its_mask(tmp_path, trained, cli):
    out = tmp_path / "pruned"
    said = cli(
        f"prune --checkpoint_path {trained} --params {trained.with_suffix('.yaml')} "
        f"--method sparsegpt --sparsity 0.5 --pattern 2:4 --samples 8 -o {out}"
    )
    assert "layers_1: 6 matrices pruned" in said
    losses = re.search(r"loss on 2 calibration batches: ([\d.]+) before, ([\d.]+)", said)
    assert losses[1] != losses[2]
    assert "50.00% of 1,024 weights in 12 matrices" in said
    assert "sparsity: {algorithm: static, sparsity: 0.5, init_method: from_zeros}" in said

    tree, record = load_checkpoint(out)
    assert record["config"]["model"]["name"] == "gpt2"
    kernel = np.asarray(tree["params"]["layers_0"]["ffn"]["up"]["kernel"])
    assert (np.isnan(kernel).reshape(2, 4, 16).sum(1) == 2).all()

    again = sections(tmp_path, model_dir=str(tmp_path / "on")) | {"sparsity": {"sparsity": 0.5}}
    wafer.train(again, checkpoint_path=str(out))
    after = np.asarray(wafer.load(tmp_path / "on")[1]["layers_0"]["ffn"]["up"]["kernel"])
    np.testing.assert_array_equal(after == 0, np.isnan(kernel))
    assert not np.array_equal(after[after != 0], kernel[~np.isnan(kernel)])  # it has learnt


@pytest.mark.slow
def test_weights_of_step_0_are_scored_before_training(tmp_path):
    path = wafer.prune(
        tmp_path / "snip", {"sparsity": 0.75}, method="snip", source=sections(tmp_path), samples=4
    )
    start = dict(models.named_leaves(models.build(MODEL).init(jax.random.key(1))))
    pruned = dict(models.named_leaves(wafer.load(path)[1]))
    assert any(np.array_equal(leaf, start[name]) for name, leaf in pruned.items())
    kernels = [name for name in pruned if name.startswith("layers") and name.endswith("kernel")]
    kept = sum(int((pruned[name] != 0).sum()) for name in kernels)
    assert kept == sum(pruned[name].size for name in kernels) / 4


@pytest.mark.slow
def test_nothing_is_written_where_the_source_runs(tmp_path):
    rows = {"data_processor": "PyStdlibDataProcessor", "vocab_size": 300, "max_bytes": 64}
    rows |= {"split": "eval", "max_sequence_length": 8, "batch_size": 4}
    source = sections(tmp_path) | {"train_input": rows, "model": MODEL | {"vocab_size": 300}}
    wafer.prune(tmp_path / "snip", {"sparsity": 0.75}, method="snip", source=source, samples=4)
    assert [path.name for path in tmp_path.iterdir()] == ["snip"]


def test_layers_share_a_level_by_a_budget(tmp_path, trained):
    path = wafer.prune(
        tmp_path / "erk", {"sparsity": 0.5, "budget": "erk"}, method="magnitude", checkpoint=trained
    )
    params = models.named_leaves(wafer.load(path)[1])
    shares = {name: float(np.mean(np.asarray(leaf) == 0)) for name, leaf in params}
    assert len({share for name, share in shares.items() if name.endswith("kernel")}) > 1


def test_what_is_missing_is_said(tmp_path, trained, cli):
    with pytest.raises(ConfigError, match="give --params, --checkpoint_path or both"):
        wafer.prune(tmp_path / "x", 0.5, method="magnitude")
    command = f"prune --checkpoint_path {trained} --sparsity 0.5 -o {tmp_path}/x --method"
    assert "did you mean 'wanda'" in cli(f"{command} wnda", 1)
    said = cli(f"{command} wanda --pattern half", 1)
    assert "sparsity.pattern: 'half': expected N:M such as '2:4'" in said
    assert not (tmp_path / "x").exists()


def test_synflow_reads_no_rows(tmp_path, cli):
    rows = {"data_processor": "GptHDF5DataProcessor", "data_dir": f"{tmp_path}/nothing"}
    section = sections(tmp_path) | {"train_input": rows | {"batch_size": 4}}
    lines = []
    path = wafer.prune(
        tmp_path / "flow", 0.75, method="synflow", source=section, rounds=5, report=lines.append
    )
    assert "75.00% of 1,024 weights in 12 matrices pruned" in lines[0]
    leaves = named_leaves(wafer.load(path)[1])
    assert all((np.asarray(leaf) != 0).any() for name, leaf in leaves if name.endswith("kernel"))
    command = f"prune -m synflow --rounds 0 -s 0.5 -o {tmp_path}/x --checkpoint_path {path}"
    assert "integer of at least 1, found 0" in cli(command, 1)


def write(folder, model=MODEL, dtype=np.float32):
    """Write weights alone, as `wafer convert` does."""
    params = models.build(MODEL).init(jax.random.key(0))
    leaves = [(name, np.asarray(leaf).astype(dtype)) for name, leaf in named_leaves(params)]
    return write_params(folder, model, [name for name, _ in leaves], leaves)


@pytest.fixture
def imported(tmp_path):
    """Weights alone, and rows for them."""
    write(tmp_path / "imported")
    tokens = np.random.default_rng(0).integers(0, 16, (20, 9), dtype=np.int32)
    data = np.stack([tokens[:, :-1], np.ones((20, 8), np.int32), tokens[:, 1:]], axis=1)
    (tmp_path / "rows").mkdir()
    with h5py.File(tmp_path / "rows" / "data-0.h5", "w") as file:
        file["data"] = data
        file.attrs["n_examples"] = len(data)
    return tmp_path / "imported", tmp_path / "rows"


@pytest.mark.slow
def test_an_imported_model_needs_rows_and_a_level(imported, tmp_path, cli):
    weights, rows = imported
    out, path = tmp_path / "pruned", tmp_path / "finetune.yaml"
    command = f"prune --checkpoint_path {weights} -m wanda -s 0.703 -o {out}"
    assert "calibration: missing: a checkpoint does not decide" in cli(command, 1)
    said = cli(f"{command} --calibration {rows}")
    assert "loss on 2 calibration batches" in said
    level = re.search(r"([\d.]+)% of 1,024 weights in 12 matrices pruned", said).group(1)
    assert f"  wafer config new --checkpoint_path {out} --data {rows} -o finetune.yaml\n" in said

    cli(f"config new --checkpoint_path {out} --data {rows} -o {path}")
    written = yaml.safe_load(path.read_text())
    assert written["model"] == models.registry.settings_of(models.build(MODEL).config)
    assert written["sparsity"]["sparsity"] == pytest.approx(float(level) / 100, abs=1e-4)
    assert written["runconfig"]["checkpoint_path"] == str(out)
    cli(f"run -p {path} --validate_only")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("filters", "number"), [("", 12), ("--param_filter embed/token/embedding", 1)]
)
def test_the_written_run_file_trains_on_with_the_masks_without_a_warning(
    imported, tmp_path, filters, number, cli
):
    weights, rows = imported
    out, path = tmp_path / "pruned", tmp_path / "finetune.yaml"
    start = f"--checkpoint_path {weights} -m magnitude -s 0.703 --budget erk"
    cli(f"prune {start} {filters} -o {out}")
    cli(f"config new --checkpoint_path {out} --data {rows} -o {path}")
    said = cli(f"run -p {path} --max_steps 1 --model_dir {tmp_path}/on")
    assert "WARNING" not in said
    assert f"{number} weights keep their masks from {out}" in said
    before = load_checkpoint(out)[0]["params"]
    after = load_checkpoint(tmp_path / "on" / "checkpoints" / "1")[0]["params"]
    for (name, one), (_, two) in zip(named_leaves(before), named_leaves(after), strict=True):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(two), err_msg=name)


def test_rows_of_a_larger_vocabulary_are_refused(imported, cli):
    weights, rows = imported
    with h5py.File(rows / "data-0.h5", "r+") as file:
        file["data"][0, 0, 0] = 77
    error = cli(f"config new --checkpoint_path {weights} --data {rows}", 1)
    assert f"16 in {weights}" in error
    assert "78 token ids; make them with the tokenizer of the checkpoint" in error


@pytest.mark.parametrize("form", ["hf", "checkpoint"])
def test_dtypes_and_masks_of_the_checkpoint_stay(tmp_path, form):
    """A bfloat16 model stays one, and a lower level brings nothing back."""
    start, lines = tmp_path / form, []
    if form == "hf":
        model = models.build(MODEL)
        params = jax.tree.map(lambda x: x.astype("bfloat16"), model.init(jax.random.key(0)))
        to_hf(model, params, start)
    else:
        write(start, dtype="bfloat16")
    half = wafer.prune(
        tmp_path / "half", 0.5, method="magnitude", checkpoint=start, report=lines.append
    )
    less = wafer.prune(
        tmp_path / "less", 0.3, method="magnitude", checkpoint=half, report=lines.append
    )
    one, two = (dict(named_leaves(load_checkpoint(path)[0]["params"])) for path in (half, less))
    assert {leaf.dtype.name for leaf in (*one.values(), *two.values())} == {"bfloat16"}
    for name, leaf in one.items():
        np.testing.assert_array_equal(np.isnan(leaf), np.isnan(two[name]))
    said = "\n".join(lines)
    assert "50.00% of 1,024 weights in 12 matrices pruned: " in said
    assert "pruned, not 30.00%, since what is pruned already stays pruned: " in said


@pytest.mark.parametrize(
    ("level", "filters", "line"),
    [
        # 8x8 matrices keep 19 of 64, 8x16 ones 38 of 128: 304 of 1,024 in all
        (0.7, None, "70.31% of 1,024 weights in 12 matrices pruned, not 70.00%, since weights"),
        (0.5, None, "50.00% of 1,024 weights in 12 matrices pruned: "),
        (0.5, ["layers_0/ffn/*"], "50.00% of 256 weights in 2 matrices pruned: "),
        (0.5, ["*/up/bias"], "50.00% of 32 weights in 2 parameters pruned; 16 of those kept are 0"),
    ],
)
def test_the_last_line_has_what_was_reached_and_why(imported, tmp_path, level, filters, line):
    section = {"sparsity": level} | ({"param_filter": filters} if filters else {})
    lines = []
    options = {"method": "magnitude", "checkpoint": imported[0], "report": lines.append}
    wafer.prune(tmp_path / "out", section, **options)
    assert any(one.startswith(line) for one in lines), lines
    if level == 0.7:  # the same level again: nothing that is pruned would come back
        lines.clear()
        wafer.prune(tmp_path / "two", section, **options | {"checkpoint": tmp_path / "out"})
        assert any("not 70.00%, since weights that compete" in one for one in lines), lines


def test_paths_and_rows_are_looked_at_first(imported, tmp_path, cli):
    weights, rows = imported
    for words, says in (
        (f"{tmp_path}/x --samples 0", "samples: 0: expected at least 1 row"),
        (f"{tmp_path}/x --calibration {rows}/no", "rows/no does not exist"),
        (f"{weights}/x", f"{weights}/x is within {weights}, which is read; choose"),
        (tmp_path / "imported", "is within"),
    ):
        assert says in cli(f"prune --checkpoint_path {weights} -m magnitude -s 0.5 -o {words}", 1)
    assert not (tmp_path / "x").exists()
    for verb in ("finalize", "finalize --fold_lora"):
        assert "/in is within" in cli(f"{verb} -i {weights} -o {weights}/in", 1)
    assert not (weights / "in").exists()


CONVERT = "convert convert --model gpt2 --src-fmt wafer --tgt-fmt hf -o"


def test_a_record_whose_model_is_wrong_is_named(tmp_path, cli):
    weights = write(tmp_path / "wrong", MODEL | {"nonlinearity": "gellu"})
    prune = f"prune --checkpoint_path {weights} -m magnitude -s 0.5 -o x"
    for command in (prune, f"{CONVERT} {tmp_path}/hf {weights}"):
        error = cli(command, 1)
        assert error.startswith(f"wafer: error: {weights}: ")
        assert "'gellu'" in error


def test_convert_takes_a_model_dir(trained, tmp_path, cli):
    cli(f"{CONVERT} {tmp_path}/hf {trained}")
    want = dict(named_leaves(wafer.load(trained)[1]))
    for name, leaf in named_leaves(wafer.load(tmp_path / "hf")[1]):
        np.testing.assert_array_equal(leaf, want[name])
