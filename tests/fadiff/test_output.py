from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fadiff.errors import InputError, one_line
from fadiff.output import check_new, replacing_folder

OURS = '{"version": 1, "generator": "fadiff 0.1.0"}'


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_the_folder_appears_only_when_the_block_ends(tmp_path):
    out = tmp_path / "a" / "b" / "out"
    with replacing_folder(out, force=False) as work:
        (work / "schedule.json").write_text("{}")
        assert not out.exists()
        assert work.parent == out.parent, "a rename must not cross file systems"
    assert names(out) == ["schedule.json"]
    assert names(out.parent) == ["out"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_after_a_failure(tmp_path, failure):
    out = tmp_path / "a" / "b" / "out"
    with pytest.raises(failure), replacing_folder(out, force=False) as work:
        (work / "half").write_text("...")
        raise failure
    assert names(tmp_path) == []


def test_force_replaces_one_of_our_folders_as_a_whole(tmp_path):
    out = tmp_path / "out"
    for content in ("first", "second"):
        with replacing_folder(out, force=True) as work:
            (work / "schedule.json").write_text(OURS)
            (work / "report.html").write_text(content)
    assert (out / "report.html").read_text() == "second"
    assert names(tmp_path) == ["out"]


def test_a_failure_keeps_the_old_folder(tmp_path):
    out = tmp_path / "out"
    with replacing_folder(out, force=False) as work:
        (work / "schedule.json").write_text(OURS)
    with pytest.raises(ValueError), replacing_folder(out, force=True) as work:
        (work / "schedule.json").write_text("new")
        raise ValueError
    assert (out / "schedule.json").read_text() == OURS
    assert names(tmp_path) == ["out"]


def test_a_foreign_folder_is_never_deleted(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="not an output folder"), replacing_folder(out, force=True):
        pass
    assert names(out) == ["thesis.tex"]


def test_an_empty_folder_may_be_used(tmp_path):
    (tmp_path / "out").mkdir()
    with replacing_folder(tmp_path / "out", force=False) as work:
        (work / "schedule.json").write_text("{}")
    assert names(tmp_path / "out") == ["schedule.json"]


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match="not a folder"), replacing_folder(tmp_path / "out", force=True):
        pass


def test_a_file_where_nothing_can_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(InputError, match="cannot write"):
        check_new(tmp_path / "out.csv", force=True)
    (tmp_path / "ours.csv").write_text("mine to replace")
    check_new(tmp_path / "ours.csv", force=True)


@pytest.mark.parametrize("content", ["{}", "[]", "not json", '{"version": 1, "generator": "other"}'])
def test_a_file_of_that_name_does_not_make_a_folder_ours(tmp_path, content):
    out = tmp_path / "out"
    out.mkdir()
    (out / "schedule.json").write_text(content)
    with pytest.raises(InputError, match="not an output folder"), replacing_folder(out, force=True):
        pass
    assert names(out) == ["schedule.json"]


def test_what_was_put_into_our_folder_is_not_deleted(tmp_path):
    out = tmp_path / "out"
    with replacing_folder(out, force=False) as work:
        (work / "schedule.json").write_text(OURS)
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"thesis\.tex"), replacing_folder(out, force=True):
        pass
    assert (out / "thesis.tex").read_text() == "years of work"


def test_one_at_a_time(tmp_path):
    """The second is refused at once, and the first ends well."""
    with replacing_folder(tmp_path / "out", force=False) as work:
        (work / "schedule.json").write_text(OURS)
        with (
            pytest.raises(InputError, match="another fadiff"),
            replacing_folder(tmp_path / "out", force=True),
        ):
            pass
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["schedule.json"]


@pytest.mark.parametrize("moment", ["writing", "swapping"])
def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path, moment):
    out = tmp_path / "out"
    with replacing_folder(out, force=False) as work:
        (work / "schedule.json").write_text(OURS)
        (work / "report.html").write_text("old")
    script = f"""
import os, pathlib, signal
from fadiff.output import replacing_folder
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with replacing_folder(pathlib.Path({str(out)!r}), force=True) as work:
    (work / "firmware").mkdir()
    (work / "half").write_text("...")
    if {moment!r} == "writing":
        die()
    rename = pathlib.Path.rename
    pathlib.Path.rename = lambda path, to: die() if path == work else rename(path, to)
"""
    killed = subprocess.run([sys.executable, "-c", script])
    assert killed.returncode == -signal.SIGKILL and len(names(tmp_path)) == 2
    with pytest.raises(ValueError), replacing_folder(out, force=True) as work:
        assert names(work) == []
        raise ValueError
    assert names(tmp_path) == ["out"] and (out / "report.html").read_text() == "old"


def test_a_full_disk_names_the_folder(tmp_path):
    """/dev/full is a disk without room."""
    with (
        pytest.raises(OSError) as caught,
        replacing_folder(tmp_path / "out", force=False),
        Path("/dev/full").open("w") as file,
    ):
        file.write("x" * 100_000)
    assert one_line(caught.value) == f"{tmp_path / 'out'}: No space left on device"
