"""Checkpoints that are whole and hold what no run wrote: refused by every command that reads."""

import json
import shutil
from zlib import crc32

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from helpers.mdl import read_weights
from helpers.runs import TINY, config
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import wafer
from wafer.cli import main
from wafer.commands.inputs import load, load_decoding
from wafer.errors import CheckpointError
from wafer.models.checkpoint.layout import ContentError, is_of_run, read_record
from wafer.models.checkpoint.pruned import check_weight, prunable
from wafer.models.checkpoint.reader import load_checkpoint, load_params
from wafer.models.checkpoint.writer import write_arrays, write_checkpoint, write_params
from wafer.models.convert.api import from_hf, to_hf
from wafer.models.counts import abstract_params
from wafer.models.paths import named_leaves, unflatten
from wafer.models.registry import build
from wafer.session.foreign import load_hf
from wafer.sparsity.finalize import finalize
from wafer.vendor.mdl.file import MdlFile
from wafer.vendor.mdl.weights import write_weights

NORM, KERNEL = "final_norm/scale", "layers_0/ffn/up/kernel"
SCALE = "layers_0/norm1/scale"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A dense run of two steps, its run file."""
    folder = tmp_path_factory.mktemp("contents")
    cfg = config(runconfig={"max_steps": 2, "checkpoint_steps": 2})
    (folder / "p.yaml").write_text(yaml.safe_dump(cfg))
    assert main(["run", "-p", f"{folder}/p.yaml", "-m", "train", "-o", f"{folder}/run"]) == 0
    return folder


def with_number(trained, target, number):
    """A copy of the run one of whose weights is another number."""
    tree, record = load_checkpoint(trained / "run" / "checkpoints" / "2")
    weights = tree["params"]["layers_0"]["attn"]["query"]["kernel"]
    changed = np.array(weights)
    changed[1, 2] = number
    tree["params"]["layers_0"]["attn"]["query"]["kernel"] = changed
    path = target / "run" / "checkpoints" / "2"
    path.parent.mkdir(parents=True)
    write_checkpoint(path, tree, record)
    return path


COMMANDS = {
    "finalize": "finalize -i {run}/checkpoints/2 -o {out}",
    "prune": "prune --checkpoint_path {run} --method magnitude --sparsity 0.5 -o {out}",
    "convert": "convert convert --model gpt2 --src-fmt wafer --tgt-fmt hf -o {out} "
    "{run}/checkpoints/2",
    "verify": "checkpoint verify {run}",
    "run": "run -p {params} -m train -o {run} --max_steps 3",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_weight_that_is_no_number_is_refused(trained, tmp_path, capsys, command, number):
    with_number(trained, tmp_path, float(number))
    places = {"run": tmp_path / "run", "out": tmp_path / "out", "params": trained / "p.yaml"}
    assert main(COMMANDS[command].format(**places).split()) == 1
    said = capsys.readouterr().err
    assert "layers_0/attn/query/kernel" in said
    assert f"{number} at [1, 2]" in said
    assert not [*(tmp_path / "out").rglob("*.safetensors")]


@pytest.mark.parametrize("kernels", ["auto", "dense"])
def test_weights_to_generate_with_are_numbers(trained, tmp_path, kernels):
    for number in (np.nan, -np.inf):
        path = with_number(trained, tmp_path / str(number), number)
        with pytest.raises(ContentError, match=r"layers_0/attn/query/kernel .* at \[1, 2\]"):
            load_decoding(path, kernels)


def test_what_a_run_pruned_may_be_nan():
    run = {"config": {"runconfig": {}}}
    assert prunable({}) is None
    assert prunable({"config": {"model": {}}}) is None
    assert prunable(run) == set()
    assert prunable(run | {"sparsity": {"parameters": [KERNEL]}}) == {KERNEL}
    assert not is_of_run({"config": None})
    for kind in (np.float32, np.float16, jnp.bfloat16):
        nan, inf = np.array([[1, np.nan]], kind), np.array([[1, -np.inf]], kind)
        for pruned in (None, {KERNEL}):
            assert check_weight("f", KERNEL, nan, pruned) is nan
        for dense in ("a/bias", "a/scale", "token_embedding/embedding", "model.wte_embed.weight"):
            with pytest.raises(ContentError, match=rf"weights {dense} .* at \[0, 1\]"):
                check_weight("f", dense, nan, None)
        for value, pruned in ((nan, ()), (nan, {NORM}), (inf, None), (inf, {KERNEL})):
            with pytest.raises(ContentError, match=rf"f: weights {KERNEL} .* at \[0, 1\]"):
                check_weight("f", KERNEL, value, pruned)
    counts = np.array([2**31 - 1])
    assert check_weight("f", KERNEL, counts, ()) is counts


@pytest.mark.parametrize(
    ("moment", "weight", "pruned", "taken"),
    [
        ("exp_avg", KERNEL, [KERNEL], True),
        ("exp_avg", KERNEL, [], False),
        ("exp_avg", SCALE, [KERNEL], False),
        ("rows", SCALE, [KERNEL], False),  # a statistic of another shape
        ("exp_avg", SCALE, None, False),  # the record does not say what is pruned
        ("exp_avg", KERNEL, None, True),
    ],
)
def test_nan_in_a_moment_marks_only_a_pruned_weight(tmp_path, moment, weight, pruned, taken):
    params = {n: np.ones(x.shape, x.dtype) for n, x in named_leaves(abstract_params(build(TINY)))}
    bad = np.ones(params[weight].shape if moment == "exp_avg" else 2)
    bad.flat[1] = np.nan
    tree = {"params": unflatten(params), "opt_state": {"0": {moment: unflatten({weight: bad})}}}
    said = {} if pruned is None else {"sparsity": {"parameters": pruned}}
    write_checkpoint(tmp_path / "a", tree, {"step": 1, "config": {"model": TINY}} | said)
    if taken:
        finalize(tmp_path / "a", tmp_path / "b")
        (kept,) = dict(named_leaves(load_checkpoint(tmp_path / "b")[0]["opt_state"])).values()
        np.testing.assert_array_equal(kept, np.nan_to_num(bad))
        return
    for read in (load_checkpoint, lambda path: finalize(path, tmp_path / "b")):
        with pytest.raises(ContentError, match=rf"opt_state/0/{moment}/{weight} is NaN .*1 of"):
            read(tmp_path / "a")
    assert not (tmp_path / "b").exists()


ALONE = {
    "finalize": "finalize -i {alone} -o {out}",
    "prune": "prune --checkpoint_path {alone} --method magnitude --sparsity 0.5 -o {out}",
    "hf": "convert convert --model gpt2 --src-fmt wafer --tgt-fmt hf -o {out} {alone}",
    "new": "config new --checkpoint_path {alone} --data {rows} -o {out}",
}


def alone_with(trained, target, name, index, pruned=None):
    """A folder of weights alone, one of them NaN."""
    tree, record = load_checkpoint(trained / "run" / "checkpoints" / "2")
    leaves = {n: np.array(leaf) for n, leaf in named_leaves(tree["params"])}
    name = next(n for n in leaves if n.endswith(name))
    leaves[name][index] = np.nan
    return write_params_unchecked(target, record["config"]["model"], leaves, pruned)


def write_params_unchecked(target, section, leaves, pruned):
    record = {"step": 0, "config": {"model": section}}
    record |= {} if pruned is None else {"pruned": pruned}
    arrays = {f"params/{name}": leaf for name, leaf in leaves.items()}
    write_arrays(target, list(arrays), iter(arrays.items()), record)
    return target


@pytest.mark.parametrize("command", ALONE)
def test_one_nan_among_dense_weights_alone_is_refused(trained, tmp_path, capsys, command):
    (tmp_path / "rows").write_text("1 2 3")
    alone = alone_with(trained, tmp_path / "alone", "norm_f/scale", 3)
    places = {"alone": alone, "out": tmp_path / "out", "rows": tmp_path / "rows"}
    assert main(ALONE[command].format(**places).split()) == 1
    said = capsys.readouterr().err
    assert "norm_f/scale are no numbers" in said
    assert "nan at [3]" in said
    assert not [*(tmp_path / "out").rglob("*.safetensors")]
    with pytest.raises(ContentError, match=r"norm_f/scale .*nan at \[3\]"):  # as generate reads
        load_decoding(alone, "dense")


def test_weights_alone_say_which_of_them_are_pruned(trained, tmp_path, caplog):
    first = alone_with(trained, tmp_path / "1", KERNEL, (0, 1))  # nothing says it: a mark
    with caplog.at_level("WARNING"):
        load_params(first)
    (line,) = (record.message for record in caplog.records)
    assert line.startswith(f"{first}: NaN in kernels (first: {KERNEL}) count as pruned weights")
    assert (
        np.isnan(load_checkpoint(first)[0]["params"]["layers_0"]["ffn"]["up"]["kernel"]).sum() == 1
    )
    with pytest.raises(ContentError, match=r"ffn/up/kernel .*nan at \[0, 1\]"):
        load_checkpoint(alone_with(trained, tmp_path / "2", KERNEL, (0, 1), [NORM]))
    load_checkpoint(alone_with(trained, tmp_path / "3", KERNEL, (0, 1), [KERNEL]))
    out = tmp_path / "pruned"
    command = f"prune --checkpoint_path {trained}/run --method magnitude --sparsity 0.5 -o {out}"
    assert main(command.split()) == 0
    assert KERNEL in (names := read_record(out)[0]["pruned"])
    assert prunable(read_record(out)[0]) == set(names)
    assert main(["finalize", "-i", str(out), "-o", str(tmp_path / "dense")]) == 0
    record = read_record(tmp_path / "dense")[0]
    assert "pruned" not in record
    assert prunable(record) is None


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_weights_of_other_forms_are_numbers(trained, tmp_path, number):
    tree, record = load_checkpoint(trained / "run" / "checkpoints" / "2")
    model = build(record["config"]["model"])
    to_hf(model, tree["params"], tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    tensors = dict(load_file(file))
    for part in ("h.0.mlp.c_fc.weight", "ln_f.weight", "wte.weight"):
        name = next(name for name in tensors if name.endswith(part))
        value = tensors[name].copy()
        value.flat[5] = number
        save_file(tensors | {name: value}, file)
        with pytest.raises(ContentError, match=r"weights \S+ are no numbers .*(nan|inf) at \["):
            from_hf(tmp_path / "hf")
        with pytest.raises(CheckpointError, match="are no numbers"):
            load_hf(tmp_path / "hf")


@pytest.mark.parametrize("target", ["wafer", "cs-2.5"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_convert_makes_no_pruned_weights_of_a_damaged_folder(tmp_path, capsys, dtype, target):
    model = build(TINY)
    to_hf(model, model.init(jax.random.key(0)), tmp_path / "hf", dtype=dtype)
    file, out = tmp_path / "hf" / "model.safetensors", tmp_path / "out"
    tensors = dict(load_file(file))
    line = f"convert convert --model gpt2 --src-fmt hf --tgt-fmt {target} -o {out} {file.parent}"
    for part, bad in (("h.0.mlp.c_fc.weight", np.nan), ("h.0.ln_2.bias", np.inf)):
        name = next(name for name in tensors if name.endswith(part))
        value = tensors[name].copy()
        value.flat[5] = bad
        save_file(tensors | {name: value}, file)
        assert main(line.split()) == 1
        said = capsys.readouterr().err
        assert f"{file.parent}: weights layers_" in said
        assert f": {bad} at [" in said
        assert not out.exists()


def put_number(path, number):
    """In the first tensor of sevens, one other number."""
    with MdlFile(path) as stored:
        at = next(stored.dataset(n) for n in stored if np.all(stored[n] == np.float32(7)))
    with h5py.File(path, "r+") as file:
        value = file[at][...]
        value.flat[3] = number
        file[at][...] = value


def test_in_a_mdl_only_weights_that_can_be_sparse_have_marks(trained, tmp_path):
    tree, record = load_checkpoint(trained / "run" / "checkpoints" / "2")
    model = build(record["config"]["model"])
    leaves = {name: np.array(leaf) for name, leaf in named_leaves(tree["params"])}
    embedding = next(name for name in leaves if "embedding" in name)
    for i, (name, number, taken) in enumerate(
        (
            (KERNEL, np.nan, True),
            (KERNEL, np.inf, False),
            (next(name for name in leaves if name.endswith("norm_f/scale")), np.nan, False),
            (embedding, np.nan, False),
        )
    ):
        path = tmp_path / f"{i}.mdl"
        write_weights(
            model, unflatten(leaves | {name: np.full_like(leaves[name], 7.0)}), path, "cs-2.5"
        )
        put_number(path, number)
        if taken:
            assert np.isnan(read_weights(path, model)[name]).sum() == 1
            assert wafer.finalize(path, tmp_path / f"{i}-dense.mdl").lines()
            continue
        with pytest.raises(ContentError, match=r"weights \S+ are no numbers .*(nan|inf) at"):
            read_weights(path, model)
        with pytest.raises(ContentError, match="are no numbers"):
            wafer.finalize(path, tmp_path / f"{i}-dense.mdl")


@pytest.mark.parametrize("form", ["hf", "cs"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_written_from_python_holds_numbers(tmp_path, form, number):
    model = build(TINY)
    leaves = {n: np.array(leaf) for n, leaf in named_leaves(model.init(jax.random.key(0)))}
    bad = {**leaves, KERNEL: leaves[KERNEL].copy()}
    bad[KERNEL][0, 1] = number
    out = tmp_path / ("hf" if form == "hf" else "a.mdl")

    def write(values, **options):
        if form == "hf":
            return to_hf(model, values, out, **options)
        return write_weights(model, values, out, "cs-2.5", **options)

    for pruned in ((), {KERNEL.replace("up", "down")}):
        with pytest.raises(ContentError, match=rf"weights {KERNEL} .*{number} at \[0, 1\]"):
            write(bad, pruned=pruned)
        assert not [p for p in tmp_path.rglob("*") if p.is_file()]
    if np.isinf(number):
        with pytest.raises(ContentError, match=rf"weights {KERNEL} "):
            write(bad, pruned=[KERNEL])
        return
    write(bad, pruned=[KERNEL])
    back = read_weights(out, model) if form == "cs" else dict(named_leaves(from_hf(out)[1]))
    expected = leaves[KERNEL].copy()
    expected[0, 1] = 0
    np.testing.assert_array_equal(back[KERNEL], expected)


def test_weights_alone_list_what_is_pruned(tmp_path):
    whole = {KERNEL: np.ones((2, 2), np.float32), NORM: np.ones(2, np.float32)}
    sparse = whole | {KERNEL: np.array([[1, np.nan]], np.float32)}
    for i, (arrays, pruned, listed) in enumerate(
        ((whole, (), []), (sparse, [KERNEL], [KERNEL]), (whole, None, []), (sparse, None, [KERNEL]))
    ):
        write_params(tmp_path / str(i), {"name": "x"}, list(arrays), arrays.items(), pruned)
        assert read_record(tmp_path / str(i))[0]["pruned"] == listed
    with pytest.raises(ContentError, match=rf"weights {KERNEL} "):
        write_params(tmp_path / "c", {"name": "x"}, list(sparse), sparse.items())


def test_no_checkpoint_of_weights_with_an_infinity_is_written(tmp_path):
    with pytest.raises(CheckpointError, match="weights a are no numbers"):
        write_params(tmp_path / "c", {"name": "x"}, ["a"], [("a", np.array([np.inf]))])
    assert not (tmp_path / "c" / "meta").exists()


def edited(trained, target, **changes):
    """A copy of the run whose record has other entries and a checksum that fits them."""
    shutil.copytree(trained / "run", target)
    path = target / "checkpoints" / "2" / "meta" / "metadata"
    record = json.loads(path.read_text()) | changes
    del record["record_checksum"]
    sealed = f"{crc32(json.dumps(record, sort_keys=True).encode()):08x}"
    path.write_text(json.dumps(record | {"record_checksum": sealed}))


def test_without_a_place_in_the_data_a_run_does_not_begin_them_anew(trained, tmp_path, capsys):
    edited(trained, tmp_path / "run", data=None)
    command = ["run", "-p", f"{trained}/p.yaml", "-o", f"{tmp_path}/run", "-m"]
    assert main([*command, "train", "--max_steps", "3"]) == 1
    said = capsys.readouterr().err
    assert "checkpoints/2: its record has no data, the position in the training data" in said
    states = said.split("--load_checkpoint_states ")[1].split()[0]
    assert main([*command, "train", "--max_steps", "3", "--load_checkpoint_states", states]) == 0


def test_the_step_of_record_folder_and_arrays_is_one(trained, tmp_path, capsys):
    command = ["run", "-p", f"{trained}/p.yaml", "-m", "train", "--max_steps", "9", "-o"]
    edited(trained, tmp_path / "a", step=7)
    assert main([*command, f"{tmp_path}/a"]) == 1
    assert "step of its record is 7, the folder's name says 2" in capsys.readouterr().err
    edited(trained, tmp_path / "b", step=7)
    (tmp_path / "b/checkpoints/2").rename(tmp_path / "b/checkpoints/7")
    assert main([*command, f"{tmp_path}/b"]) == 1
    assert "step of its record is 7, its array step says 2" in capsys.readouterr().err
    shutil.copytree(trained / "run/checkpoints/2", tmp_path / "elsewhere/start")
    start = ["--checkpoint_path", f"{tmp_path}/elsewhere/start", "--max_steps", "3"]
    assert main([*command[:5], "-o", f"{tmp_path}/c", *start]) == 0


EDITS = {
    "hidden_size": 16,
    "num_hidden_layers": 2,  # arrays that are missing
    "vocab_size": 18,
    "max_position_embeddings": 4,
    "filter_size": 8,
    "use_ffn_bias": False,  # arrays that the model has not
    "initializer": {"name": "truncated_normal", "std": 0.02, "mean": 0.0, "a": -0.04, "b": 0.04},
    "name": "bert",
}
READERS = {
    "generate": "generate --checkpoint_path {edited} --prompt a",
    "dense": "generate --checkpoint_path {edited} --prompt a --kernels dense",
    "prune": "prune --checkpoint_path {edited} --method magnitude --sparsity 0.5 -o {out}",
    "hf": "convert convert --model gpt2 --src-fmt wafer --tgt-fmt hf -o {out} {edited}",
    "new": "config new --checkpoint_path {edited} --data {rows} -o {out}",
    "fold": "finalize --fold_lora -i {edited} -o {out}",
    "finalize": "finalize -i {edited} -o {out}",
}


@pytest.mark.parametrize("key", EDITS)
def test_a_record_of_another_model_is_refused_by_all_that_read_arrays(tmp_path, capsys, key):
    leaves = dict(named_leaves(build(TINY).init(jax.random.key(0))))
    edited, out = tmp_path / "edited", tmp_path / "out"
    also = {"hidden_size": 16} if key == "initializer" else {}  # its name is no model's
    write_params(edited, TINY | {key: EDITS[key]} | also, leaves, leaves.items())
    Tokenizer(WordLevel({"a": 0}, "a")).save(str(edited / "tokenizer.json"))
    (tmp_path / "rows").write_text("1 2 3")
    places = {"edited": edited, "out": out, "rows": tmp_path / "rows"}
    for command, line in READERS.items():
        if key == "name" and command in ("generate", "dense"):
            continue  # it writes no text
        assert main(line.format(**places).split()) == 1, command
        said = capsys.readouterr().err
        assert "its arrays are not those of the model that its record names" in said, command
        assert not out.exists()
    with pytest.raises(CheckpointError, match=rf"edited: its arrays .*\({EDITS['name']}|gpt2\)"):
        load(edited)


def test_the_arrays_that_differ_are_listed(tmp_path):
    leaves = dict(named_leaves(build(TINY).init(jax.random.key(0))))
    write_params(tmp_path / "a", TINY | {"vocab_size": 18}, leaves, leaves.items())
    with pytest.raises(
        CheckpointError, match=r"token\S*: shape \(16, 8\), the model needs shape \(18, 8\)"
    ):
        load(tmp_path / "a")


@pytest.mark.parametrize(
    "model",
    [
        {"name": "registered-elsewhere"},
        {"name": "mine:build"},
        {"name": "llava", "text_model": {"name": "registered-elsewhere"}},
        {},
    ],
)
def test_finalize_compares_no_arrays_with_a_model_that_is_not_known(tmp_path, model):
    weight = np.array([[1, np.nan]], np.float32)
    write_params(tmp_path / "a", model, ["w"], [("w", weight)], pruned=["w"])
    assert main(["finalize", "-i", str(tmp_path / "a"), "-o", str(tmp_path / "b")]) == 0
    np.testing.assert_array_equal(load_checkpoint(tmp_path / "b")[0]["params"]["w"], [[1, 0]])
