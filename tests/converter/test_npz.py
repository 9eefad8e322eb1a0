"""Data files that hold something else than arrays of numbers, or more of them than memory."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy

from fadiff.converter import ModelError
from fadiff.converter.read.inputs import read_arrays


def _message(path: Path, *names: str) -> str:
    with pytest.raises(ModelError) as caught:
        read_arrays(path, "calibration data", names or ("image",))
    message = str(caught.value)
    assert message.isprintable() and message.startswith(str(path))
    return message


def test_arrays_that_are_asked_for(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "d.npz", a=np.arange(3), b=np.ones((2, 2), order="F"), c=np.zeros(1))
    arrays, there = read_arrays(tmp_path / "d.npz", "data", ("b", "a", "missing"))
    assert there == ("a", "b", "c") and set(arrays) == {"a", "b"}
    np.testing.assert_array_equal(arrays["a"], [0, 1, 2])
    np.testing.assert_array_equal(arrays["b"], np.ones((2, 2)))


def test_objects_are_called_that(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", image=np.array([[1], [2, 3]], object))
    message = _message(tmp_path / "d.npz")
    assert "image is an array of Python objects" in message and "pickle" not in message


def test_a_member_without_end(tmp_path: Path) -> None:
    """Two kilobytes that say they are 2^43 bytes."""
    header = io.BytesIO()
    npy.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)})
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("image.npy", header.getvalue() + bytes(2000))
    assert "image has 8,796,093,022,208 bytes" in _message(tmp_path / "d.npz")


def _with(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("image.npy", content)

    return write


@pytest.mark.parametrize(
    "write",
    [
        _with(b""),
        _with(b"not an array"),
        _with(npy.MAGIC_PREFIX + b"\x01\x00\x05\x00{'a':"),
        _with(npy.MAGIC_PREFIX + b"\x09\x09"),
        lambda path: path.write_bytes(b"PK\x03\x04"),
        lambda path: path.write_text("text"),
        lambda path: path.mkdir(),
        lambda path: None,
    ],
)
def test_what_is_damaged(tmp_path: Path, write: Callable[[Path], object]) -> None:
    write(tmp_path / "d.npz")
    assert "cannot read calibration data" in _message(tmp_path / "d.npz")


def test_a_member_that_is_no_array_is_not_there(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("image", "text")
    assert read_arrays(tmp_path / "d.npz", "data", ("image",)) == ({}, ())
