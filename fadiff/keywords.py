"""Keywords of `compile` and its kin, typed: single fields of `ModelOptions` and `SearchOptions`.

A type checker finds a misspelt one; tests hold the fields equal to those of the two classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from fadiff.batches import Batches
    from fadiff.costmodel.schedule.schedule import FusionModel, Profile
    from fadiff.optimizer.cut.partition import Objective
    from fadiff.optimizer.cut.settings import MethodName, RelaxationForm
    from fadiff.optimizer.layer.candidates import Tiling

Quantize = Literal["auto", "int8", "none"]
InputType = Literal["int8", "uint8", "int32", "float32"]
InputTypes = InputType | Mapping[str, InputType]


class ModelKeywords(TypedDict, total=False):
    """How to read a model: fields of `ModelOptions`."""

    quantize: Quantize
    calibration: str | Path | Batches | None
    test_inputs: str | Path | None
    dims: Mapping[str, int]
    context: int | None
    inputs: Sequence[str]
    outputs: Sequence[str]
    states: Mapping[str, str] | Sequence[tuple[str, str]]
    guess_states: bool
    without: tuple[str, ...]
    keep_float: str | Sequence[str]
    wide: Sequence[str]
    input_type: InputTypes
    min_sqnr: float | None


class RulesKeywords(TypedDict, total=False):
    """What to search for: fields of `SearchOptions` but for the method."""

    objective: Objective
    profile: Profile
    fusion: bool
    fusion_model: FusionModel
    residency: bool
    tiling: Tiling
    row_packing: bool
    relaxation: RelaxationForm
    seed: int
    time_budget: float | None


class SearchKeywords(RulesKeywords, total=False):
    """What to search for and how."""

    method: MethodName


class Keywords(ModelKeywords, SearchKeywords, total=False):
    """All of them."""


class ComparedKeywords(ModelKeywords, RulesKeywords, total=False):
    """All of them but the method: what several methods have in common."""
