"""Processes of a session: whether a command that was killed left any."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def running_in_session(session: int) -> list[int]:
    """Processes of a session that run (not those that nobody has waited for yet)."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, owner = status.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(owner) == session and state != "Z":
            found.append(int(status.parent.name))
    return found


def wait_until(reached: Callable[[], bool]) -> None:
    """Wait at most a minute for what other processes do."""
    for _ in range(600):
        if reached():
            return
        time.sleep(0.1)
    raise AssertionError("not within a minute")
