"""``cszoo``: the vendor's verbs, each as one of ours."""

import pytest

from wafer import __main__
from wafer.cli import main
from wafer.commands.cszoo import VERBS, help_text, translate
from wafer.errors import WaferError


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
        ("config stats p.yaml", "plan -p p.yaml"),
        (
            "checkpoint convert d --model gpt2 --src-fmt cs-auto --tgt-fmt hf",
            "convert convert d --model gpt2 --src-fmt wafer --tgt-fmt hf",
        ),
        (
            "checkpoint convert a.mdl --model gpt2 --src-fmt cs-auto --tgt-fmt hf",
            "convert convert a.mdl --model gpt2 --src-fmt cs-2.10 --tgt-fmt hf",
        ),
        ("checkpoint diff a b", "convert diff a b"),
        ("checkpoint list-converters all --hide-notes", "convert list"),
        (
            "checkpoint convert w --model gpt2 --src-fmt hf --tgt-fmt cs-2.9 --no-progress-bar",
            "convert convert w --model gpt2 --src-fmt hf --tgt-fmt cs-2.9",
        ),
    ],
)
def test_a_verb_is_one_of_ours(theirs, ours):
    assert translate(theirs.split()) == ours.split()


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (
            "lm_eval p.yaml --tasks piqa",
            "cszoo lm_eval is not here: .*--export hf.*lm_eval --model",
        ),
        ("bigcode_eval p.yaml", "--export hf.*bigcode-evaluation-harness"),
        ("assistant hello", "read docs/index.md"),
        ("checkpoint copy a b", "use `cp -r SOURCE TARGET`"),
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


def test_files_are_compared_by_key(tmp_path, capsys):
    one, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    one.write_text("model: {name: gpt2, layers: [1, 2]}\n")
    other.write_text("model: {name: gpt2, layers: [1, 3], bias: true}\n")
    assert main(["config", "diff", str(one), str(other)]) == 0
    want = "Added: model.bias: True\nChanged: model.layers[1]: 2 -> 3\n"
    assert capsys.readouterr().out == want
    main(["config", "diff", str(one), str(one)])
    assert capsys.readouterr().out == "Configs are identical.\n"
