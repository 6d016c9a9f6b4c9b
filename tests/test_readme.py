"""README's code runs, and its commands are the ones that CI and the configs name."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_custom_loop_learns_at_80_percent_sparsity(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    scope: dict = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), scope)
    out = capsys.readouterr().out
    assert "sparsity 0.80" in out
    assert float(scope["value"]) < 2.0  # ln 32 = 3.47 at the start


def test_the_test_command_is_what_ci_runs():
    (command,) = re.findall(r"^python3 -m venv .*pytest$", README, flags=re.MULTILINE)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_main_command_is_in_the_head_of_its_params_file():
    (command,) = re.findall(
        r"wafer run --params (models/configs/\S+ .*)$", README, flags=re.MULTILINE
    )
    head = (ROOT / command.split()[0]).read_text()
    assert f"wafer run --params {command}" in head
