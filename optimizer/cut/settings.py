"""What a search may do, and what it is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.mapping.counting import COUNTING
from fadiff.costmodel.schedule.schedule import FusionModel, LatencyModel, Profile
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.layer.candidates import Tiling
from fadiff.optimizer.layer.space import Rules

MethodName = Literal[
    "auto", "gradient", "layerwise", "dosa", "genetic", "bayesian", "random", "gemmini-auto", "exact"
]
AMPLE_SECONDS, AMPLE_SECONDS_PER_LAYER = 120.0, 3.0
"""Searches without a budget: they end by themselves, most in a small part of it."""
RelaxationForm = Literal["log", "paper"]
"""Distance of a trainable tile from its candidates: of the logarithms, or linear as in Eq. 1-3."""


@dataclass(frozen=True)
class Settings:
    """Everything that decides what a search finds, beside graph and target."""

    method: MethodName = "auto"
    """How to search; `auto` enumerates like `exact`, and ends earlier where no proof is in reach."""
    objective: Objective = "edp"
    """What to minimise."""
    profile: Profile = "hw"
    """`hw` decides what is emitted, `dosa` compares with published numbers."""
    fusion: bool = True
    """Whether layers may be fused."""
    fusion_model: FusionModel = "sound"
    """`sound`, or the literature's (`paper`)."""
    residency: bool = True
    """Whether tensors may stay on chip from one group to later ones (methods auto, exact and gradient, with
    sound fusion)."""
    tiling: Tiling = "ragged"
    """`divisor` restricts tiles to divisors (profile dosa)."""
    row_packing: bool = True
    """Whether kernel taps may share the array rows of a layer with few channels."""
    relaxation: RelaxationForm = "log"
    """Form of the trainable tiles in method `gradient`: `paper` is Eq. 1-3 as printed."""
    seed: int = 0
    """Equal seeds give equal schedules (unless `time_budget` cuts the search short)."""
    time_budget: float | None = None
    """Seconds after which to return the best schedule known.  None: when it is done, or at `limit`."""

    def limit(self, graph: Graph) -> float:
        """Seconds that a search of `graph` may take: the budget, or what is ample for its size."""
        if self.time_budget is not None:
            return self.time_budget
        shapes = {
            (layer.dims, layer.stride, layer.dilation, layer.pads) for layer in graph.tensor_core_layers
        }
        return AMPLE_SECONDS + AMPLE_SECONDS_PER_LAYER * len(shapes)

    @property
    def fuses(self) -> bool:
        """Whether groups of several layers are searched."""
        return self.fusion and self.method != "layerwise"

    @property
    def latency(self) -> LatencyModel:
        """By which schedules are searched and scored: that of the profile."""
        return COUNTING[self.profile].latency

    @property
    def obstacle(self) -> str:
        """Why the method cannot search this fusion model, or by this profile; empty if it can."""
        if self.fusion_model == "paper" and self.profile == "hw":
            return "no program does what fusion model paper counts: use profile dosa"
        if self.tiling == "divisor" and self.profile == "hw":
            return "tiles of loop units need not divide the layer: tiling divisor needs profile dosa"
        if self.method in ("genetic", "bayesian", "random") and self.fusion and self.fusion_model == "paper":
            return f"method {self.method} searches executable fusion only: use fusion model sound"
        return ""

    def rules(self, target: Target) -> Rules:
        """What holds for every layer on `target`."""
        return Rules(target, self.profile, self.tiling, self.row_packing)
