"""Where external data may lie: in a regular file beside the model or in a folder below, nowhere else."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from onnx.external_data_helper import uses_external_data

from fadiff.converter.errors import ModelError
from fadiff.converter.printable import printable

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
