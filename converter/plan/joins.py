"""Where the parts of a joined value lie."""

from __future__ import annotations

import math
from collections.abc import Sequence


def parts_along(inner: Sequence[int], axis: int, outer: Sequence[int], along: int) -> tuple[int, int] | None:
    """The indices of `axis` under another shape: how many of its axis `along` each becomes, and how often all
    repeat there; None where other axes tell them apart, too."""
    size, least = math.prod(inner[axis + 1 :]), math.prod(outer[along + 1 :])
    if size % least or outer[along] * least % (size * inner[axis]):
        return None
    return size // least, outer[along] * least // (size * inner[axis])
