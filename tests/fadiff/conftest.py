from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fadiff.cli import main
from fadiff.emulator.build import library
from tests.fadiff.models import small_network


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def functional_model() -> Path:
    """The functional model's library, which programs that a test starts need not build again."""
    return library()


@pytest.fixture(autouse=True)
def own_cache(
    functional_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing but the functional model is kept in the cache folder of whoever runs the tests."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / functional_model.name).symlink_to(functional_model)
    monkeypatch.setenv("FADIFF_CACHE", str(folder))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The file of a small network."""
    return small_network(tmp_path / "small.onnx")


@pytest.fixture
def fadiff(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run the command line in this process, as a user would, and return how it ended."""

    def run(*arguments: object) -> Ended:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Ended(code, captured.out, captured.err)

    return run
