"""docs/howto/family-in-tree.md: every family of the tree has its row in every table."""

import json

import pytest
from helpers.hf_sections import SECTIONS
from helpers.paths import GOLDEN, ROOT

from wafer.models.convert.tables.class_defaults import CLASS_DEFAULTS, HARMLESS
from wafer.models.convert.tables.decoder_configs import DECODER_CONFIGS
from wafer.models.convert.tables.decoder_tables import DECODER_TABLES
from wafer.models.convert.tables.other_configs import OTHER_CONFIGS
from wafer.models.convert.tables.other_tables import OTHER_TABLES
from wafer.models.names import MODELS

PAGE = ROOT / "docs" / "howto" / "family-in-tree.md"
TYPES = sorted({entry.hf for entry in MODELS.values() if entry.hf})
# Without files of transformers' own: code that is not in it, and a tower that LLaVA's files hold.
NO_GOLDEN = {"crystalcoder", "clip_vision_model"}


def golden_types():
    configs = (path.read_text() for path in (GOLDEN / "hf").glob("*/config.json"))
    return {json.loads(text)["model_type"] for text in configs}


@pytest.mark.parametrize("kind", TYPES)
def test_a_family_has_a_row_in_every_table(kind):
    missing = [
        name
        for name, table in {
            "DECODER_CONFIGS or OTHER_CONFIGS": {**DECODER_CONFIGS, **OTHER_CONFIGS},
            "DECODER_TABLES or OTHER_TABLES": {**DECODER_TABLES, **OTHER_TABLES},
            "HARMLESS": HARMLESS,
            "CLASS_DEFAULTS": CLASS_DEFAULTS,
            "tests/golden/hf": golden_types() | NO_GOLDEN,
        }.items()
        if kind not in table
    ]
    assert not missing, f"{kind}: see docs/howto/family-in-tree.md"


def test_the_export_test_and_the_results_have_every_family():
    missing = set(TYPES) - {MODELS[name].hf for name in SECTIONS if name in MODELS}
    assert not missing, "SECTIONS of tests/helpers/hf_sections.py"


def test_the_page_names_the_tables():
    text = PAGE.read_text()
    for table in ("MODELS", "DECODER_CONFIGS", "DECODER_TABLES", "HARMLESS", "CLASS_DEFAULTS"):
        assert f"`{table}`" in text
