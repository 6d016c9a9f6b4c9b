"""``wafer csl compile``, ``run`` and ``shims``: options of public scripts, files, exit codes."""

import functools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers.csl_host import image

from wafer.cli import main
from wafer.csl.host.tools.scripts import run_script


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """What the compiler was asked for; it always makes the same 3 x 2 program."""
    calls = []

    def build(layout, params, **options):
        calls.append((str(layout), params, options))
        return image()

    monkeypatch.setattr("wafer.csl.semantics.compile.compile_layout", build)
    monkeypatch.chdir(tmp_path)
    return calls


@pytest.mark.parametrize("output", ["-o deep/out", "-o=deep/out", "--output=deep/out"])
def test_options_of_public_scripts(compiled, output, tmp_path, cli):
    said = cli(
        "csl compile --arch=wse3 --fabric-dims=10,4 ./layout.csl --fabric-offsets=4,1 "
        f"--params=N:16,dx:-2 --params=b:true --colors=x_in:1 {output} --memcpy --channels=1 "
        "--width-west-buf=0 --verbose"
    )
    assert "to deep/out" in said
    params, colors = {"N": "16", "dx": "-2", "b": "true"}, {"x_in": "1"}
    options = {"arch": "wse3", "fabric": (10, 4), "offsets": (4, 1), "buffers": (0, 0)}
    options |= {"import_paths": (), "sdk": "", "memcpy": True}
    options |= {"max_inlined_iterations": None, "comptime_func_depth_limit": None}
    options |= {"strict": False, "timing": "simulator", "fp16_format": "f16"}
    assert compiled == [("layout.csl", params | colors, options)]
    out = json.loads((tmp_path / "deep" / "out" / "out.json").read_text(encoding="utf-8"))
    assert (out["params"], out["colors"]) == (params, colors)


def test_defaults(compiled, tmp_path, cli):
    cli("csl compile layout.csl --channels 1")
    assert compiled[0][2]["arch"] == "wse2"
    assert (tmp_path / "out" / "wafer.json").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--params=N", "--params=N: 'N' is not NAME:VALUE"),
        ("--params=N:1 --params=N:2", "'N' is given as 1 and as 2"),
    ],
)
def test_wrong_options(compiled, options, message, cli):
    assert message in cli(f"csl compile layout.csl {options}", 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--fabric-dims=9,4", "it takes --fabric-dims=10,4 or more"),
        ("--fabric-dims=10,3", "it takes --fabric-dims=10,4 or more"),
        ("--fabric-dims=12,4 --width-west-buf=2", "give --fabric-offsets=6,1"),
        ("--fabric-offsets=4,0", "give --fabric-offsets=4,1"),
    ],
)
def test_a_fabric_that_is_too_small(options, message, tmp_path, cli):
    layout = tmp_path / "layout.csl"
    layout.write_text("layout { @set_rectangle(3, 2); }", encoding="utf-8")
    command = f"csl compile {layout} -o={tmp_path}/out"
    cli(f"{command} --fabric-dims=10,4")
    assert message in cli(f"{command} --memcpy {options}", 1)


def test_without_memcpy_a_program_may_fill_its_fabric(tmp_path, cli):
    """As before SDK 0.9: neither margins nor offsets, unless the layout imports memcpy."""
    layout, text = tmp_path / "layout.csl", "layout { @set_rectangle(3, 2); }"
    command = f"csl compile {layout} -o={tmp_path}/out --fabric-dims=3,2"
    layout.write_text(text, encoding="utf-8")
    cli(command)
    out = json.loads((tmp_path / "out" / "out.json").read_text(encoding="utf-8"))
    assert out["fabric_offsets"] == [0, 0]
    imports = 'const m = @import_module("<memcpy/get_params>", .{ .width = 3, .height = 2 });\n'
    layout.write_text(imports + text, encoding="utf-8")
    assert "it takes --fabric-dims=10,4 or more" in cli(command, 1)


