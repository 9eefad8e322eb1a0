"""For every test: one thread per worker, and no verdict that depends on how busy the machine is."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch and onnxruntime start

settings.register_profile("fadiff", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fadiff")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first: begun last, they would leave all processes but one without work."""
    items.sort(key=lambda item: item.path.name != "test_package.py")
