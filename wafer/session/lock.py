"""One training run in a model_dir at a time: a lock that ends with the process that holds it."""

import contextlib
import fcntl
import logging
import os
import pathlib
import socket
from collections.abc import Iterator

from wafer.errors import TrainingError
from wafer.models.files import contained_file

_LOG = logging.getLogger(__name__)
_FILE = ".lock"


def require_contained_files(model_dir: pathlib.Path) -> None:
    """Refuse a model_dir with files, which runs go on writing, that are links out of it.

    Folders may be links, such as ``checkpoints`` on another disk.

    Raises:
        CheckpointError: names the link and where it leads.
    """
    for pattern in ("*", "*/*"):
        for path in model_dir.glob(pattern):
            if path.is_symlink() and not path.is_dir():
                contained_file(path, model_dir)


@contextlib.contextmanager
def owned(model_dir: pathlib.Path, job: str = "") -> Iterator[None]:
    """Hold a model_dir while the body runs; the system lets it go when the process is killed.

    Args:
        model_dir: is made if it is not there.
        job: id of the job that will hold the lock, for the message of a second run.

    Raises:
        TrainingError: another run holds the lock; names its job.
    """
    model_dir.mkdir(parents=True, exist_ok=True)
    with (model_dir / _FILE).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise TrainingError(_taken(model_dir, file.read().splitlines())) from None
        except OSError as error:  # a file system without locks
            _LOG.warning(
                "%s: no lock (%s); a second run there would not be detected", model_dir, error
            )
        file.truncate(0)
        file.write(f"{job}\n{os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def _taken(model_dir: pathlib.Path, holder: list[str]) -> str:
    job, process = (*holder, "", "")[:2]
    who = f"job {job}, process {process}" if job else f"process {process or 'of another run'}"
    cancel = f"end it (`wafer jobs cancel {job}`)" if job else "end it"
    return (
        f"{model_dir}: in use by {who}. Two runs would overwrite each other's "
        f"checkpoints; wait, {cancel}, or choose another --model_dir"
    )
