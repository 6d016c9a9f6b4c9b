"""The end of a command: nobody reads its output, or its message holds what a terminal obeys."""

import logging
import os
import pathlib
import runpy
import signal
import subprocess
import sys

import pytest
from helpers.paths import ROOT
from helpers.runs import tiny

from wafer.cli import main
from wafer.config import parse_config
from wafer.errors import ConfigError
from wafer.session.logs import CONSOLE, setup_logging

DIGITS = ROOT / "models" / "configs" / "fc_mnist" / "fc_digits.yaml"


def python(*words, **options):
    """Run Python to its end: (status, errors)."""
    command = [sys.executable, *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("command", [["models"], ["data", "--help"]])
def test_a_reader_that_has_seen_enough_ends_a_command_quietly(command):
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "wafer", *command],
        check=False,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert ended.stderr == ""
    assert ended.returncode in (0, 141)  # argparse passes over what it cannot print


def test_messages_spell_out_what_steers_a_terminal_and_end_somewhere(cli):
    said = cli(["data", "verify", "no\x1b[31m\x07\x9b\udc80é"], 1)
    assert r"no\x1b[31m\x07\x9b\udc80é; expected" in said
    said = cli(["data", "split", "-i", "a", "-o", "b", "--ratios", "x" * 30_000], 1)
    assert said.endswith(" more characters)\n")


@pytest.mark.parametrize(
    "line",
    [
        "checkpoint manifest {}", "convert diff x {}", "sweep x -o {}", "config upgrade {}",
        "convert convert --model gpt2 --src-fmt hf --tgt-fmt wafer {}", "run -p {}",
        "data verify {}", "data split -i {} -o x --ratios 1", "prune -m magnitude -s 0.5 -o {}",
        "run -p " + str(DIGITS) + " -o {}", "finalize --fold_lora -i {} -o x",
        "generate --checkpoint_path x --input {}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("address", ["s3://bucket/run/500", "gs://bucket/x"])
def test_an_address_in_the_place_of_a_path_is_refused_as_it_was_typed(line, address, cli):
    said = cli(line.format(address), 1)
    assert f"{address}: an object store; expected a path of this machine" in said
    assert not pathlib.Path(address.partition("/")[0]).exists()


@pytest.mark.parametrize(
    "change",
    [
        {"runconfig": {"model_dir": "s3://bucket/run"}},
        {"runconfig": {"summary_dir": "gs://bucket/run"}},
        {"train_input": {"data_processor": "GptHDF5DataProcessor", "data_dir": "s3://bucket/run"}},
    ],
)
def test_a_key_that_takes_a_path_refuses_an_address(change):
    ((section, keys),) = change.items()
    with pytest.raises(ConfigError, match=rf"{section}\..*_dir: .*//bucket/run: an object store"):
        parse_config(tiny(**{section: keys}))


def test_log_lines_and_verify_spell_them_out_too(tmp_path, capsys, monkeypatch):
    setup_logging("INFO")
    try:
        monkeypatch.setattr(CONSOLE, "_file", sys.stderr)  # `file` itself is worked out anew
        logging.getLogger("wafer").warning("no %s", "\x1b[31m\x07é")
        assert r"no \x1b[31m\x07é" in capsys.readouterr().err
        folder = tmp_path / "\x1b[31m" / "checkpoints" / "7"
        for name in ("state", "meta"):
            (folder / name).mkdir(parents=True)
        (folder / "meta" / "metadata").write_text("{")
        assert main(["checkpoint", "verify", str(folder)]) == 1
        err = capsys.readouterr().err
        assert r"/\x1b[31m/checkpoints/7 cannot be read" in err
        assert "\x1b" not in err
    finally:
        logging.basicConfig(force=True)


def test_a_tilde_that_no_shell_expanded_is_the_home_folder(tmp_path, cli, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"{tmp_path}/no.yaml" in cli("run --mode=train --params=~/no.yaml", 1)


def test_a_verb_that_is_missing_or_misspelled_is_told_from_those_there_are(capsys):
    for command, among in (([], "finalize"), (["jobs"], "cancel"), (["data"], "preprocess")):
        with pytest.raises(SystemExit, match="2"):
            main(command)
        err = capsys.readouterr().err
        assert f" {among}" in err  # with its line of help
        assert err.endswith("error: name one of these\n")
    for command, meant in ((["jbs"], "jobs"), (["data", "preproces"], "preprocess")):
        with pytest.raises(SystemExit, match="2"):
            main(command)
        assert capsys.readouterr().err.endswith(f"; did you mean '{meant}'?\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("generate --max_tokens 3", "no option --max_tokens; did you mean '--max_new_tokens'?"),
        ("run --parms p.yaml", "no option --parms; did you mean '--params'?"),
        ("run --model-dir=runs", "no option --model-dir; did you mean '--model_dir'?"),
        ("--verson", "no option --verson; did you mean '--version'?"),
        ("csl run --htread 2 a.py", "wafer csl run: error: no option --htread\n"),
    ],
)
def test_a_misspelled_option_is_named_with_the_nearest_there_is(words, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("line", ["csl check -- --none.csl", "csl run -- none.py --none.csl"])
def test_words_behind_two_dashes_and_those_of_a_script_are_no_options(line, cli):
    assert "error: no option" not in cli(line, 1)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nstack"), "9 bytes.)"),
        (MemoryError(), "(MemoryError)"),
    ],
)
def test_a_model_beyond_the_memory_is_one_line(error, reason, tmp_path, monkeypatch, cli):
    def load_all(*args):
        raise error

    monkeypatch.setattr("wafer.config.load_all", load_all)
    err = cli(f"run --params {tmp_path} --mode train", 1)
    assert "error: not enough memory" in err
    assert reason in err
    assert "stack" not in err


