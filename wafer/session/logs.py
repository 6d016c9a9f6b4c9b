"""Where log lines go: the terminal, and a file per run below ``model_dir/cerebras_logs``."""

import contextlib
import logging
import logging.handlers
import pathlib
import time

from rich.console import Console
from rich.logging import RichHandler

from wafer.models.errors import plain

CONSOLE = Console(highlight=False, soft_wrap=True)
# Lines before run.log is open, at most so many; flushed into it alone
_EARLIER = logging.handlers.MemoryHandler(1000, logging.CRITICAL + 1, flushOnClose=False)


class _Plain(logging.Formatter):
    """Lines without what would steer a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Lay a line out."""
        return plain(super().format(record))


class _PlainHandler(logging.Handler):
    """Lines to wherever the console writes at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            CONSOLE.file.write(self.format(record) + "\n")
            CONSOLE.file.flush()
        except BrokenPipeError:
            raise  # the reader went: the command ends quietly
        except (OSError, ValueError):
            self.handleError(record)


def keep_lines() -> None:
    """Keep log lines for the terminal and for run.log, which the run's file has to name first."""
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _PlainHandler | RichHandler)]:
        root.removeHandler(old)  # of a run before in this process
    close_log()
    logging.getLogger("wafer").setLevel("INFO")


def close_log() -> None:
    """Close run.log; lines from now on are kept for the next one."""
    _close_files()
    _EARLIER.buffer.clear()
    _EARLIER.setTarget(None)
    logging.getLogger().addHandler(_EARLIER)


def _close_files() -> None:
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, logging.FileHandler)]:
        root.removeHandler(old)
        old.close()


def setup_logging(level: str) -> None:
    """Show our packages' log lines at ``level``, warnings of all others; also lines kept so far."""
    early_handlers = [_EARLIER] if _EARLIER in logging.getLogger().handlers else []
    handler: logging.Handler
    if CONSOLE.is_terminal:
        handler = RichHandler(console=CONSOLE, show_path=False, markup=False, rich_tracebacks=True)
        handler.setFormatter(_Plain("%(message)s", datefmt="%X"))
    else:
        handler = _PlainHandler()
        handler.setFormatter(_Plain("%(asctime)s %(levelname)-7s %(message)s"))
    logging.basicConfig(level=logging.ERROR, handlers=[handler, *early_handlers], force=True)
    logging.captureWarnings(capture=True)
    logging.getLogger("wafer").setLevel(level.upper())
    logged = [r for r in _EARLIER.buffer if logging.getLogger(r.name).isEnabledFor(r.levelno)]
    _EARLIER.buffer = logged if early_handlers else []
    for record in _EARLIER.buffer:
        handler.handle(record)


def _link(path: pathlib.Path, target: str) -> None:
    """Point a symbolic link at a name beside it, whatever is at its place.

    A copy that followed links has a folder there, which is kept under another name. A link is a
    convenience: a file system without links, or another run that makes it, stops nothing.
    """
    with contextlib.suppress(OSError):
        if path.exists() and not path.is_symlink():
            path.rename(path.with_name(f"{path.name}-before-{target}"))
        path.unlink(missing_ok=True)
        path.symlink_to(target)


def log_folder(model_dir: pathlib.Path, mode: str, process: int = 0) -> pathlib.Path:
    """Open ``cerebras_logs/<mode>/<timestamp>/run.log`` with a ``latest`` link; return the folder.

    The file gets every line that the terminal gets.

    Args:
        model_dir: of the run.
        mode: 'train', 'eval', ...
        process: its number in a cluster; processes other than 0 have a folder of their own.
    """
    parent = model_dir / "cerebras_logs" / (f"{mode}-process-{process}" if process else mode)
    folder = parent / time.strftime("%Y%m%d_%H%M%S")
    folder.mkdir(parents=True, exist_ok=True)
    _link(parent / "latest", folder.name)
    handler = logging.FileHandler(folder / "run.log", encoding="utf-8")
    handler.setFormatter(_Plain("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    _close_files()
    root = logging.getLogger()
    root.addHandler(handler)
    _EARLIER.setTarget(handler)
    _EARLIER.flush()
    root.removeHandler(_EARLIER)
    return folder
