"""For every test: one thread per worker, and no verdict that depends on how busy the machine is."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch and onnxruntime start

settings.register_profile("fadiff", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fadiff")


_FIRST = ("test_package.py", "test_characters.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first: begun last, they would leave all processes but one without work, or be shared
    out among processes that each make what the tests of a file share."""
    items.sort(key=lambda item: item.path.name not in _FIRST)
