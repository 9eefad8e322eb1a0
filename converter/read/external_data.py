"""External data: where it may lie (a regular file beside the model or below), and large files read so.

A large .onnx file is parsed without its weights: protobuf reads a message as a whole, and copies it.  The
wire format says where a tensor's bytes begin and end (source: protobuf.dev, "Encoding"; field numbers:
onnx.proto), so that only what is around them is read, and they stay as external data in that file.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from onnx.external_data_helper import uses_external_data

from fadiff.converter.errors import ModelError
from fadiff.converter.names import printable

_KEEP_TOGETHER = "keep a model and its data in one folder"


def check_external_data(path: Path, tensor: onnx.TensorProto, nbytes: int) -> None:
    """Refuse external data that is somewhere else, missing, or not as long as the tensor.

    A model from elsewhere must not bring other files of this machine into what is built from it.

    Args:
        path: the .onnx file.
        tensor: one that may use external data.
        nbytes: what its content takes.

    Raises:
        ModelError: the place is absolute, leaves the folder or goes through a link; the file is missing, no
            regular file or too short; offset or length are no sizes, or not the tensor's.
    """
    if not uses_external_data(tensor):
        return
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    what = f"{path}: initializer {printable(tensor.name)}: external data file {printable(location)}"
    file = _beside(path.parent, location, what)
    offset = _size(entries.get("offset") or "0", f"{what}: offset")
    length = _size(entries.get("length") or str(nbytes), f"{what}: length")
    if length != nbytes:
        raise ModelError(
            f"{what}: length {length}, but the tensor has {nbytes} bytes; export the model again"
        )
    if not file.is_file():
        missing = "is missing" if not file.exists() else "is no regular file"
        raise ModelError(f"{what} {missing}; put it beside the model in {path.parent}")
    if file.stat().st_size < offset + nbytes:
        raise ModelError(
            f"{what} has {file.stat().st_size} bytes, needs {offset + nbytes}; copy it again, or export again"
        )


def is_lost(path: Path, tensor: onnx.TensorProto) -> bool:
    """Whether the file that a tensor names beside the model is not there."""
    location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
    what = f"{path}: initializer {printable(tensor.name)}: external data file {printable(location)}"
    return not _beside(path.parent, location, what).exists()


def _beside(folder: Path, location: str, what: str) -> Path:
    """The file, once it is sure that it lies in the folder."""
    parts = PurePosixPath(location).parts
    if not parts or "\0" in location:
        raise ModelError(f"{what} is no name of a file; export the model again")
    if PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor or ".." in parts:
        raise ModelError(f"{what} lies outside of the model's folder; {_KEEP_TOGETHER}")
    place = folder
    for part in parts:
        place = place / part
        if place.is_symlink():
            raise ModelError(f"{what} is reached through a symbolic link; {_KEEP_TOGETHER}, as copies")
    return place


def _size(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ModelError(f"{what} {printable(text[:20])!r} is no size in bytes; export the model again")
    return int(text)


SMALLEST_FILE = 2**27
_LARGE = 2**20
"""Bytes of a tensor that stay in the file."""
_GRAPH, _INITIALIZER, _RAW_DATA, _EXTERNAL_DATA = 7, 5, 9, 13
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5


def slim_content(path: Path) -> bytes | None:
    """The serialised model with large initializers as external data in the file itself.

    None where that is not worth it, or the file is not plainly of this format: parsing tells what is wrong.

    Raises:
        OSError: the file cannot be read.
    """
    if path.is_symlink() or path.stat().st_size < SMALLEST_FILE:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            return b"".join(_model(content, path.name))
        except (IndexError, ValueError):
            return None


def _model(content: mmap.mmap, file: str) -> Iterator[bytes]:
    for field, tag, start, end in _fields(content, 0, len(content)):
        if field != _GRAPH or tag & 7 != _LEN:
            yield _spelled(content, tag, start, end)
            continue
        graph = b"".join(_graph(content, start, end, file))
        yield _varint(tag) + _varint(len(graph)) + graph


def _graph(content: mmap.mmap, start: int, end: int, file: str) -> Iterator[bytes]:
    for field, tag, first, last in _fields(content, start, end):
        if field == _INITIALIZER and tag & 7 == _LEN and last - first >= _LARGE:
            tensor = _tensor(content, first, last, file)
            yield _varint(tag) + _varint(len(tensor)) + tensor
        else:
            yield _spelled(content, tag, first, last)


def _tensor(content: mmap.mmap, start: int, end: int, file: str) -> bytes:
    fields = list(_fields(content, start, end))
    data = [(first, last) for field, tag, first, last in fields if field == _RAW_DATA and tag & 7 == _LEN]
    if len(data) != 1 or data[0][1] - data[0][0] < _LARGE or any(f[0] == _EXTERNAL_DATA for f in fields):
        return bytes(content[start:end])
    rest = b"".join(_spelled(content, *field[1:]) for field in fields if field[0] != _RAW_DATA)
    tensor = onnx.TensorProto()
    tensor.data_location = onnx.TensorProto.EXTERNAL
    (first, last), entries = data[0], {"location": file}
    for key, value in {**entries, "offset": str(first), "length": str(last - first)}.items():
        tensor.external_data.add(key=key, value=value)
    return bytes(rest + tensor.SerializeToString())


def _fields(content: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, tag, first and last byte of the content of every field of a message.

    Raises:
        IndexError: the file ends in a field.
        ValueError: a field reaches behind its message, or is of a kind that ONNX does not have.
    """
    at = start
    while at < end:
        tag, at = _read_varint(content, at)
        kind = tag & 7
        if kind == _LEN:
            length, at = _read_varint(content, at)
            last = at + length
        elif kind == _VARINT:
            last = _read_varint(content, at)[1]
        elif kind in (_I32, _I64):
            last = at + (4 if kind == _I32 else 8)
        else:
            raise ValueError(f"a field of kind {kind}")
        if last > end:
            raise ValueError("a field reaches behind its message")
        yield tag >> 3, tag, at, last
        at = last


def _spelled(content: mmap.mmap, tag: int, start: int, end: int) -> bytes:
    """A field as it is in the file."""
    length = _varint(end - start) if tag & 7 == _LEN else b""
    return _varint(tag) + length + content[start:end]


def _read_varint(content: mmap.mmap, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number without end")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
