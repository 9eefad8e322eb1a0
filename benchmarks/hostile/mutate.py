"""Small changes to good input: of protobuf messages, of plain data (JSON, YAML), of text, of bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]

Rng = np.random.Generator

INTEGERS = (-(2**63), -(2**31), -9, -1, 0, 1, 2, 3, 7, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**63 - 1)
FLOATS = (0.0, -0.0, 1e-45, 1.0, -1.0, 3e38, -3e38, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    "x",
    "../../escape",
    "/etc/passwd",
    "*/ int main(void) { /*",
    "$(touch pwned)",
    "a\nb",
    "\x1b[31mred",
    "turn\u202earound",
    "nul\0nul",
    "\\",
    '"',
    "'",
    "<script>alert(1)</script>",
    "{{ 7 * 7 }}",
    "%s%n",
    "A" * 5000,
)


def pick(rng: Rng, options: Any) -> Any:
    """One of them."""
    return options[int(rng.integers(len(options)))]


def mutated_bytes(rng: Rng, content: bytes) -> bytes:
    """Bits turned, a piece cut out, repeated or the rest dropped."""
    if not content:
        return b"\x00"
    data = bytearray(content)
    at = int(rng.integers(len(data)))
    end = min(len(data), at + 1 + int(rng.integers(64)))
    match int(rng.integers(4)):
        case 0:
            for _ in range(int(rng.integers(1, 9))):
                data[int(rng.integers(len(data)))] = int(rng.integers(256))
        case 1:
            del data[at:end]
        case 2:
            data[at:at] = data[at:end] * int(rng.integers(1, 20))
        case 3:
            del data[at:]
    return bytes(data)


def mutated_text(rng: Rng, text: str) -> str:
    """A word or line replaced, repeated or gone; a hostile text or number put in."""
    parts = text.splitlines(keepends=True) if rng.random() < 0.5 else text.split(" ")
    if not parts:
        return str(pick(rng, TEXTS))
    at = int(rng.integers(len(parts)))
    match int(rng.integers(4)):
        case 0:
            parts[at] = str(pick(rng, TEXTS))
        case 1:
            parts[at] = str(pick(rng, (*INTEGERS, *FLOATS)))
        case 2:
            del parts[at]
        case 3:
            parts[at:at] = [parts[at]] * int(pick(rng, (1, 2, 300)))
    return ("" if "\n" in "".join(parts[:1]) else " ").join(parts)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place inside plain data: the container and its key."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in entries:
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from _places(inner)


def mutated_data(rng: Rng, value: Any) -> Any:
    """One to three entries of plain data replaced, removed, doubled or swapped with others."""
    value = copy.deepcopy(value)
    for _ in range(int(rng.integers(1, 4))):
        places = list(_places(value))
        if not places:
            return value
        holder, key = pick(rng, places)
        old = holder[key]
        match int(rng.integers(5)):
            case 0:
                holder[key] = pick(rng, (*INTEGERS, *FLOATS, *TEXTS, None, True, [], {}))
            case 1 if isinstance(old, int | float) and not isinstance(old, bool):
                holder[key] = pick(rng, (old + 1, old - 1, -old, old * 2, old * 1000))
            case 2 if isinstance(holder, list):
                holder.append(copy.deepcopy(old))
            case 3:
                other, place = pick(rng, places)
                holder[key] = copy.deepcopy(other[place])
            case _:
                del holder[key]
    return value


def _messages(message: Message) -> Iterator[Message]:
    """A message and all inside it."""
    yield message
    for field, content in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in [content] if isinstance(content, Message) else content:
                yield from _messages(part)


def mutated_model(rng: Rng, model: onnx.ModelProto) -> onnx.ModelProto:
    """One to three fields of a model changed, with what other fields hold or with hostile values."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for _ in range(int(rng.integers(1, 4))):
        messages = list(_messages(changed))
        names = [name for node in changed.graph.node for name in (*node.input, *node.output)]
        _change(rng, pick(rng, messages), names or ["x"])
    return changed


def _change(rng: Rng, message: Message, names: list[str]) -> None:
    field = pick(rng, list(message.DESCRIPTOR.fields))
    present = [entry for entry, _ in message.ListFields()]
    if present and rng.random() < 0.8:
        field = pick(rng, present)
    old = getattr(message, field.name)
    if field.type == field.TYPE_MESSAGE:
        _change_messages(rng, message, field, old)
        return
    make = _maker(rng, field, names)
    try:
        if isinstance(old, str | bytes | int | float):
            if rng.random() < 0.2:
                message.ClearField(field.name)
            else:
                setattr(message, field.name, make(old))
        else:
            _change_list(rng, old, make)
    except (ValueError, TypeError):  # out of the field's range
        return


def _maker(rng: Rng, field: Any, names: list[str]) -> Callable[[Any], Any]:
    """What makes another value of a field's type from the old one."""

    def number(old: int) -> int:
        return int(pick(rng, (*INTEGERS, old + 1, old - 1, old * 2)))

    def text(old: str) -> str:
        if field.name == "op_type":
            return str(pick(rng, sorted({schema.name for schema in onnx.defs.get_all_schemas()})))
        return str(pick(rng, names)) if rng.random() < 0.6 else str(pick(rng, TEXTS))

    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return lambda old: float(pick(rng, FLOATS))
    if field.type == field.TYPE_ENUM:
        return lambda old: int(rng.integers(0, 30))
    if field.type == field.TYPE_STRING:
        return text
    if field.type == field.TYPE_BYTES:
        return lambda old: mutated_bytes(rng, old)
    return number


def _change_list(rng: Rng, values: Any, make: Callable[[Any], Any]) -> None:
    if not values:
        return
    at = int(rng.integers(len(values)))
    match int(rng.integers(4)):
        case 0:
            del values[at]
        case 1:
            values.append(make(values[at]))
        case _:
            values[at] = make(values[at])


def _change_messages(rng: Rng, message: Message, field: Any, old: Any) -> None:
    if isinstance(old, Message):
        if rng.random() < 0.5:
            message.ClearField(field.name)
        else:
            old.SetInParent()
        return
    if not old:
        old.add()
        return
    at = int(rng.integers(len(old)))
    if rng.random() < 0.5:
        del old[at]
    else:
        old.add().CopyFrom(old[at])
