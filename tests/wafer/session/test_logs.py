"""The folder of a run's log, and the link to the newest one."""

import logging
import os
import pathlib
import shutil

import pytest

from wafer.session.logs import close_log, keep_lines, log_folder, setup_logging


@pytest.fixture(autouse=True)
def _close():
    yield
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, logging.FileHandler)]:
        root.removeHandler(handler)
        handler.close()


def test_the_link_leads_to_the_newest_folder(tmp_path):
    folder = log_folder(tmp_path, "train")
    latest = tmp_path / "cerebras_logs" / "train" / "latest"
    assert latest.is_symlink()
    assert latest.resolve() == folder.resolve()


def test_a_copy_that_followed_links_runs_again(tmp_path):
    first = log_folder(tmp_path / "run", "train")
    (first / "kept.txt").write_text("kept")
    shutil.copytree(tmp_path / "run", tmp_path / "copy", symlinks=False)
    latest = tmp_path / "copy" / "cerebras_logs" / "train" / "latest"
    assert latest.is_dir()
    assert not latest.is_symlink()
    folder = log_folder(tmp_path / "copy", "train")
    assert os.readlink(latest) == folder.name
    (before,) = latest.parent.glob("latest-before-*")
    assert (before / "kept.txt").read_text() == "kept"
    again = log_folder(tmp_path / "copy", "train")  # a link is replaced
    assert os.readlink(latest) == again.name
    latest.unlink()
    latest.symlink_to("gone")  # and one that leads nowhere
    assert os.readlink(latest) == "gone"
    assert os.readlink(latest) != log_folder(tmp_path / "copy", "train").name
    assert latest.exists()


def test_lines_before_the_runs_folder_is_known_are_in_its_log(tmp_path, monkeypatch, capsys):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(logging.getLogger("wafer"), "level", logging.NOTSET)
    log = logging.getLogger("wafer.config")
    for level in ("WARNING", "INFO"):
        keep_lines()
        log.info("defaults of 2.4")
        log.warning("no effect")
        setup_logging(level)
        log.warning("set up")
        text = (log_folder(tmp_path / level, "train") / "run.log").read_text()
        lines = [line.partition("wafer.config ")[2] for line in text.splitlines()]
        info = ["defaults of 2.4"] * (level == "INFO")
        assert lines == [*info, "no effect", "set up"]
        assert ("defaults" in capsys.readouterr().out) == bool(info)
        root.handlers[-1].close()
    logging.captureWarnings(capture=False)


def test_lines_between_two_trainers_are_in_the_log_of_the_second(tmp_path, monkeypatch):
    root, log = logging.getLogger(), logging.getLogger("wafer.commands.run")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(log, "level", logging.INFO)
    for name in ("first", "second"):
        close_log()
        log.info("Trainer %s", name)
        folder = log_folder(tmp_path / name, "train")
        log.info("end of the %s", name)
        lines = (folder / "run.log").read_text().splitlines()
        assert [line.partition(".run ")[2] for line in lines] == [
            f"Trainer {name}",
            f"end of the {name}",
        ]
    close_log()
    assert not any(isinstance(handler, logging.FileHandler) for handler in root.handlers)
    assert "end of the first" in (tmp_path / "first/cerebras_logs/train/latest/run.log").read_text()


def test_a_file_system_without_links_stops_no_run(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("Operation not permitted")

    monkeypatch.setattr(pathlib.Path, "symlink_to", refuse)
    assert (log_folder(tmp_path, "train") / "run.log").exists()
