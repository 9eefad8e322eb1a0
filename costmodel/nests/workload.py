"""A layer as Timeloop sees it: loop bounds, and how each operand is indexed by the loops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.converter.ir.loops import DIMS, Dim, Dims
from fadiff.costmodel.nests.machine import OPERANDS, Operand

Axis = tuple[tuple[Dim, int], ...]
"""One axis of an operand: the dimensions that it adds up, each with its step."""


@dataclass(frozen=True)
class Workload:
    """Bounds of G N K C P Q R S; stride and dilation as (height, width).  Equal for identical layers."""

    dims: Dims
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)

    @classmethod
    def of(cls, layer: TensorCoreLayer) -> Workload:
        """Of a layer of a graph."""
        return cls(layer.dims, layer.stride, layer.dilation)

    @cached_property
    def active(self) -> tuple[Dim, ...]:
        """Dimensions that have more than one iteration."""
        return tuple(d for d in DIMS if self.dims[d] > 1)

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Of the active dimensions."""
        return np.array([self.dims[d] for d in self.active], dtype=np.int64)

    def axes(self, operand: Operand) -> tuple[Axis, ...]:
        """Weights [G, K, C, R, S], inputs [G, N, C, H, W] by a sliding window, outputs [G, N, K, P, Q]."""
        if operand == "W":
            return tuple(((d, 1),) for d in ("G", "K", "C", "R", "S"))
        if operand == "O":
            return tuple(((d, 1),) for d in ("G", "N", "K", "P", "Q"))
        (stride_h, stride_w), (step_h, step_w) = self.stride, self.dilation
        window: tuple[Axis, ...] = ((("R", step_h), ("P", stride_h)), (("S", step_w), ("Q", stride_w)))
        return (*(((d, 1),) for d in ("G", "N", "C")), *window)

    @cached_property
    def steps(self) -> Mapping[Operand, NDArray[np.int64]]:
        """[axes, active dimensions]: how far one step of a dimension moves along an axis; axes that move."""
        return {operand: self._steps(operand) for operand in OPERANDS}

    def _steps(self, operand: Operand) -> NDArray[np.int64]:
        found = np.zeros((len(self.axes(operand)), len(self.active)), dtype=np.int64)
        for row, axis in zip(found, self.axes(operand), strict=True):
            for dim, step in axis:
                if dim in self.active:
                    row[self.active.index(dim)] = step
        return found[found.any(axis=1)]

    def words(self, operand: Operand) -> int:
        """Of the whole operand; of inputs the box that windows cover, borders included."""
        extents = (1 + sum(step * (self.dims[d] - 1) for d, step in axis) for axis in self.axes(operand))
        return math.prod(extents)
