from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fadiff.converter.folders import scratch_folder


def test_what_nobody_holds_goes_and_what_is_in_use_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder() as first:
        left = first.with_name(f"{first.name}-left")
        other = tmp_path / "somebody else's"
        for folder in (left, other):
            (folder / "deep").mkdir(parents=True)
        elsewhere = first.with_name(f"{first.name}-link")
        elsewhere.symlink_to(other)
        with scratch_folder() as second:
            assert first.is_dir() and second.is_dir() and first != second
            assert not left.exists() and (other / "deep").is_dir()
        elsewhere.unlink()
    assert [path.name for path in tmp_path.iterdir()] == [other.name]


def test_a_folder_that_another_process_takes_before_it_is_held_is_made_again(monkeypatch):
    opened, taken = os.open, []

    def open_late(path, flags, *rest):
        if not taken:
            taken.append(path)
            Path(path).rmdir()
        return opened(path, flags, *rest)

    monkeypatch.setattr("fadiff.converter.folders._remove_if_left", lambda folder: None)
    monkeypatch.setattr("fadiff.converter.folders.os.open", open_late)
    with scratch_folder() as made:
        assert made.is_dir() and str(made) != taken[0]
