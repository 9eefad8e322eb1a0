"""Record: the base of what files hold, and of what is read from objects, too."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Fields of its own and no others, never changed, no infinite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ReadRecord(Record):
    """Read from JSON, or from an object with attributes of the same names."""

    model_config = ConfigDict(from_attributes=True)


def without_former(content: Any, **unused: Any) -> Any:
    """Without fields of earlier releases that say what they said where they were not used."""
    if not isinstance(content, dict):
        return content
    return {key: value for key, value in content.items() if key not in unused or value != unused[key]}
