"""The sample networks at a size that the functional model runs in seconds, exported as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch.utils.flop_counter import FlopCounterMode

from fadiff.samples.catalog import SAMPLES
from fadiff.samples.export import export

Exporter = Literal["dynamo", "torchscript"]
EXPORTERS: tuple[Exporter, ...] = ("dynamo", "torchscript")

SPECIAL: Mapping[str, Mapping[str, int]] = {
    "densenet121": {"image_size": 64},
    "detector": {"image_size": 64},
    "inception": {"image_size": 64},
    "squeezenet": {"image_size": 64},
    "vit-block": {"image_size": 64},
    "swin-block": {"image_size": 56},
    "gpt3-block": {"seq": 16, "width": 512},
}
"""Options that differ from `IMAGE` and `TOKENS`: networks that halve the image often need more pixels, Swin
whole windows, and the GPT-3 block is 0.8 GB at full width."""
ZERO_STATE_MACS: Mapping[str, int] = {"lstm-tagger": 2 * 64 * 4 * 64}
"""Products with an initial state of zeros, which torch computes and no layer of ours: two directions of 64
states by four gates of 64."""
IMAGE = 32
TOKENS = 16


def options_of(name: str, image_size: int | None = None) -> dict[str, int]:
    """The options that make `samples` network `name` small, or its images of `image_size` pixels."""
    defaults = SAMPLES[name].defaults
    if image_size is not None and "image_size" in defaults:
        return {"image_size": image_size}
    small = {"image_size": IMAGE} if "image_size" in defaults else {"seq": TOKENS}
    return dict(SPECIAL.get(name, {key: value for key, value in small.items() if key in defaults}))


def exported(name: str, exporter: Exporter, folder: Path, image_size: int | None = None) -> Path:
    """FOLDER/NAME.EXPORTER.onnx with calibration data and inputs, made if it is not there yet."""
    size = "" if image_size is None else f".{image_size}"
    path = folder / f"{name}{size}.{exporter}.onnx"
    if not path.with_suffix(".inputs.npz").is_file():  # the last file that export writes
        folder.mkdir(parents=True, exist_ok=True)
        export(SAMPLES[name], path, options=options_of(name, image_size), exporter=exporter)
    return path


def independent_macs(name: str) -> int:
    """Multiply-accumulates as torch's flop counter sees the module run, on tensors without data.

    Without products with a state of zeros.
    """
    sample, options = SAMPLES[name], options_of(name)
    example = sample.inputs(options, 1, torch.Generator().manual_seed(0))
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        module = sample.build(options).eval()
        module(*(torch.empty_like(x, device="meta") for x in example))
    return int(counter.get_total_flops()) // 2 - ZERO_STATE_MACS.get(name, 0)
