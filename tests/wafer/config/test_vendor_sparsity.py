"""Sparsity sections of the vendor's releases 1.8 to 2.1 in our words."""

import pytest

from wafer.models.errors import SectionError
from wafer.sparsity import GMP, SET, RigL, Static, configure
from wafer.sparsity.algorithms.inband import InBandStatic
from wafer.sparsity.filters import ParamFilter
from wafer.sparsity.schedules import Cycling, ExponentialValue, UpdateSteps
from wafer.sparsity.views import RowGroups
from wafer.vendor.sparsity import core_section


def configure_older(section):
    return configure(core_section(section))


def only(section):
    (group,) = configure_older(section).groups
    return group


def test_release_18_examples_of_the_document():
    rule, algorithm = only(
        {"sparsity": 0.3, "init_method": "topk", "param_name_patterns": "ffn.*weight", "seed": 1234}
    )
    assert rule == ParamFilter("regex", ("ffn.*weight",))
    assert algorithm == InBandStatic(sparsity=0.3, init_method="topk", seed=1234)
    names = ["fc1.weight", "fc2.weight"]
    rule, _ = only({"sparsity": 0.9, "init_method": "random", "param_name_patterns": names})
    assert rule.matches(["model.fc2.weight"], 2)
    assert not rule.matches(["fc3.weight"], 2)
    patterns = {"fc1": {"sparsity": 0.3}, "fc2": {"sparsity": 0.4}}
    several = {"init_method": "random", "seed": 7, "param_name_patterns": patterns}
    several = configure_older(several)
    assert [float(a.sparsity(0)) for _, a in several.groups] == pytest.approx([0.3, 0.4])
    assert [a.seed for _, a in several.groups] == [7, 7]


def test_release_20_sections_are_translated():
    gmp = {"type": "gmp", "sparsity_schedule": [[0, 0.3], [10, 0.5]]}
    rule, algorithm = only(gmp | {"param_name_patterns": "fc.*weight"})
    assert rule == ParamFilter("glob", ("fc*weight",))
    assert algorithm == GMP(sparsity=Cycling((0.3, 0.5)), update=UpdateSteps((0, 10)))
    _, algorithm = only({"type": "rigl", "sparsity": 0.9, "schedule": 1000})
    assert algorithm == RigL(sparsity=0.9, update=1000)
    exp = {"type": "exp", "init": 0.1, "gamma": -0.1}
    _, algorithm = only({"type": "gmp", "sparsity": exp, "schedule": {"freq": 5}})
    assert algorithm == GMP(sparsity=ExponentialValue(0.1, -0.1), update={"freq": 5})
    patterns = {"a.*": {}, "b": {"sparsity": 0.7}}
    both = configure_older({"type": "set", "sparsity": 0.5, "param_name_patterns": patterns})
    levels = {str(rule): float(algorithm.sparsity(0)) for rule, algorithm in both.groups}
    assert levels == {"a*": 0.5, "b": pytest.approx(0.7)}


def test_type_in_a_22_section_is_algorithm():
    _, algorithm = only({"type": "set", "sparsity": 0.5, "param_filter": "*"})
    assert isinstance(algorithm, SET)
    assert not configure_older({"sparsity": None}).groups
    both = configure_older([{"sparsity": 0.5, "init_method": "topk", "seed": 1}, 0.9])
    assert [type(a) for _, a in both.groups] == [InBandStatic, Static]


def test_groups_and_zeros_of_release_18():
    older = {"init_method": "from_zeros", "seed": 0, "in_groups": 2}
    rule, algorithm = only(older)
    assert rule == ParamFilter("default", ("embedding", "norm", "lm_head"))
    keys = {"init_method": "from_zeros", "seed": 0, "structure": RowGroups(2, "in")}
    assert algorithm == InBandStatic(sparsity=0.0, **keys)
    assert core_section(core_section(older)) == core_section(older)


TOPK = {"init_method": "topk"}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"sparsity": 0.5, "seed": 1, "update": 3}, "belong to release 1.8"),
        ({"sparsity": 0.5, "seed": 1}, r"sparsity\.init_method"),
        ({"sparsity": 0.5, "seed": "x", "init_method": "topk"}, "expected a whole number"),
        ({"sparsity": 1, "seed": 1, "init_method": "topk"}, "got 1"),
        (TOPK | {"param_name_patterns": {"fc(": {"sparsity": 0.1}}}, r"'fc\(' is no regex"),
        (TOPK | {"param_name_patterns": {"fc1": {"sparsity": 1}}}, "got 1"),
        (TOPK | {"sparsity": 0.5, "seed": 1, "in_groups": 2, "out_groups": 2}, "exclude each"),
        ({"type": "sideband", "sparsity_schedule": [[0, 0.1]]}, r"sparsity\.type.*sideband"),
        ({"sparsity_schedule": [[0, 0.1]]}, "need static, gmp, set or rigl, got None"),
        ({"type": "gmp", "sparsity_schedule": [3]}, r"expected \[\[step, level\], \.\.\.\]"),
    ],
)
def test_mistakes_are_named(section, message):
    with pytest.raises(SectionError, match=f"(?s){message}"):
        configure_older(section)
