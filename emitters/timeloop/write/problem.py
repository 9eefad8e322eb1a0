"""One layer (or a region of it) as a Timeloop problem."""

from __future__ import annotations

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.converter.ir.loops import DIMS, Dims
from fadiff.emitters.timeloop.write.yaml_text import OneLine

Yaml = dict[str, object]


def letters_of(dims: Dims) -> str:
    """Dimension letters of a problem: the usual seven, and G in front where there are groups."""
    return "".join(DIMS if dims.G > 1 else DIMS[1:])


def problem(layer: TensorCoreLayer, dims: Dims) -> Yaml:
    """Root key `problem`: shape and instance.

    Groups (and depthwise channels, attention heads) are a dimension G of all three data spaces:
    Timeloop takes any letters, and the loop nest stays the schedule's.
    """
    group = [[["G"]]] if dims.G > 1 else []
    strides = dict(zip(("Hstride", "Wstride"), layer.stride, strict=True))
    dilations = dict(zip(("Hdilation", "Wdilation"), layer.dilation, strict=True))
    windows = [[["R", "Hdilation"], ["P", "Hstride"]], [["S", "Wdilation"], ["Q", "Wstride"]]]
    coefficients = {**strides, **dilations}
    shape = {
        "name": layer.op,
        "dimensions": list(letters_of(dims)),
        "coefficients": [{"name": name, "default": 1} for name in coefficients],
        "data_spaces": [
            {"name": "Weights", "projection": OneLine([*group, [["K"]], [["C"]], [["R"]], [["S"]]])},
            {"name": "Inputs", "projection": OneLine([*group, [["N"]], [["C"]], *windows])},
            {
                "name": "Outputs",
                "projection": OneLine([*group, [["N"]], [["K"]], [["P"]], [["Q"]]]),
                "read_write": True,
            },
        ],
    }
    bounds = {letter: dims[letter] for letter in DIMS if letter in letters_of(dims)}
    return {"problem": {"shape": shape, "instance": {**bounds, **coefficients}}}
