"""ResNet-18's C is short enough to be read, and every layer's call is in it."""

from __future__ import annotations

import re
from pathlib import Path

from fadiff.costmodel.target.target import load_target
from fadiff.emitters.gemmini import emit
from fadiff.optimizer import optimize
from fadiff.samples.graphs import graph_of


def test_resnet18_at_224_pixels_in_1000_lines(tmp_path: Path) -> None:
    """On the target where the network takes the most lines."""
    schedule = optimize(graph_of("resnet18"), load_target("gemmini-large"), method="exact").schedule
    code = (emit(schedule, model_name="resnet18", out_dir=tmp_path) / "resnet18.c").read_text()
    assert len(code.splitlines()) <= 1000
    assert len(code) <= 45_000
    functions = dict(re.findall(r"^static void layer_(\w+)\(.*?\)\n\{\n(.*?)^\}", code, re.M | re.S))
    assert len(functions) == len(schedule.mappings)
    for layer, body in functions.items():
        assert len(re.findall(r"\b(?:convolution_tile|product_tile)\(", body)) == 1, layer
