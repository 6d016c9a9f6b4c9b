"""Checkpoints at object stores: copies of folders, through TensorStore's drivers for S3 and GCS.

Orbax 0.12 writes to ``gs://`` and not to ``s3://``, so for both it writes to a local folder, whose
files are then copied: one object for each file, the record last. A checkpoint without its record
is not complete, and is not read.
"""

import atexit
import contextlib
import functools
import json
import logging
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import jax
import tensorstore as ts

from wafer.models.checkpoint.layout import META, RECORD, STATE, is_checkpoint, step_folders
from wafer.models.convert.tokenizer import carry_tokenizer
from wafer.models.errors import CheckpointError
from wafer.models.files import STORES, atomic_write, remove_partials

_LOG = logging.getLogger(__name__)
_URL = re.compile(rf"({STORES})://([^/]+)/*(.*?)/*")
_END = f"/{META}/{RECORD}"
_PROBE = ".wafer-probe"  # an object that is written and removed, to know that it can be
_RETRIES = {"max_retries": 6, "initial_delay": "200ms", "max_delay": "5s"}
_HELP = {
    "s3": "Check the bucket, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or a profile), "
    "AWS_REGION, and for other servers than Amazon's AWS_ENDPOINT_URL",
    "gs": "Check the bucket and the credentials (GOOGLE_APPLICATION_CREDENTIALS, or `gcloud auth "
    "application-default login`)",
}


def is_url(path: object) -> bool:
    """Whether a path is a place at an object store."""
    return isinstance(path, str) and re.match(f"({STORES})://", path) is not None


