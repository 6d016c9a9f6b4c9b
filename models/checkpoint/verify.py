"""Read a checkpoint from end to end and say what of it is damaged: all of it, not the first."""

import concurrent.futures
import dataclasses
import os
import pathlib

from wafer.models.checkpoint.layout import (
    CHECKPOINTS,
    STATE,
    is_checkpoint,
    read_record,
    step_folders,
)
from wafer.models.checkpoint.reader import StoredTree
from wafer.models.errors import CheckpointError, first_lines


@dataclasses.dataclass(frozen=True)
class Verified:
    """A checkpoint that can be read."""

    arrays: int  #: how many there are
    size: int  #: bytes of them all in memory
    checked: bool  #: whether it has checksums; format 1 has none


def checkpoints_in(folder: str | os.PathLike[str]) -> list[pathlib.Path]:
    """List the checkpoints that a folder stands for: itself, or a model_dir's, by step.

    Raises:
        CheckpointError: neither.
    """
    folder = pathlib.Path(folder)
    if is_checkpoint(folder):
        return [folder]
    if steps := step_folders(folder / CHECKPOINTS):
        return steps
    raise CheckpointError(
        f"{folder} is neither a checkpoint (<model_dir>/checkpoints/<step>) nor a model_dir with "
        "checkpoints"
    )


def verify(path: str | os.PathLike[str]) -> Verified:
    """Read every array of a checkpoint, two at a time, and compare it with its checksum.

    Raises:
        CheckpointError: it is damaged; lists every array that is.
    """
    path = pathlib.Path(path).resolve()
    record, sums = read_record(path)
    tree = StoredTree(path / STATE, sums, record)

    def look(name: str) -> int | CheckpointError:
        try:
            return tree.read(name).nbytes
        except CheckpointError as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(look, tree))
    problems = [str(error) for error in answers if isinstance(error, CheckpointError)]
    if problems:
        raise CheckpointError(f"{path} is damaged:\n  {first_lines(problems)}")
    sizes = [size for size in answers if isinstance(size, int)]
    return Verified(len(sizes), sum(sizes), sums is not None)
