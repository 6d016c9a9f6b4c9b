"""Time stamps of scripts under NumPy 2, which keeps 16 bits of a 16-bit element that is shifted.

Of three words of a time stamp ``words[1] << 16`` is then 0. The types are looked at when the line
runs, so that 32-bit words are not warned of.
"""

import ast
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

SCRIPT = "WAFER_CSL_SCRIPT"  # environment variable: the script that a process runs


def shifted_elements(script: Path) -> Iterator[tuple[Path, int, CodeType]]:
    """Return the elements that files of a script's folder shift by 16 bits or more.

    Args:
        script: its file.

    Yields:
        The file, the line, and code whose value the element is.
    """
    for path in sorted(script.resolve().parent.glob("*.py")):
        with contextlib.suppress(OSError, SyntaxError, UnicodeDecodeError):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.BinOp(
                        ast.Subscript() as element, ast.LShift(), ast.Constant(value=int() as bits)
                    ) if bits >= 16:
                        code = compile(ast.Expression(element), str(path), "eval")
                        yield path, node.lineno, code


def watch_shifts(script: Path) -> None:
    """Write a warning to stderr, once, when a script shifts a 16-bit element by 16 bits or more.

    Args:
        script: its file, whose folder is read; it may run already.
    """
    found = {(str(path), line): code for path, line, code in shifted_elements(script)}
    if np.lib.NumpyVersion(np.__version__) < "2.0.0" or not found or sys.gettrace():
        return
    files = {name: path for path, _ in found for name in (path, os.path.relpath(path))}

    def lines(frame: FrameType, event: str, _: Any) -> Any:
        place = files[frame.f_code.co_filename], frame.f_lineno
        if event == "line" and place in found:
            with contextlib.suppress(Exception):
                value = eval(found[place], frame.f_globals, frame.f_locals)
                if isinstance(value, np.generic) and value.dtype.itemsize == 2:
                    sys.settrace(None)
                    sys.stderr.write(
                        f"{place[0]}:{place[1]}: warning: NumPy {np.__version__} keeps 16 bits of a"
                        " 16-bit element that is shifted, so time stamps above 65,535 are wrong"
                        " here; use int(words[1]) << 16, or cerebras.sdk.sdk_utils.make_u48\n"
                    )
                    return None
        return lines

    def calls(frame: FrameType, event: str, _: Any) -> Any:
        return lines if frame.f_code.co_filename in files else None

    frame: FrameType | None = sys._getframe()
    while frame is not None:  # those that run already
        frame.f_trace = calls(frame, "call", None)
        frame = frame.f_back
    sys.settrace(calls)
