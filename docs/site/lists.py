"""Hook of mkdocs: a list or fence may follow its sentence without a blank line, as everywhere else."""

from __future__ import annotations

import re
from typing import Any

_ITEM = re.compile(r"(?:[*-]|\d+\.) ")
_FENCE = re.compile(r"```")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with the blank line that Python-Markdown wants before a list."""
    lines: list[str] = []
    fenced = False
    for line in markdown.splitlines():
        if not fenced and _ITEM.match(line) and lines and lines[-1].strip() and not _within_list(lines):
            lines.append("")
        fenced ^= bool(_FENCE.match(line))
        lines.append(line)
    return "\n".join(lines)


def _within_list(lines: list[str]) -> bool:
    """Whether the last line belongs to a list item: an item, or a line that goes one on."""
    return bool(_ITEM.match(lines[-1])) or lines[-1].startswith("  ")
