"""Between ONNX values and stored tensors."""

from __future__ import annotations

import numpy as np

from fadiff.converter.check.storage import from_storage, to_storage
from fadiff.converter.ir.graph import Tensor


def test_images_come_back_in_onnx_order() -> None:
    """Storage may leave out where the unit batch axis went: H W N C is stored as N H W C."""
    image = np.arange(2 * 3 * 4, dtype=np.int8).reshape(1, 4, 2, 3)  # N C H W
    for axes in ((0, 2, 3, 1), (2, 3, 0, 1)):
        stored = image.transpose(axes).reshape(1, 2, 3, 4)
        tensor = Tensor("t", (1, 2, 3, 4), "int8", 0.5, onnx_axes=axes)
        value = image * np.float32(0.5)
        np.testing.assert_array_equal(from_storage(tensor, stored, image.shape), value)
        np.testing.assert_array_equal(to_storage(tensor, value), stored)


def test_inputs_round_half_to_even_and_saturate() -> None:
    value = np.array([0.25, 0.75, -0.25, 100.0, -100.0], np.float32)
    assert to_storage(Tensor("t", (5,), "int8", 0.5), value).tolist() == [0, 2, 0, 127, -128]
