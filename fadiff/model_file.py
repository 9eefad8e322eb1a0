"""A model as Python has it: the path of an ONNX file, an onnx.ModelProto, or a torch.nn.Module."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fadiff.converter.folders import scratch_folder
from fadiff.converter.names import did_you_mean
from fadiff.errors import InputError

if TYPE_CHECKING:
    import onnx
    import torch

    Model = str | Path | onnx.ModelProto | torch.nn.Module


@contextmanager
def model_file(model: Model, example_inputs: Any = None) -> Iterator[Path]:
    """The model as an ONNX file, which is there only inside the `with` block unless it was given as a path.

    Args:
        model: The model.
        example_inputs: What a torch.nn.Module is called with to export it: a tensor or a tuple of them.

    Raises:
        InputError: no such file, or a module without example inputs.
    """
    if isinstance(model, str | Path):
        path = Path(model)
        _check_file(path)
        yield path
        return
    with scratch_folder() as folder:
        import onnx

        if isinstance(model, onnx.ModelProto):
            path = folder / f"{re.sub('[^A-Za-z0-9_]+', '_', model.graph.name) or 'model'}.onnx"
            onnx.save(model, path)
        else:
            path = folder / f"{type(model).__name__.lower()}.onnx"
            _export(model, example_inputs, path)
        yield path


def _export(module: torch.nn.Module, example_inputs: Any, path: Path) -> None:
    if example_inputs is None:
        raise InputError(f"{type(module).__name__}: give example_inputs, a tensor or a tuple, to export it")
    import torch

    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    before = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with warnings.catch_warnings():  # (it warns of its own flags, and logs whatever it cannot find)
            warnings.simplefilter("ignore")
            torch.onnx.export(module, inputs, path, dynamo=True, verbose=False)
    finally:
        for part, training in before.items():
            part.training = training


def _check_file(model: Path) -> None:
    if not model.is_file():
        reason = "not a file" if model.exists() else "no such file"
        beside = (path.name for path in model.parent.glob("*.onnx")) if model.parent.is_dir() else ()
        advice = did_you_mean(model.name, beside) or "give the path of an ONNX model"
        raise InputError(f"{str(model)!r}: {reason}; {advice}")
