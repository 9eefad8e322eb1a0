"""Loops over the elements of several operands at once."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Access:
    """Where loops find a value: element `offset` + sum of index * stride."""

    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Loops:
    """A loop nest over several values at once, outermost first; what it writes is the last of them.

    Raises:
        ValueError: another number of strides than loops.
    """

    shape: tuple[int, ...]
    inputs: tuple[Access, ...]
    output: Access

    def __post_init__(self) -> None:
        if any(len(access.strides) != len(self.shape) for access in self.accesses):
            raise ValueError(f"{len(self.shape)} loops need as many strides for each operand")

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Accesses of all values."""
        return (*self.inputs, self.output)

    @property
    def anywhere(self) -> Loops:
        """The same wherever the values begin."""
        *inputs, output = (replace(access, offset=0) for access in self.accesses)
        return replace(self, inputs=tuple(inputs), output=output)
