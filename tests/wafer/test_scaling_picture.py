"""The scaling figure: its points by hand, where it is dashed, what it refuses."""

import pytest
import yaml
from helpers.runs import config

from wafer.commands.planning.scaling import ScalingPlan, draw_scaling, short_count
from wafer.errors import ConfigError
from wafer.roofline import MACHINES, Prediction


def scaling(seconds, parameters=255_980_000):
    """A plan whose steps take these seconds: N -> seconds."""
    rest = dict.fromkeys(("compute", "waited", "latency", "memory", "streamed"), 0.0)
    predictions = tuple(
        Prediction(systems=n, seconds=s, stages={}, **rest) for n, s in seconds.items()
    )
    return ScalingPlan(
        name="gpt3",
        machine=MACHINES["cs2"],
        predictions=predictions,
        parameters=parameters,
        tokens=1,
        store_bytes=1,
        pipeline=("all",),
        micro_batches=1,
    )


def points(line):
    return dict(zip(line.get_xdata(), line.get_ydata(), strict=True))


def test_lines_by_hand():
    small = scaling({64: 4.0, 1: 2.0, 16: 2.5})
    large = scaling({1: 10.0, 4: 10.0}, 20_556_613_632)
    axes = draw_scaling([small, large]).axes[0]
    linear, solid, dashed, whole = axes.get_lines()
    assert points(linear) == {1: 1, 64: 64}
    assert points(solid) == {1: 1.0, 16: 16 * 2.0 / 2.5}
    assert points(dashed) == {16: 12.8, 64: 32.0}
    assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    assert points(whole) == {1: 1.0, 4: 4.0}
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["linear", "gpt3, 256 M", "gpt3, 20.6 B"]
    assert axes.get_title() == f"Weight streaming, predicted for {MACHINES['cs2'].name}"


def test_counts_in_words():
    assert [short_count(n) for n in (999_000, 1_300_000_000, 20_000_000_000)] == [
        "0.999 M",
        "1.3 B",
        "20 B",
    ]


def test_what_it_refuses(tmp_path):
    with pytest.raises(ConfigError, match=r"num_csx.*at least two numbers of systems"):
        draw_scaling([scaling({4: 1.0})])
    with pytest.raises(ConfigError, match=r"picture: .*a.txt': unknown kind.*png.*svg"):
        draw_scaling([scaling({1: 1.0, 2: 1.0})], str(tmp_path / "a.txt"))


def test_the_command_draws_several_models(tmp_path, cli):
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for file in files:
        file.write_text(yaml.safe_dump(config()))
    picture = tmp_path / "scaling.png"
    said = cli(["plan", "-p", *files, "--num_csx", "1,2", "--picture", picture])
    assert said.count("parameters, streamed") == 2
    assert picture.read_bytes().startswith(b"\x89PNG")
