"""``cszoo``: the vendor's verbs, each as one of ours."""

import numpy as np
import pytest

from wafer import __main__
from wafer.cli import main
from wafer.errors import WaferError
from wafer.models.checkpoint.verify import verify
from wafer.models.checkpoint.writer import write_params
from wafer.vendor.cszoo import VERBS, help_text, translate


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("fit p.yaml", "run -m train_and_eval -p p.yaml"),
        ("fit p.yaml --target_device CPU -o d", "run CPU -m train_and_eval -p p.yaml -o d"),
        ("fit -o d --num_csx 2 p.yml", "run -m train_and_eval -p p.yml -o d --num_csx 2"),
        ("validate p.yaml --target_device=GPU", "run GPU -m eval -p p.yaml"),
        ("validate_all p.yaml", "run -m eval_all -p p.yaml"),
        ("data_preprocess run --config f.yaml", "data preprocess --config f.yaml"),
        ("data_processor describe X --json", "config keys X"),
        ("model info gpt2", "models gpt2"),
        ("config validate p.yaml", "run --validate_only -p p.yaml"),
        ("config stats p.yaml --order_by=numel --descending", "plan -p p.yaml"),
        ("config diff a.yaml b.yaml -v 2", "config diff a.yaml b.yaml"),
        ("fit --help", "run -m train_and_eval --help"),
        ("checkpoint copy a b/ -p mine", "checkpoint copy a b/"),
        (
            "checkpoint convert d --model gpt2 --src-fmt cs-auto --tgt-fmt hf",
            "convert convert d --model gpt2 --src-fmt wafer --tgt-fmt hf",
        ),
        (
            "checkpoint convert a.mdl --model gpt2 --src-fmt cs-auto --tgt-fmt hf",
            "convert convert a.mdl --model gpt2 --src-fmt cs-2.10 --tgt-fmt hf",
        ),
        ("checkpoint diff a b", "convert diff a b"),
        ("data_preprocess pull chat -o d", "data new chat -o d"),
        ("model init_checkpoint p.yaml -o d", "checkpoint init -p p.yaml -o d"),
        (
            "data_processor benchmark p.yaml --steps_per_epoch 2 --logging INFO",
            "data benchmark -p p.yaml --steps_per_epoch 2",
        ),
        (
            "config convert_legacy p.yaml -o d --model gpt2",
            "convert convert-config --src-fmt cs-2.2 --tgt-fmt cs-2.9 p.yaml -o d --model gpt2",
        ),
        ("checkpoint list-converters all --hide-notes", "convert list"),
        (
            "checkpoint convert w --model gpt2 --src-fmt hf --tgt-fmt cs-2.9 --no-progress-bar",
            "convert convert w --model gpt2 --src-fmt hf --tgt-fmt cs-2.9",
        ),
        (
            "lm_eval p.yaml --target_device CSX --tasks piqa -f 2 --use_cache c --output_path o",
            "evaluate -p p.yaml --tasks piqa -f 2 --output_path o",
        ),
    ],
)
def test_a_verb_is_one_of_ours(theirs, ours):
    assert translate(theirs.split()) == ours.split()


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ("bigcode_eval p.yaml", "--export hf.*bigcode-evaluation-harness"),
        ("assistant hello", "read docs/index.md"),
        ("config pull gpt2", "wafer config new --model NAME"),
        ("fti p.yaml", "did you mean 'fit'"),
        ("checkpoint sum x", "no such verb.*checkpoint convert"),
    ],
)
def test_what_is_not_here_names_what_to_use(theirs, message):
    with pytest.raises(WaferError, match=message):
        translate(theirs.split())


def test_every_verb_is_of_a_command_that_there_is_or_says_why(capsys):
    for verb in VERBS.values():
        assert bool(verb.ours) != bool(verb.instead)
        if verb.ours:
            with pytest.raises(SystemExit) as end:
                main([verb.ours[0], *(w for w in verb.ours[1:2] if w[0] != "-"), "--help"])
            assert end.value.code == 0
    assert "usage: wafer" in capsys.readouterr().out


def test_the_entry_prints_its_table_and_errors(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["cszoo", "-h"])
    assert __main__.cszoo() == 0
    assert capsys.readouterr().out == help_text() + "\n"
    monkeypatch.setattr("sys.argv", ["cszoo", "assistant", "x"])
    assert __main__.cszoo() == 1
    assert "cszoo assistant is not here" in capsys.readouterr().err


@pytest.mark.parametrize("group", sorted({name.split()[0] for name in VERBS if " " in name}))
@pytest.mark.parametrize("asked", [["--help"], ["-h"], []])
def test_a_group_has_a_table_of_its_own(group, asked, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["cszoo", group, *asked])
    assert __main__.cszoo() == (0 if asked else 2)
    usage, _, *lines = capsys.readouterr().out.splitlines()
    assert usage.startswith(f"usage: cszoo {group} VERB [arguments]")
    verbs = [name for name in VERBS if name.split()[0] == group]
    assert [" ".join(line.split()[:2]) for line in lines] == verbs


def test_files_are_compared_by_key(tmp_path, capsys):
    one, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    one.write_text("model: {name: gpt2, layers: [1, 2]}\n")
    other.write_text("model: {name: gpt2, layers: [1, 3], bias: true}\n")
    assert main(["config", "diff", str(one), str(other)]) == 0
    want = "Added: model.bias: True\nChanged: model.layers[1]: 2 -> 3\n"
    assert capsys.readouterr().out == want
    main(["config", "diff", str(one), str(one)])
    assert capsys.readouterr().out == "Configs are identical.\n"


def test_checkpoints_are_described_copied_moved_and_deleted(tmp_path, capsys):
    stored = tmp_path / "run" / "checkpoints" / "4"
    write_params(stored, {"name": "gpt2"}, ["a"], [("a", np.ones(3, np.float32))])
    (tmp_path / "notes.txt").write_text("a")

    def run(line):
        code = main(translate(line.format(tmp_path).split()))
        return code, "".join(capsys.readouterr())

    assert "last modified" in run("checkpoint info {0}/run/checkpoints/4")[1]
    assert run("checkpoint copy {0}/run/checkpoints/4 {0}/other/")[0] == 0
    assert verify(tmp_path / "other" / "4").arrays == 1
    code, said = run("checkpoint copy {0}/run/checkpoints/4 {0}/other/4/")
    assert code == 0  # with / at the end the name is kept: other/4/4
    code, said = run("checkpoint move {0}/other/4/4 {0}/moved")
    assert code == 0
    assert not (tmp_path / "other" / "4" / "4").exists()
    assert verify(tmp_path / "moved").arrays == 1
    code, said = run("checkpoint move {0}/moved {0}/notes.txt")
    assert (code, "is there already" in said) == (1, True)
    code, said = run("checkpoint delete {0}/notes.txt")
    assert (code, "expected a checkpoint" in said) == (1, True)
    assert run("checkpoint delete {0}/moved")[0] == 0
    assert not (tmp_path / "moved").exists()
