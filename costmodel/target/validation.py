"""What is wrong with a file that people write, in its own words instead of pydantic's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from fadiff.converter.names import did_you_mean


def problems(error: ValidationError, schema: type[BaseModel]) -> Iterator[tuple[tuple[int | str, ...], str]]:
    """Where (keys and indices, () for the whole) and what, for everything that does not validate."""
    for found in error.errors():
        place = found["loc"]
        yield place, _what(found["type"], found["msg"], found["input"], _fields(schema, place), place)


def one_line(error: ValidationError, schema: type[BaseModel]) -> str:
    """`energy.mac: should be greater than or equal to 0, not -1; side: is missing`."""
    return "; ".join(
        f"{'.'.join(map(str, place))}: {what}" if place else what for place, what in problems(error, schema)
    )


def _what(kind: str, message: str, given: Any, known: list[str], place: tuple[int | str, ...]) -> str:
    if kind == "extra_forbidden":
        remedy = did_you_mean(str(place[-1]), known) or f"choose from {', '.join(known)}"
        return f"unknown field: {remedy}"
    if kind == "missing":
        return "is missing"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return "should be a mapping, `field: value` on every line"
    said = message.removeprefix("Value error, ").removeprefix("Input ").partition(", unable to parse")[0]
    return (
        f"{said}, not {given!r}"
        if said.startswith("should") and isinstance(given, int | float | str)
        else said
    )


def _fields(schema: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """Fields of the model that holds `place`; none where it lies in something else than plain models."""
    holder: Any = schema
    for key in place[:-1]:
        field = holder.model_fields.get(key) if isinstance(key, str) else None
        holder = field.annotation if field is not None else None
        if not (isinstance(holder, type) and issubclass(holder, BaseModel)):
            return []
    return list(holder.model_fields)
