from __future__ import annotations

from pathlib import Path

import pytest

from fadiff.errors import InputError
from fadiff.output import check_new, replacing_folder


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
            (work / "schedule.json").write_text("{}")
            (work / content).write_text(content)
    assert names(out) == ["schedule.json", "second"]
    assert names(tmp_path) == ["out"]


def test_a_failure_keeps_the_old_folder(tmp_path):
    out = tmp_path / "out"
    with replacing_folder(out, force=False) as work:
        (work / "schedule.json").write_text("old")
    with pytest.raises(ValueError), replacing_folder(out, force=True) as work:
        (work / "schedule.json").write_text("new")
        raise ValueError
    assert (out / "schedule.json").read_text() == "old"
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
