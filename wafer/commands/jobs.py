"""The verbs of ``wafer jobs``; no jax, so they answer at once."""

import argparse
import sys

from wafer.jobs import verbs
from wafer.jobs.show import render
from wafer.jobs.store import JobStore
from wafer.models.errors import plain


def _say(text: str) -> int:
    sys.stdout.write(plain(text) + "\n")
    return 0


def _get(args: argparse.Namespace) -> int:
    store = JobStore()
    if args.id is not None:
        return _say(render([store.find(args.id)], args.output or "table", single=True))
    jobs = store.jobs(finished=args.all)
    if not jobs and args.output in (None, "table"):
        rest = "" if args.all else "; -a lists finished jobs too"
        return _say(f"No jobs in {store.path}{rest}")
    return _say(render(jobs, args.output or "table", single=False))


def _cancel(args: argparse.Namespace) -> int:
    job = verbs.cancel(JobStore(), args.id, args.timeout)
    if job.phase == "CANCELLED":
        return _say("Job canceled successfully")
    if not job.running:
        return _say(f"{job.id} ended by itself: {job.phase}")
    return _say(f"{job.id} was asked to end and will, after its current step")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs."""
    actions = parser.add_subparsers(required=True, metavar="VERB")
    patched = lambda job: _say(f"job/{job.id} was patched")

    get = actions.add_parser("get", help="jobs that run; one in full with its id")
    get.add_argument("id", nargs="?", help="job id, or the beginning of one")
    get.add_argument("-a", "--all", action="store_true", help="finished jobs too")
    get.add_argument("-o", "--output", choices=("table", "yaml", "json"))
    get.set_defaults(run=_get)

    cancel = actions.add_parser("cancel", help="end a job; it writes a checkpoint")
    cancel.add_argument("id")
    cancel.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for its end")
    cancel.set_defaults(run=_cancel)

    label = actions.add_parser("label", help="set key=value, remove key-")
    label.add_argument("id")
    label.add_argument("labels", nargs="+", metavar="key=value")
    label.set_defaults(run=lambda a: patched(verbs.label(JobStore(), a.id, a.labels)))

    export = actions.add_parser("log-export", help="pack a job's record, logs and metrics")
    export.add_argument("id")
    export.add_argument("-o", "--output", help="file or folder to write (default: here)")
    export.set_defaults(run=lambda a: _say(str(verbs.export_logs(JobStore(), a.id, a.output))))

    config = actions.add_parser("config", help="where jobs are kept")
    config.set_defaults(run=lambda _: _say(f"store: {JobStore().path}"))
