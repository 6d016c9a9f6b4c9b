"""Floor plan of a model on the wafer, and its predicted speed: ``wafer compile``."""

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from wafer.errors import ConfigError, Problem
from wafer.models.user.flags import own_flags
from wafer.models.user.trust import add_option
from wafer.spec import SPECS

if TYPE_CHECKING:
    from wafer.commands.inputs import Source
    from wafer.compiler.experiment import CompileResult

_OVERRIDES = ("multireplica", "num_replicas", "model_dir", "compile_dir")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("-p", "--params", required=True, help="params YAML")
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="for report and pictures (default: model_dir/cs_HASH)"
    )
    parser.add_argument("--model_dir", help="folder of the default for --output")
    parser.add_argument("-c", "--compile_dir", help="where plans are kept (default: ~/.cache)")
    parser.add_argument(
        "--validate_only", action="store_true", help="match kernels and stop: no costs, no places"
    )
    copies = parser.add_mutually_exclusive_group()
    copies.add_argument(
        "--multireplica", action="store_true", default=None, help="as many copies as are fastest"
    )
    copies.add_argument("--num_replicas", type=int, help="copies on the wafer")
    parser.add_argument(
        "--inference", action="store_true", help="a plan for a decoder that writes text"
    )
    parser.add_argument(
        "--context", type=int, help="with --inference: tokens of a sequence (default: of the input)"
    )
    parser.add_argument(
        "--sequences", type=int, help="with --inference: written at once (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the placer")
    parser.add_argument("--spec", choices=tuple(SPECS), default="wse2", help="the machine")
    add_option(parser)
    parser.set_defaults(run=_main)


def _main(args: argparse.Namespace) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's own chatter
    from wafer.commands.inputs import look_at
    from wafer.compiler.experiment import config_graph
    from wafer.compiler.report import graph_table, summary

    began = time.perf_counter()
    _check_asked(inference=args.inference, context=args.context, sequences=args.sequences)
    experiment = look_at(args.params, **{key: getattr(args, key) for key in _OVERRIDES})
    if args.validate_only:
        sys.stdout.write(graph_table(config_graph(experiment), experiment.cfg.model["name"]))
        sys.stdout.write("Every operation has a kernel. Nothing was placed (--validate_only).\n")
        return 0
    asked = {key: getattr(args, key) for key in ("inference", "context", "sequences")}
    result = compile(experiment, args.output, seed=args.seed, spec=args.spec, **asked)
    how = "found from before" if result.kept else "compiled"
    sys.stdout.write(summary(result.compiled))
    sys.stdout.write(
        f"{how} in {time.perf_counter() - began:.2f} s; report and floor plan in {result.folder}\n"
    )
    return 0


@own_flags()
def compile(
    source: "Source",
    output: str | os.PathLike[str] | None = None,
    *,
    seed: int = 0,
    spec: str = "wse2",
    inference: bool = False,
    context: int | None = None,
    sequences: int | None = None,
    trust_code: bool = False,
    **overrides: object,
) -> "CompileResult":
    """Place a model's kernels on the wafer and predict its speed; nothing is run.

    Args:
        source: an Experiment, the path of a params YAML, or its sections.
        output: folder for report and pictures; None is ``model_dir/cs_HASH``.
        seed: of the placer.
        spec: the machine, 'wse2' or 'wse3'.
        inference: a plan for a decoder that writes text; a sample is then a token.
        context: with ``inference``, tokens of a sequence; None is the input's longest.
        sequences: with ``inference``, those that are written at once; None is one.
        trust_code: import code that the source names, such as a model of your own.
        **overrides: keys of ``runconfig``, for example ``num_replicas``.

    Returns:
        ``compiled``, the floor plan with its costs; ``folder``, where the report is; ``kept``,
        whether it was found from an earlier compilation.

    Raises:
        CapacityError: it does not fit.
        CompileError: operations that no kernel does.
        ConfigError: parts of the configuration that do not go together, code that is not trusted.

    Examples:
        >>> plan = wafer.compile("models/configs/fc_mnist.yaml", "plan")  # doctest: +SKIP
        >>> plan.compiled.samples  # doctest: +SKIP
    """
    from wafer.commands.inputs import look_at
    from wafer.compiler.experiment import compile_experiment, inference_of

    _check_asked(inference=inference, context=context, sequences=sequences)
    if spec not in SPECS:
        raise ConfigError([Problem(("spec",), f"{spec!r}; there are {' and '.join(SPECS)}")])
    experiment = look_at(source, trust_code=trust_code, **overrides)
    asked = inference_of(experiment, context, sequences) if inference else None
    return compile_experiment(experiment, output, seed=seed, spec=spec, inference=asked)


def _check_asked(*, inference: bool, context: int | None, sequences: int | None) -> None:
    if not inference and (context is not None or sequences is not None):
        message = "given without --inference, whose plan they are of"
        raise ConfigError([Problem(("context" if sequences is None else "sequences",), message)])