class Store:
    """A place of checkpoints at an object store.

    Args:
        url: ``s3://BUCKET/PATH`` or ``gs://BUCKET/PATH``.

    Raises:
        CheckpointError: no such address.
    """

    def __init__(self, url: str) -> None:
        match = _URL.fullmatch(url)
        if match is None:
            raise CheckpointError(f"{url}: expected s3://BUCKET/PATH or gs://BUCKET/PATH")
        self._scheme, bucket, path = match.groups()
        self.url = f"{self._scheme}://{bucket}/{path}".rstrip("/")
        spec: dict[str, Any] = {"driver": {"s3": "s3", "gs": "gcs"}[self._scheme], "bucket": bucket}
        if path:
            spec["path"] = f"{path}/"
        if self._scheme == "s3":
            names = {
                "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
                "aws_region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
            }
            for key, variables in names.items():
                given = [os.environ[name] for name in variables if os.environ.get(name)]
                spec |= {key: given[0]} if given else {}
            if os.environ.get("AWS_ACCESS_KEY_ID"):  # else it looks for files, and logs them
                spec["aws_credentials"] = {"type": "environment"}
        retries = {f"{name}_request_retries": _RETRIES for name in ("s3", "gcs")}
        with self._errors():
            self._kv = ts.KvStore.open(spec, context=ts.Context(retries)).result()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Tell errors of the store in one line."""
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            reason = re.sub(r"\s*\[\w+=.*", "", " ".join(str(error).split()))[:240]
            raise CheckpointError(f"{self.url}: {reason}. {_HELP[self._scheme]}") from None

    def _keys(self, name: str = "") -> list[str]:
        """Keys of the objects below a name, or of all."""
        with self._errors():
            span = ts.KvStore.KeyRange(f"{name}/", f"{name}0") if name else ts.KvStore.KeyRange()
            keys = sorted(key.decode() for key in self._kv.list(span).result())
        return [key for key in keys if not name or key.startswith(f"{name}/")]  # whatever it gives

    def require_writable(self) -> None:
        """Write an object and remove it.

        Raises:
            CheckpointError: it cannot be: wrong bucket, credentials, or rights.
        """
        with self._errors():
            self._kv.write(_PROBE, b"x").result()
            self._kv.write(_PROBE, None).result()

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        names = (key.removesuffix(_END) for key in self._keys() if key.endswith(_END))
        return sorted(int(name) for name in names if name.isdecimal())

    def upload(self, folder: pathlib.Path, name: str) -> None:
        """Copy a checkpoint, and the tokenizer of its run beside it, where there is none.

        It is complete when this returns, and not read before.

        Raises:
            CheckpointError: there is one of this name, other objects are there, or it cannot be
                written.
        """
        keys = self._keys(name)
        if f"{name}{_END}" in keys:
            raise CheckpointError(
                f"{self.url}/{name}: is there already. Continue from it "
                "(runconfig.autoload_last_checkpoint), or choose another place"
            )
        with tempfile.TemporaryDirectory(prefix="wafer-checkpoint-") as text:
            carry_tokenizer(folder, text, alone=True)  # a run has it above its checkpoints
            items = {
                f"{name}/{path.relative_to(place).as_posix()}": path
                for place in (pathlib.Path(text), folder)
                for path in sorted(place.rglob("*"))
                if path.is_file()
            }
            record = items.pop(f"{name}{_END}")
            parts = f"{name}/{STATE}/", f"{name}/{META}/"
            left = [key for key in keys if key.startswith(parts)]  # by a killed upload
            others = [key for key in keys if key not in items and not key.startswith(parts)]
            if others:
                raise CheckpointError(
                    f"{self.url}/{name}: holds other objects ({others[0]}); expected a name for "
                    f"one checkpoint, such as {self.url}/{name}/500"
                )
            self._remove(left)
            for key, path in (items | {f"{name}{_END}": record}).items():
                content = path.read_bytes()
                with self._errors():
                    self._kv.write(key, content).result()

    def has_arrays(self, folder: pathlib.Path, name: str) -> bool | None:
        """Return whether a checkpoint there has the arrays of a local one, by their checksums.

        None where one of the records is missing or cannot be read.
        """
        with self._errors():
            there = _sums(self._kv.read(f"{name}{_END}").result().value)
        here = _sums((folder / META / RECORD).read_bytes())
        return None if not (here and there) else here == there

    def download(self, name: str, folder: pathlib.Path) -> None:
        """Copy a checkpoint into a new folder, which appears when it is whole.

        Raises:
            CheckpointError: there is none, or it cannot be read.
        """
        keys = self._complete(name)
        remove_partials(folder)  # of a killed download
        with atomic_write(folder) as partial:
            for key in keys:
                components = key.split("/")[1:]
                if not {"", ".", ".."}.isdisjoint(components):
                    raise CheckpointError(f"{self.url}/{key}: leads out of the checkpoint")
                path = partial.joinpath(*components)
                path.parent.mkdir(parents=True, exist_ok=True)
                with self._errors():
                    content = self._kv.read(key).result().value
                path.write_bytes(content)

    def delete(self, name: str) -> None:
        """Remove a checkpoint, its record first.

        Raises:
            CheckpointError: there is none, or it cannot be removed.
        """
        self._remove(sorted(self._complete(name), key=lambda key: key != f"{name}{_END}"))

    def _complete(self, name: str) -> list[str]:
        """Return the keys of a complete checkpoint, without those of others below its name."""
        keys = self._keys(name)
        others = [key.removesuffix(f"{META}/{RECORD}") for key in keys if key.endswith(_END)]
        below = tuple(key for key in others if key != f"{name}/")
        keys = [key for key in keys if not key.startswith(below)]
        if f"{name}{_END}" not in keys:
            complete = [key.removesuffix(_END) for key in self._keys() if key.endswith(_END)]
            near = [key for key in complete if key.startswith(f"{name}/")] or complete
            raise CheckpointError(
                f"{self.url}/{name}: no complete checkpoint there; complete ones in {self.url}: "
                f"{', '.join(near[-5:]) or 'none'}"
            )
        return keys

    def _remove(self, keys: list[str]) -> None:
        with self._errors():
            for key in keys:
                self._kv.write(key, None).result()


def _sums(record: bytes) -> object:
    """Return the checksums of arrays in a record; None where it cannot be read."""
    with contextlib.suppress(ValueError, AttributeError):
        return json.loads(record).get("checksums")
    return None


def synchronize(
    root: str, checkpoints: pathlib.Path, *, trains: bool, every: bool = False, anew: bool = False
) -> None:
    """Bring a local folder of checkpoints and that at a store to the same newest step.

    Args:
        root: place at the store; one checkpoint below it for each step.
        checkpoints: local folder; made if it is missing.
        trains: also check that the store can be written, and upload what a killed run could not.
        every: download all checkpoints, not the newest alone.
        anew: download none.

    Raises:
        CheckpointError: the store cannot be read or, for training, written; or training that
            begins anew would write steps that are there; or a step of the folder has other arrays
            there; or the run has several processes.
    """
    if jax.process_count() > 1:
        raise CheckpointError(
            f"checkpoint_root: {root}: expected a run in one process ({jax.process_count()} run). "
            "Leave it out, and copy checkpoints with `wafer checkpoint copy`"
        )
    store = Store(root)
    if trains:
        store.require_writable()
    remote = store.steps()
    if anew and trains and remote:
        raise CheckpointError(
            f"{store.url}: holds checkpoints {remote}, whose steps would be written again. "
            "Continue from them (runconfig.autoload_last_checkpoint), or choose another place"
        )
    local = [int(path.name) for path in step_folders(checkpoints) if is_checkpoint(path)]
    step = max({*local} & {*remote}, default=-1)
    if not anew and step >= 0 and store.has_arrays(checkpoints / str(step), str(step)) is False:
        raise CheckpointError(
            f"{store.url}/{step}: has other arrays than {checkpoints / str(step)}, so one of them "
            "is of another run. Choose another checkpoint_root or model_dir"
        )
    for step in [] if anew else remote if every else remote[-1:]:
        if step not in local and (every or step > max(local, default=-1)):
            _LOG.info("Downloading checkpoint %s/%d", store.url, step)
            store.download(str(step), checkpoints / str(step))
    if trains and local and local[-1] > max(remote, default=-1):
        _LOG.info("Uploading checkpoint %s/%d", store.url, local[-1])
        store.upload(checkpoints / str(local[-1]), str(local[-1]))


def place_of(url: str) -> tuple[Store, str]:
    """Return the place of a checkpoint and its name there.

    Raises:
        CheckpointError: no such address, or one of a bucket.
    """
    parent, _, name = url.rstrip("/").rpartition("/")
    if _URL.fullmatch(parent) is None:
        raise CheckpointError(f"{url}: expected a checkpoint, such as {url.rstrip('/')}/run/500")
    return Store(parent), name


@functools.cache
def _downloaded(url: str) -> pathlib.Path:
    store, name = place_of(url)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="wafer-checkpoint-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    store.download(name, folder / name)
    return folder / name


def local_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Return a path; of a checkpoint at a store a copy, which is removed at exit.

    Raises:
        CheckpointError: no complete checkpoint there, or it cannot be read.
    """
    return _downloaded(path) if isinstance(path, str) and is_url(path) else pathlib.Path(path)


@contextlib.contextmanager
def local_output(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Give a path to write a checkpoint to; one for a store is uploaded when the block ends.

    Raises:
        CheckpointError: there is one already, or the store cannot be written.
    """
    if not (isinstance(path, str) and is_url(path)):
        yield pathlib.Path(path)
        return
    store, name = place_of(path)
    store.require_writable()
    with tempfile.TemporaryDirectory(prefix="wafer-checkpoint-") as folder:
        written = pathlib.Path(folder) / name
        yield written
        if not is_checkpoint(written):
            raise CheckpointError(f"{path}: a store keeps checkpoints alone; write to a folder")
        store.upload(written, name)
    _LOG.info("Uploaded %s/%s", store.url, name)
