"""Host operators <-> the flat attributes of schedule.json (docs/host-ops.md names them)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fadiff.converter.ir.host import OPERATORS, HostOperator, PoolWindow, Rows
from fadiff.converter.ir.loops import Access, Loops

_INPUTS = ("", "b_", "c_")
"""Prefixes of the offset and strides of the inputs that loops walk."""
_OPERANDS = {"input": "", "weight": "b_", "output": "out_"}
"""The same for the accesses of a product in float."""
_KINDS = {kind.op: kind for kind in OPERATORS}


def to_attributes(operator: HostOperator) -> dict[str, Any]:
    """Everything but the kind; what is absent (a ceiling, a mask) is left out."""
    found: dict[str, Any] = {}
    for field in fields(operator):
        value = getattr(operator, field.name)
        if isinstance(value, Loops):
            found["shape"] = value.shape
            for prefix, access in (*zip(_INPUTS, value.inputs, strict=False), ("out_", value.output)):
                found |= _flat(prefix, access)
        elif isinstance(value, Access):
            found |= _flat(_OPERANDS[field.name], value)
        elif isinstance(value, Rows | PoolWindow):
            found |= asdict(value)
        elif value is not None and (field.name, value) != ("mask_rows", 0):
            found[field.name] = int(value) if isinstance(value, bool) else value
    return found


def operator_of(op: str, attributes: Mapping[str, Any]) -> HostOperator:
    """The operator of a kind with these attributes.

    Raises:
        ValueError: no such kind; an attribute that it does not have, lacks, or that has another type.
    """
    if op not in _KINDS:
        raise ValueError(f"there is no host operator {op!r}")
    kind, rest = _KINDS[op], dict(attributes)
    nested: dict[str, Any] = {}
    for field in fields(kind):
        if field.name == "loops":
            walked = [prefix for prefix in _INPUTS if f"{prefix}strides" in rest]
            inputs = [_taken(rest, prefix) for prefix in walked]
            nested["loops"] = {**_picked(rest, ("shape",)), "inputs": inputs, "output": _taken(rest, "out_")}
        elif field.name in _OPERANDS:
            nested[field.name] = _taken(rest, _OPERANDS[field.name])
        elif field.name in ("rows", "window"):
            parts = Rows if field.name == "rows" else PoolWindow
            nested[field.name] = _picked(rest, [part.name for part in fields(parts)])
        else:
            nested |= _picked(rest, (field.name,))
    if rest:
        raise ValueError(f"{op} has no attribute {', '.join(map(repr, rest))}")
    try:
        return _adapter(op).validate_python(nested)
    except ValidationError as error:
        first = error.errors()[0]
        where = f"attribute {first['loc'][-1]}: " if first["loc"] else ""
        raise ValueError(f"{op}: {where}{first['msg'].removeprefix('Value error, ')}") from error


@cache
def _adapter(op: str) -> TypeAdapter[HostOperator]:
    return TypeAdapter(_KINDS[op])


def _flat(prefix: str, access: Access) -> dict[str, Any]:
    return {f"{prefix}offset": access.offset, f"{prefix}strides": access.strides}


def _taken(attributes: dict[str, Any], prefix: str) -> dict[str, Any]:
    """An access; its offset may be left out."""
    found = {"offset": attributes.pop(f"{prefix}offset", 0)}
    if f"{prefix}strides" in attributes:
        found["strides"] = attributes.pop(f"{prefix}strides")
    return found


def _picked(attributes: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: attributes.pop(key) for key in keys if key in attributes}
