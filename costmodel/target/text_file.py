"""Text files that people and other programs write: read whole, within limits, with one kind of error.

A file may be anything: a device without end, numbers of 5,000 digits, brackets without end.
"""

from __future__ import annotations

import errno
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from fadiff.converter.errors import BadInput

MOST_BYTES = 2**28
"""Of a schedule.json of thousands of layers; all else is much smaller."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # (some builds of PyYAML are without libyaml)
_MOST_YAML = 2**22
"""YAML takes seconds per megabyte."""


class FormatError(BadInput, ValueError):
    """Content that is not what it should be; the message is `file:line: not YAML: why`."""


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """The text of a regular file, in UTF-8.

    Raises:
        OSError: it cannot be read, is no regular file, or has over `most` bytes.
        FormatError: it is no text.
    """
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if status.st_size > most:
        raise OSError(errno.EFBIG, f"{status.st_size:,} bytes are too many for such a file", str(path))
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not a text file (UTF-8)") from error


def load_yaml(path: Path) -> Any:
    """What a YAML file holds: maps, lists, texts, numbers, dates.

    Raises:
        OSError, FormatError: as `read_text`, and for what is not YAML.
    """
    return _parsed(path, "YAML", lambda text: yaml.load(text, _LOADER))


def compose_yaml(path: Path) -> yaml.Node | None:
    """The nodes of a YAML file, with their lines; raises as `load_yaml`."""
    return _parsed(path, "YAML", lambda text: yaml.compose(text, _LOADER))  # type: ignore[no-any-return]


def load_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        OSError, FormatError: as `read_text`, and for what is not JSON.
    """
    return _parsed(path, "JSON", json.loads)


def _parsed(path: Path, kind: str, parse: Callable[[str], Any]) -> Any:
    text = read_text(path, MOST_BYTES if kind == "JSON" else _MOST_YAML)
    try:
        content = parse(text)
        if "\\u" in text or "\\U" in text:  # half of a pair of surrogates is no character
            json.dumps(content, ensure_ascii=False, default=str).encode()
    except json.JSONDecodeError as error:
        raise FormatError(f"{path}:{error.lineno}: not {kind}: {error.msg}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise FormatError(f"{path}:{line}: not {kind}: {error.problem}") from error
    except RecursionError as error:
        raise FormatError(f"{path}: not {kind}: nested too deeply") from error
    except (
        yaml.YAMLError,
        ValueError,
        OverflowError,
    ) as error:  # a date such as 2001-99-99, half a character
        raise FormatError(f"{path}: not {kind}: {' '.join(str(error).split())[:200]}") from error
    return content
