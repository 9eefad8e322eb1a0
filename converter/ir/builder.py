"""GraphBuilder: grows a Graph one tensor and one layer at a time, with unique names; scales of int8."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from fadiff.converter.ir.graph import (
    DType,
    Graph,
    HostLayer,
    Layer,
    Tensor,
    TensorCoreLayer,
    View,
)
from fadiff.converter.ir.host import HostOperator
from fadiff.converter.ir.loops import Dims
from fadiff.converter.ir.scale import AxisScales
from fadiff.converter.names import free_name

INT8_MAX = 127


def symmetric_scale(low: float, high: float) -> float:
    """Scale that maps the larger bound to 127 (float32; 1 for an all-zero range)."""
    with np.errstate(over="ignore"):
        bound = np.float32(max(abs(low), abs(high)))
    scale = bound / np.float32(INT8_MAX)
    if not np.isfinite(scale) or scale < np.finfo(np.float32).tiny:
        return 1.0
    return float(scale)


def plain_name(wanted: str) -> str:
    """A name with characters other than letters, digits, _ . / replaced: what files and reports call it."""
    return re.sub(r"[^0-9A-Za-z_./]+", "_", wanted).strip("_/.") or "value"


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Element strides of a contiguous array: the last axis has stride 1."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def requantise_scale(input_scale: float, weight_scale: float, output_scale: float) -> float:
    """The accumulator scale, float32((input * weight) / output), every step in float32."""
    product = np.float32(input_scale) * np.float32(weight_scale)
    return float(np.float32(product) / np.float32(output_scale))


def image_view(tensor: str, shape: tuple[int, int, int, int], groups: int = 1) -> View:
    """A dense N H W C image seen as (G, N, H, W, C / G)."""
    _, h, w, c = shape
    return View(tensor, 0, (c // groups, h * w * c, w * c, c, 1))


def weight_view(tensor: str, dims: Dims) -> View:
    """Dense weights [G, R, S, C, K]."""
    strides = dense_strides((dims.G, dims.R, dims.S, dims.C, dims.K))
    return View(tensor, 0, (strides[0], strides[1], strides[2], strides[3], strides[4]))


class GraphBuilder:
    """Collects tensors and layers; `build` checks and freezes them.

    Names are made unique by a numeric suffix, so callers pass the name they would like.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors: dict[str, Tensor] = {}
        self.layers: list[Layer] = []
        self.inputs: list[str] = []
        self._names: set[str] = set()
        self._constants: dict[tuple[object, ...], str] = {}

    def unique(self, wanted: str) -> str:
        """`plain_name`, made unique."""
        name = free_name(plain_name(wanted), self._names)
        self._names.add(name)
        return name

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: DType = "int8",
        scale: float | None = None,
        data: np.ndarray | None = None,
        onnx_name: str | None = None,
        onnx_axes: tuple[int, ...] | None = None,
        zero: int = 0,
        along: AxisScales | None = None,
    ) -> str:
        """Add a tensor (a constant when it has `data`); returns its unique name."""
        if scale is not None:
            scale = float(np.float32(scale))
        unique = self.unique(name)
        self.tensors[unique] = Tensor(unique, shape, dtype, scale, data, onnx_name, onnx_axes, zero, along)
        return unique

    def constant(
        self, name: str, shape: tuple[int, ...], dtype: DType, scale: float | None, data: np.ndarray
    ) -> str:
        """Add a constant tensor, unless there is one with this content; returns the name of either."""
        key = shape, dtype, scale, data.tobytes()
        if key not in self._constants:
            self._constants[key] = self.tensor(name, shape, dtype, scale, data)
        return self._constants[key]

    def input(self, name: str, shape: tuple[int, ...], dtype: DType = "int8", **more: object) -> str:
        """Add a graph input; `more` as in `tensor`."""
        unique = self.tensor(name, shape, dtype, **more)  # type: ignore[arg-type]
        self.inputs.append(unique)
        return unique

    def tensor_core(self, layer: TensorCoreLayer, scales: tuple[float, float, float] | None = None) -> None:
        """Add a tensor-core layer; its scale follows from `scales` of input, weight and output.

        By default these are the scales of the tensors; an access that carries a factor (x seen as
        2 x) has another one.
        """
        if scales is None:
            views = (layer.input, layer.weight, layer.output)
            a, b, c = (self.tensors[view.tensor].scale or 1.0 for view in views)
            scales = (a, b, c)
        self.layers.append(replace(layer, name=self.unique(layer.name), scale=requantise_scale(*scales)))

    def host(
        self,
        name: str,
        operator: HostOperator,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        onnx_nodes: tuple[str, ...] = (),
    ) -> None:
        """Add a host layer."""
        self.layers.append(HostLayer(self.unique(name), operator, inputs, outputs, onnx_nodes))

    def build(self, outputs: tuple[str, ...], sha256: str = "") -> Graph:
        """Freeze; tensors that no layer touches are left out."""
        used = {*self.inputs, *outputs}
        for layer in self.layers:
            used.update(layer.inputs)
            used.update(layer.outputs)
        tensors = {name: tensor for name, tensor in self.tensors.items() if name in used}
        return Graph(self.name, tensors, tuple(self.layers), tuple(self.inputs), outputs, sha256)