def test_numbers_that_are_none(compiled, capsys):
    with pytest.raises(SystemExit):
        main(["csl", "compile", "layout.csl", "--fabric-dims=8"])
    assert "'8' is not two numbers, as in 8,3" in capsys.readouterr().err


def test_a_script_with_our_modules(tmp_path, cli):
    """Every module that public programs import is there; arguments and exit status pass."""
    script = tmp_path / "run.py"
    script.write_text(
        "import sys\n"
        "from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime\n"
        "from cerebras.sdk.runtime.sdkruntimepybind import MemcpyDataType, MemcpyOrder\n"
        "from cerebras.sdk.runtime import runtime_utils\n"
        "from cerebras.sdk.sdk_utils import memcpy_view, input_array_to_u32, calculate_cycles\n"
        "from cerebras.sdk.debug.debug_util import debug_util\n"
        "sys.exit(3 if sys.argv[1:] == ['--name', 'out', '-m=5'] else 4)\n",
        encoding="utf-8",
    )
    cli(f"csl run {script} --name out -m=5", 3)


@pytest.mark.parametrize("command", ["run", "trace --profile"])
def test_no_such_script(command, tmp_path, cli):
    (tmp_path / "run.py").touch()
    assert cli(f"csl {command} {tmp_path}/rum.py", 1) == (
        f"wafer: error: {tmp_path / 'rum.py'} does not exist; did you mean 'run.py'?\n"
    )
    said = cli(f"csl {command} {tmp_path}", 1)
    assert f"{tmp_path}: a folder; expected a Python script" in said


def test_compiling_starts_at_once():
    """Scripts compile often: nothing that takes a second to import."""
    code = "import sys, wafer.csl.host.tools.compiler, wafer.csl.semantics.compile"
    code += "; print('jax' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_commands_for_scripts(tmp_path):
    """A script that finds ``cs_python`` on its PATH, also as the first line of a file."""
    assert main(["csl", "shims", str(tmp_path / "bin")]) == 0
    script = tmp_path / "run.py"
    script.write_text("#!/usr/bin/env cs_python\nimport cerebras.sdk\nprint('SUCCESS!')\n")
    script.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    run = functools.partial(subprocess.run, env=env, capture_output=True, check=True)
    assert b"SUCCESS!" in run([str(script)], cwd=tmp_path).stdout
    assert b"--fabric-dims" in run(["cslc", "--help"]).stdout


@pytest.mark.parametrize(("kind", "warned"), [("uint16", 1), ("uint32", 0)])
def test_a_script_that_loses_bits_of_time_stamps_is_warned_of(tmp_path, capfd, kind, warned):
    """Once, at the line, if the words have 16 bits when it runs."""
    run = f"""import numpy as np, cerebras
from stamps import make_u48
print(make_u48(np.ones(3, np.{kind})) + make_u48(np.ones(3, np.{kind})))
"""
    (tmp_path / "run.py").write_text(run, encoding="utf-8")
    text = "def make_u48(words):\n    return words[0] + (words[1] << 16) + (words[2] << 20)\n"
    (tmp_path / "stamps.py").write_text(text, encoding="utf-8")
    assert run_script(tmp_path / "run.py", []) == 0
    expected = f"{tmp_path / 'stamps.py'}:2: warning: NumPy"
    captured = capfd.readouterr()
    assert captured.err.count(expected) == warned * int(np.__version__[0] >= "2")
    assert captured.out.strip() == ("2" if warned else str(2 * (1 + (1 << 16) + (1 << 20))))


def test_a_script_that_loses_bits_in_its_own_lines(tmp_path, capfd):
    (tmp_path / "run.py").write_text(
        "import cerebras\nimport numpy as np\nwords = np.ones(3, np.uint16)\nwords[1] << 16\n",
        encoding="utf-8",
    )
    assert run_script(tmp_path / "run.py", []) == 0
    expected = f"{tmp_path / 'run.py'}:4: warning: NumPy"
    assert capfd.readouterr().err.count(expected) == int(np.__version__[0] >= "2")
