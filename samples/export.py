"""Build a sample network with seeded weights and export it to ONNX with calibration and test data."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fadiff.samples.catalog import Sample
from fadiff.samples.images import fit_classifier
from fadiff.samples.repeat import repeat_block

Exporter = Literal["dynamo", "torchscript"]
CALIBRATION_COUNT = 8
TEST_COUNT = 16
_WARM_UP_BATCH = 8
_EXTERNAL = 2**28


@dataclass(frozen=True)
class Exported:
    """The files that one export wrote."""

    model: Path
    calibration: Path
    inputs: Path
    labelled: Path | None = None


def export(
    sample: Sample,
    path: Path,
    *,
    options: dict[str, int],
    seed: int = 0,
    exporter: Exporter = "dynamo",
) -> Exported:
    """Write FILE.onnx, FILE.calibration.npz (8 samples) and FILE.inputs.npz (16 samples).

    Weights are random but seeded; batch-norm statistics come from seeded batches, so that
    activations keep about unit variance and different inputs give different outputs.  Over 256 MB the
    weights are external data, in FILE.onnx.data.  Samples that are trained have real data that training
    did not see, and FILE.labelled.npz with all that is left of it (`input`, `labels`).

    Args:
        sample: the network.
        path: of the .onnx file; the folder must exist.
        options: of the sample (image_size, seq...).
        seed: of weights and data.
        exporter: torch.onnx's dynamo or TorchScript exporter.

    Raises:
        ValueError: an option does not fit the network, or there is no data to train it on.
    """
    if sample.write is not None:
        with _quiet():
            return Exported(path, *sample.write(path, seed))
    torch.manual_seed(seed)
    layers = {**sample.defaults, **options}.get("layers", 1) if sample.repeats and exporter == "dynamo" else 1
    if layers > 1:
        options = {**options, "layers": 1}
    module = sample.build(options)
    held_out = None
    if sample.train is not None:
        held_out = sample.train(module, _generator(seed, 6))
    else:
        warm_up = sample.inputs(options, _WARM_UP_BATCH, _generator(seed, 1))
        _settle_batch_norms(module, warm_up, sample.norm_bias)
    module.eval()
    if sample.classifier:
        size = {**sample.defaults, **options}["image_size"]
        fit_classifier(module, size, _generator(seed, 5))
    example = sample.inputs(options, 1, _generator(seed, 2))
    names = list(sample.input_names)
    with _quiet():
        if exporter == "dynamo":
            torch.onnx.export(
                module,
                example,
                path,
                dynamo=True,
                input_names=names,
                output_names=["output"],
                external_data=_bytes(module) > _EXTERNAL or layers > 1,
                verbose=False,
            )
        else:
            torch.onnx.export(
                module, example, str(path), dynamo=False, input_names=names, output_names=["output"]
            )
    if layers > 1:
        repeat_block(path, layers, seed)
    calibration, inputs = path.with_suffix(".calibration.npz"), path.with_suffix(".inputs.npz")
    if held_out is not None:
        (name,) = names
        labelled = path.with_suffix(".labelled.npz")
        parts: dict[Path, dict[str, Any]] = {
            calibration: {name: held_out.calibration.numpy()},
            inputs: {name: held_out.images[:TEST_COUNT].numpy()},
            labelled: {name: held_out.images.numpy(), "labels": held_out.labels.numpy()},
        }
        for part, content in parts.items():
            np.savez(part, **content)
        return Exported(path, calibration, inputs, labelled)
    for file, count, stream in ((calibration, CALIBRATION_COUNT, 3), (inputs, TEST_COUNT, 4)):
        generator = _generator(seed, stream)
        batches = [sample.inputs(options, 1, generator) for _ in range(count)]
        arrays: dict[str, Any] = {n: np.stack([b[i].numpy() for b in batches]) for i, n in enumerate(names)}
        np.savez(file, **arrays)
    return Exported(path, calibration, inputs)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings, and those of every torchvision operator that it cannot find."""
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _generator(seed: int, stream: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * seed + stream)


def _bytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


@torch.no_grad()
def _settle_batch_norms(module: nn.Module, batch: tuple[Tensor, ...], bias: float) -> None:
    """One training pass with cumulative averaging sets running mean and variance."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        nn.init.constant_(norm.bias, bias)
    module.train()
    module(*batch)
