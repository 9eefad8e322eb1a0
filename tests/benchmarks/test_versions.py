"""The floors of pyproject.toml are what is tested as the oldest releases."""

from __future__ import annotations

from pathlib import Path

from benchmarks.versions import VARIED, requirements


def test_oldest_releases_are_the_floors(tmp_path: Path) -> None:
    *listed, torch = (f'"{name}>=1.{i},<3"' for i, name in enumerate(VARIED))
    (tmp_path / "pyproject.toml").write_text(
        f"[project]\ndependencies = [{', '.join(listed)}]\noptional-dependencies = {{torch = [{torch}]}}\n"
    )
    found = requirements(tmp_path / "pyproject.toml")
    assert found["oldest"] == {name: f"{name}==1.{i}" for i, name in enumerate(VARIED)}
    assert found["newest"]["onnx"] == "onnx>=1.1,<3"