def test_a_copied_script_runs_with_one_line_changed(tmp_path, capsys, monkeypatch):
    """The vendor's run.py of release 2.10, whose import names ours."""
    script = tmp_path / "run.py"
    script.write_text("if __name__ == '__main__':\n    from wafer.run import run\n\n    run()\n")
    flags = f"CSX --params {DIGITS} --mode train --validate_only --model_dir {tmp_path}/m"
    monkeypatch.setattr(sys, "argv", [str(script), *flags.split()])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert "parameters" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["notes", "notes/rows"])
def test_a_file_in_the_place_of_a_folder_is_named(folder, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").write_text("a text", encoding="utf-8")
    said = cli(f"run --params {DIGITS} --mode train --model_dir {folder}", 1)
    assert "(notes is a file; expected a folder)" in said


LAST_SECONDS = """
import concurrent.futures, os, signal, sys, time
from wafer import __main__, cli
pool = concurrent.futures.ThreadPoolExecutor(1)

def command(argv):
    pool.submit(time.sleep, 600)  # a worker that the interpreter waits for, as for a compiler
    {interrupted}
    return 130

cli.main = command
code = __main__.main()
os.kill(os.getpid(), signal.SIGINT)
sys.exit(code)
"""


@pytest.mark.parametrize("interrupted", ["pass", "os.kill(os.getpid(), signal.SIGINT)"])
def test_a_second_interrupt_ends_the_process_at_once(interrupted):
    """No thread comes back to an interpreter that is gone, which aborts ("not rethrown")."""
    script = LAST_SECONDS.format(interrupted=interrupted)
    assert python("-c", script) == (-signal.SIGINT, "")


@pytest.mark.parametrize("flags", [[], ["-P"]])
def test_the_users_files_may_have_the_names_of_our_folders(tmp_path, flags):
    for name in ("models.py", "sparsity.py", "vsl/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("open('ran', 'w')")
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    assert python(*flags, "-m", "wafer", "models", cwd=tmp_path, env=env) == (0, "")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["models", "sparsity", "vsl", "sparsity.finalize"])
def test_a_folder_of_the_checkout_is_no_package_of_its_own(name):
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {name}"
    package = name.partition(".")[0]
    assert python("-P", "-c", program)[1].splitlines()[-1] == (
        f"ImportError: {package} is a folder of wafer: write `from wafer import {package}`"
    )
