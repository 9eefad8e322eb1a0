from __future__ import annotations

import tempfile

from converter.scratch_folder import scratch_folder


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
