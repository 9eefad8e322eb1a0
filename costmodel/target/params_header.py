"""Read a `gemmini_params.h`, the header that Gemmini's generator writes for one hardware instance.

Facts about the header: DIM, BANK_NUM, BANK_ROWS, ACC_ROWS and MAX_BYTES are integers or integer
expressions over each other; elem_t, acc_t and acc_scale_t are typedefs; optional hardware is told
by the presence of a macro (HAS_MVIN_SCALE, ACC_READ_FULL_WIDTH, HAS_FIRST_LAYER_OPTIMIZATIONS...).
Energies, bandwidths and the fusion path are not in it: they take `Target`'s defaults.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from fadiff.costmodel.target.target import Target, TargetError
from fadiff.costmodel.target.text_file import FormatError, read_text
from fadiff.costmodel.target.validation import one_line

_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)|//[^\n]*", re.DOTALL)
_DEFINE = re.compile(r"#[ \t]*define[ \t]+(\w+)(\([^)]*\))?(.*)")
_SUFFIX = re.compile(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b")
_MOST_BYTES = 2**20
_MOST_BITS = 64
"""Of a C integer."""

HEADER_FIELDS = (
    "side",
    "scratchpad_bytes",
    "scratchpad_banks",
    "accumulator_bytes",
    "element_bytes",
    "accumulator_bytes_per_word",
    "element_type",
    "max_bytes",
    "has_row_packing",
    "has_full_width_read",
    "has_normalizations",
)
"""The fields of `Target` that a header decides."""

OPTIONAL_MACROS = {
    "has_row_packing": "HAS_FIRST_LAYER_OPTIMIZATIONS",
    "has_full_width_read": "ACC_READ_FULL_WIDTH",
    "has_normalizations": "HAS_NORMALIZATIONS",
}
"""Macros that are defined where the hardware has the feature."""

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}


@dataclass(frozen=True)
class ParamsHeader:
    """What the header says, before any judgement."""

    path: Path
    integers: Mapping[str, int]
    """Object-like macros whose value is an integer expression."""
    flags: frozenset[str]
    """Names of all macros that are defined, with or without a value."""
    types: Mapping[str, str]
    """typedef name -> C type."""

    def integer(self, name: str) -> int:
        """Value of an integer macro.

        Raises:
            TargetError: the header does not define it as an integer.
        """
        if name not in self.integers:
            raise TargetError(
                f"{self.path}: no integer #define {name}: is this the gemmini_params.h of your hardware?"
            )
        return self.integers[name]


def read_params_header(path: str | Path) -> ParamsHeader:
    """Parse the header without a C compiler.

    Raises:
        TargetError: the file cannot be read.
    """
    path = Path(path)
    try:
        text = read_text(path, _MOST_BYTES)
    except OSError as error:
        raise TargetError(f"{path}: cannot read the header: {error.strerror}") from error
    except FormatError as error:
        raise TargetError(str(error)) from error
    lines = [line.strip() for line in _COMMENT.sub(" ", text).replace("\\\n", " ").splitlines()]
    values: dict[str, str] = {}
    flags: set[str] = set()
    for found in filter(None, map(_DEFINE.match, lines)):
        name, arguments, value = found.groups()
        flags.add(name)
        if not arguments and value.strip():
            values[name] = value.strip()
    known: dict[str, int | None] = {}
    for name in values:
        _evaluate(name, values, known)
    integers = {name: number for name, number in known.items() if number is not None}
    return ParamsHeader(path, integers, frozenset(flags), _typedefs(lines))


def _typedefs(lines: Iterable[str]) -> dict[str, str]:
    """C types by the name that a typedef gives them."""
    found = {}
    for statement in " ".join(line for line in lines if not line.startswith("#")).split(";"):
        _, keyword, named = statement.rpartition("typedef")
        *words, name = named.split() or [""]
        if keyword and words and all(word.isidentifier() for word in (*words, name)):
            found[name] = " ".join(words)
    return found


def _evaluate(name: str, values: Mapping[str, str], known: dict[str, int | None]) -> int | None:
    """Integer value of a macro, None where it is not an integer expression; each is worked out once."""
    if name in known or name not in values:
        return known.get(name)
    known[name] = None  # for a macro that names itself

    def number(node: ast.expr) -> int | None:
        match node:
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                return value
            case ast.Name(id=other):
                return _evaluate(other, values, known)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                a, b = number(left), number(right)
                if a is None or b is None:
                    return None
                shifts = isinstance(op, ast.LShift | ast.RShift)
                if (shifts and not 0 <= b < _MOST_BITS) or (isinstance(op, ast.Div) and b == 0):
                    return None  # undefined in C
                result = _OPERATORS[type(op)](a, b)
                return result if result.bit_length() <= _MOST_BITS else None
            case _:
                return None

    try:
        known[name] = number(ast.parse(_SUFFIX.sub(r"\1", values[name]), mode="eval").body)
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # no expression, or one without end
        known[name] = None
    return known[name]


def target_from_header(path: str | Path, name: str | None = None) -> Target:
    """The `Target` of a gemmini_params.h; what it does not say keeps `Target`'s defaults.

    Args:
        path: The header.
        name: Name of the target; by default made from the array side and the memory sizes.

    Raises:
        TargetError: not such a header, or hardware that cannot be scheduled for; says which line to change.
    """
    header = read_params_header(path)
    element_type, element_bytes, word_bytes = _types(header)
    side = header.integer("DIM")
    banks, bank_rows = header.integer("BANK_NUM"), header.integer("BANK_ROWS")
    scratchpad = banks * bank_rows * side * element_bytes
    accumulator = header.integer("ACC_ROWS") * side * word_bytes
    if side < 2 or side & (side - 1):
        raise TargetError(f"{header.path}: DIM {side}: Gemmini arrays are a power of two, at least 2")
    if bank_rows < side or bank_rows & (bank_rows - 1):
        raise TargetError(
            f"{header.path}: BANK_ROWS {bank_rows}: "
            f"Gemmini needs a power of two that is a multiple of DIM {side}"
        )
    try:
        return Target(
            name=name or f"gemmini-{side}x{side}-{_size(scratchpad)}-{_size(accumulator)}",
            side=side,
            scratchpad_bytes=scratchpad,
            scratchpad_banks=banks,
            accumulator_bytes=accumulator,
            element_bytes=element_bytes,
            accumulator_bytes_per_word=word_bytes,
            element_type=element_type,
            max_bytes=header.integer("MAX_BYTES"),
            **{field: macro in header.flags for field, macro in OPTIONAL_MACROS.items()},
        )
    except ValidationError as error:
        raise TargetError(f"{header.path}: {one_line(error, Target)}") from error


def _types(header: ParamsHeader) -> tuple[Literal["int8", "float32"], int, int]:
    """Element type, bytes per element, bytes per accumulator word."""
    element, word = header.types.get("elem_t"), header.types.get("acc_t")
    if element is None or word is None:
        raise TargetError(f"{header.path}: no typedef for elem_t and acc_t: is this a gemmini_params.h?")
    if element == "float" and word == "float":
        return "float32", 4, 4
    if element != "int8_t" or word != "int32_t":
        raise TargetError(
            f"{header.path}: elem_t is {element} and acc_t {word}: "
            "supported are int8_t with int32_t, and float with float"
        )
    if header.types.get("acc_scale_t") != "float" or "ACC_SCALE_T_IS_FLOAT" not in header.flags:
        raise TargetError(
            f"{header.path}: acc_scale_t is not float: "
            "requantisation needs hardware built with float acc_scale_args"
        )
    if "HAS_MVIN_SCALE" not in header.flags or header.types.get("scale_t") != "float":
        raise TargetError(
            f"{header.path}: HAS_MVIN_SCALE with a float scale_t is missing: "
            "residual additions need hardware built with float mvin_scale_args"
        )
    return "int8", 1, 4


def unsaid(target: Target) -> tuple[str, ...]:
    """What a gemmini_params.h cannot say and the YAML must be checked for, one line each."""
    return (
        f"ex_read_from_acc: {target.ex_read_from_acc} (lean and chip configurations: False)",
        f"use_tl_ext_mem: {target.use_tl_ext_mem}",
        f"has_max_pool: {target.has_max_pool}",
        f"tile_buffer_bytes: {target.tile_buffer_bytes} of the SoC cache",
        f"last_level_cache_bytes: {target.last_level_cache_bytes} (what a network's weights pass through)",
        f"bandwidth.dram_bytes: {target.bandwidth.dram_bytes:g} per cycle",
        "energy: DOSA's 40 nm closed form",
    )


def _size(count: int) -> str:
    return f"{count // 1024}kb" if count % 1024 == 0 else f"{count}b"
