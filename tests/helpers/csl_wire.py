"""The program of a wire: words from PE 0 along a color, with changes that spoil it."""

import re

from helpers.paths import ROOT

import wafer.csl

_FOLDER = ROOT / "tests" / "wafer" / "csl" / "programs" / "wire"
TEXTS = {name: (_FOLDER / name).read_text(encoding="utf-8") for name in ("layout.csl", "pe.csl")}
_ROUTES = "".join(re.findall(r".*@set_color_config.*\n", TEXTS["layout.csl"]))


def route(x, rx, tx, more=""):
    """The line of a layout that routes the color at a PE."""
    routes = f".{{ .rx = .{{ {rx} }}, .tx = .{{ {tx} }} }}"
    return f"  @set_color_config({x}, 0, c, .{{ .routes = {routes}{more} }});\n"


def wire(folder, changes=(), *, routes=None, arch="wse2", strict=False, **params):
    """Compile it in a folder, with (old, new) texts of either file, other routes and params."""
    if routes is not None:
        changes = [*changes, (_ROUTES, routes)]
    texts = dict(TEXTS)
    for old, new in changes:
        assert any(old in text for text in texts.values()), old
        texts = {name: text.replace(old, new, 1) for name, text in texts.items()}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return wafer.csl.compile(folder / "layout.csl", params, arch=arch, strict=strict)
