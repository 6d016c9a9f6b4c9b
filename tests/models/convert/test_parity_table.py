"""The docs' table of families: every one is there, and no figure is beyond the tolerance."""

import pytest
from helpers import format_report, parity_report

from wafer.models.names import MODELS


def test_the_table_lists_every_family_with_its_parity_error():
    page = parity_report.PAGE.read_text()
    table = page.split(parity_report.MARKS[0])[1].split(parity_report.MARKS[1])[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[3:]]
    measured = {row[0]: row for row in rows}
    none = measured.pop("no Hugging Face form")
    assert set(measured) == {entry.hf for entry in MODELS.values() if entry.hf}
    named = [name for row in [*measured.values(), none] for name in row[1].split(", ")]
    assert sorted(named) == sorted(MODELS)
    assert sum(int(row[2]) for row in measured.values()) == 70
    assert measured.pop("crystalcoder")[2:] == ["0", *"–––––"]  # test_crystalcoder.py instead
    for family, row in measured.items():
        outputs, loss, gradients = (float(cell.replace("–", "0")) for cell in row[3:6])
        assert 0 < outputs <= 5e-6, family
        assert loss <= 2e-6, family
        assert gradients <= 1e-5, family
        assert row[6] in {"same", "–"}, family
        assert row[7] == "bit-equal", family


@pytest.mark.slow  # writes and reads thirty models in five releases: 13 s
def test_the_table_of_the_vendors_formats_is_what_happens():
    page = parity_report.PAGE.read_text()
    table = page.split(format_report.MARKS[0])[1].split(format_report.MARKS[1])[0]
    assert table.strip() == format_report.table()
    assert "DIFFERS" not in table
