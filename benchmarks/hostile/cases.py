"""One hostile case: files written into a folder, and the command that reads them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import yaml

from benchmarks.hostile.mutate import Rng, mutated_bytes, mutated_data, mutated_model, mutated_text, pick
from benchmarks.hostile.seeds import HEADER, SPACE, TARGET, models, with_external_data

Arguments = list[str]
Make = Callable[[Rng, Path], Arguments]
_MODELS = models()


def model_case(models: Sequence[onnx.ModelProto]) -> Make:
    """A kind of case: one of these models with changed fields, or changed bytes; one in eight is compiled."""

    def hostile_model(rng: Rng, folder: Path) -> Arguments:
        path = folder / "model.onnx"
        content = mutated_model(rng, pick(rng, models)).SerializeToString()
        path.write_bytes(mutated_bytes(rng, content) if rng.random() < 0.2 else content)
        if rng.random() < 0.125:
            return ["compile", str(path), "--out", str(folder / "out"), "--method", "layerwise", "-q"]
        return ["inspect", str(path), "-q"]

    return hostile_model


def hostile_external_data(rng: Rng, folder: Path) -> Arguments:
    """External data whose place, offset or length is changed, or whose file is."""
    path = folder / "model.onnx"
    with_external_data(path)
    model = onnx.load(path, load_external_data=False)
    entry = pick(rng, pick(rng, model.graph.initializer).external_data)
    places = ("../model.onnx.data", str(folder / "model.onnx.data"), ".", "", "a\0b", "link", "/dev/zero")
    numbers = ("-1", "1e3", "", "9" * 30, "0x10", "4", "\u0663")
    entry.value = str(pick(rng, places if entry.key == "location" else numbers))
    (folder / "link").symlink_to("model.onnx.data")
    path.write_bytes(model.SerializeToString())
    return ["inspect", str(path), "-q"]


def hostile_calibration(rng: Rng, folder: Path) -> Arguments:
    """An .npz with other members, types, shapes or bytes."""
    path = folder / "data.npz"
    onnx.save(_MODELS["residual"], folder / "model.onnx")
    shape = pick(rng, ((2, 1, 4, 8, 8), (1, 4, 8, 8), (0, 1, 4, 8, 8), (2, 3), (), (2**40, 0)))
    dtype = pick(rng, (np.float32, np.int8, np.bool_, np.complex64, "U3", "M8[s]", object, np.float16))
    members = {str(pick(rng, ("image", "other", "../image", "a\x1bb"))): np.zeros(shape, dtype)}
    content = io.BytesIO()
    np.savez(content, allow_pickle=True, **members)
    with zipfile.ZipFile(content, "a") as archive:
        archive.writestr(str(pick(rng, ("image.txt", "image", "readme.npy"))), "not an array")
    data = content.getvalue()
    path.write_bytes(mutated_bytes(rng, data) if rng.random() < 0.5 else data)
    arguments = ["compile", str(folder / "model.onnx"), "--out", str(folder / "out"), "-q"]
    return [*arguments, "--method", "layerwise", "--calibration", str(path)]


def hostile_header(rng: Rng, folder: Path) -> Arguments:
    """A gemmini_params.h with other words, numbers and lines."""
    path, text = folder / "gemmini_params.h", HEADER
    for _ in range(int(rng.integers(1, 5))):
        text = mutated_text(rng, text)
    path.write_text(text, encoding="utf-8", errors="replace")
    return ["targets", "import", str(path)]


def hostile_target(rng: Rng, folder: Path) -> Arguments:
    """A target file with other fields, or other text."""
    path = folder / "target.yaml"
    text = yaml.safe_dump(mutated_data(rng, TARGET), sort_keys=False)
    path.write_text(mutated_text(rng, text) if rng.random() < 0.3 else text, encoding="utf-8")
    if rng.random() < 0.3:
        onnx.save(_MODELS["residual"], folder / "model.onnx")
        compiled = ["compile", str(folder / "model.onnx"), "--out", str(folder / "out"), "-q"]
        return [*compiled, "--method", "layerwise", "--target", str(path)]
    return ["targets", "show", str(path)]


def hostile_space(rng: Rng, folder: Path) -> Arguments:
    """A design space with other fields, or other text."""
    path = folder / "space.yaml"
    text = yaml.safe_dump(mutated_data(rng, SPACE), sort_keys=False)
    path.write_text(mutated_text(rng, text) if rng.random() < 0.3 else text, encoding="utf-8")
    onnx.save(_MODELS["quantised"], folder / "model.onnx")
    return ["sweep", str(path), str(folder / "model.onnx"), "-q"]


KINDS: Mapping[str, Make] = {
    "model": model_case(list(_MODELS.values())),
    "external": hostile_external_data,
    "calibration": hostile_calibration,
    "header": hostile_header,
    "target": hostile_target,
    "space": hostile_space,
}
"""All but those that begin with an output folder."""
