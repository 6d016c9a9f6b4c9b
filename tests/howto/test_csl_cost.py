"""docs/howto/csl-cost.md: its program's stamps are what its table of costs says."""

import re

from helpers.csl_program import LAYOUT, ran
from helpers.paths import ROOT

import wafer.csl

PAGE = (ROOT / "docs" / "howto" / "csl-cost.md").read_text(encoding="utf-8")


def test_the_stamps_are_the_sum_of_the_costs(tmp_path):
    (program,) = re.findall(r"```csl\n(.*?)```", PAGE, re.DOTALL)
    (table,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "pe.csl").write_text("param x: i16;\n" + program)
    (tmp_path / "layout.csl").write_text(LAYOUT.format(width=1, routes="", kind="u32"))
    image = wafer.csl.compile(tmp_path / "layout.csl")
    names: dict[str, int] = {}
    exec(table, names)
    address = image.programs[0].symbols["y"].address
    took = int(ran(image).read(0, 0, address, 4).view("<u4")[0])
    assert took == names["product"] + 2 + 5
