"""Target: everything the tool knows about one Gemmini instance and the memory behind it.

Sizes come from the user's gemmini_params.h (`fadiff targets import`); what the header does not
say (dataflow, energies, bandwidths, fusion path) is set in the YAML.  Presets live beside this
file in targets/*.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from fadiff.converter.errors import BadInput
from fadiff.converter.names import did_you_mean
from fadiff.costmodel.target.core import Core
from fadiff.costmodel.target.engines import Engines
from fadiff.costmodel.target.epa import CapacityCurve, Epa, EpaError, fit_table
from fadiff.costmodel.target.record import Record, without_former
from fadiff.costmodel.target.text_file import FormatError, load_yaml
from fadiff.costmodel.target.validation import one_line

PRESETS = Path(__file__).parent / "presets"


class TargetError(BadInput, ValueError):
    """A target file that cannot be used; the message names file, field and remedy."""


class Energy(Record):
    """Picojoules.  Defaults: DOSA's closed form (dataset/dse/energy_model.py lines 101-226)."""

    mac: float = Field(0.5608, ge=0)
    register_byte: float = Field(0.48746172, description="L0, per weight byte read or written", ge=0)
    accumulator_word: float | None = Field(
        None, description="L1 per word; default 1.94 + 0.1005 KB / side", ge=0
    )
    scratchpad_byte: float | None = Field(None, description="L2 per byte; default 0.49 + 0.02513 KB", ge=0)
    dram_byte: float = Field(100.0, ge=0)
    tile_buffer_byte: float | None = Field(
        None, description="SoC cache that holds the tile buffer, per byte; default 0.49 + 0.02513 KB", ge=0
    )


class Bandwidth(Record):
    """Per cycle, reads and writes shared."""

    dram_bytes: float = Field(8.0, gt=0)
    scratchpad_bytes: float | None = Field(None, description="default 2 * side", gt=0)
    accumulator_words_per_column: float = Field(2.0, gt=0)
    tile_buffer_bytes: float = Field(16.0, description="one 128-bit DMA beat", gt=0)


_DOSA_PJ = {
    "accumulator": (1.94, 0.1005),
    "scratchpad": (0.49, 0.02513),
    "tile_buffer": (0.49, 0.02513),
}
"""Energy of one access by capacity in KB (of the accumulator: of one column): at 0 KB, and more for each."""


class Target(Record):
    """A Gemmini instance.

    Units: bytes unless the name says rows.  A scratchpad row holds `side` elements of
    `element_bytes`; an accumulator row `side` words of `accumulator_bytes_per_word`.
    """

    name: str
    side: int = Field(description="DIM: the array is side x side processing elements", ge=2)
    scratchpad_bytes: int = Field(ge=1)
    scratchpad_banks: int = Field(4, ge=1)
    accumulator_bytes: int = Field(ge=1)
    element_bytes: int = 1
    accumulator_bytes_per_word: int = 4
    element_type: Literal["int8", "float32"] = "int8"
    max_bytes: int = Field(64, description="MAX_BYTES: longest row segment one mvin moves", ge=1)
    has_max_pool: bool = True
    has_row_packing: bool = Field(True, description="HAS_FIRST_LAYER_OPTIMIZATIONS: pixel_repeats in mvin")
    has_full_width_read: bool = Field(True, description="ACC_READ_FULL_WIDTH: partial sums can be stored")
    has_normalizations: bool = Field(
        False, description="HAS_NORMALIZATIONS: CONFIG_NORM, of which stores through I-GELU are used"
    )
    ex_read_from_acc: bool = True
    use_tl_ext_mem: bool = False
    tile_buffer_bytes: int = Field(
        256 * 1024, description="share of the SoC cache that fused tiles may use", ge=0
    )
    last_level_cache_bytes: int = Field(
        512 * 1024,
        description="cache that Gemmini's DMA goes through before DRAM (Chipyard: L2); 0: none",
        ge=0,
    )
    epa: Epa | None = Field(
        None, description="energy per access by capacity; {table: FILE} in a target file fits it to a table"
    )
    energy: Energy = Energy()
    bandwidth: Bandwidth = Bandwidth()
    core: Core = Core()
    engines: Engines = Engines()

    @model_validator(mode="before")
    @classmethod
    def _without_former_fields(cls, content: Any) -> Any:
        """Files of earlier releases say where fused tensors stay: in the tile buffer, as always now."""
        return without_former(content, fusion_path="tile-buffer")

    @model_validator(mode="after")
    def _consistent(self) -> Target:
        element_bytes = 4 if self.element_type == "float32" else 1
        if (self.element_bytes, self.accumulator_bytes_per_word) != (element_bytes, 4):
            raise ValueError(
                f"element_type {self.element_type} needs element_bytes {element_bytes} "
                "and accumulator_bytes_per_word 4"
            )
        if self.side & (self.side - 1):
            raise ValueError(f"side={self.side}: Gemmini arrays are a power of two")
        for memory, rows in (("scratchpad", self.scratchpad_rows), ("accumulator", self.accumulator_rows)):
            if rows < 1:
                raise ValueError(f"{memory}_bytes is less than one row of {self.side} elements")
        row_of_banks = self.scratchpad_banks * self.side * self.element_bytes
        if self.scratchpad_bytes % row_of_banks:
            raise ValueError(
                f"scratchpad_bytes={self.scratchpad_bytes}: {self.scratchpad_banks} banks of whole rows take "
                f"a multiple of {row_of_banks}"
            )
        if self.core.vector is not None and self.element_type != "int8":
            raise ValueError("core.vector is for element_type int8: leave it out for float32")
        if self.has_normalizations and self.element_type != "int8":
            raise ValueError("has_normalizations is for element_type int8: leave it out for float32")
        return self

    @property
    def accumulator_word_pj(self) -> float:
        """Energy per accumulator word, read or written."""
        column_kb = self.accumulator_bytes / 1024 / self.side
        return self._access_pj("accumulator", column_kb, self.energy.accumulator_word)

    @property
    def scratchpad_byte_pj(self) -> float:
        """Energy per scratchpad byte, read or written."""
        return self._access_pj("scratchpad", self.scratchpad_bytes / 1024, self.energy.scratchpad_byte)

    @property
    def tile_buffer_byte_pj(self) -> float:
        """Energy per tile-buffer byte, read or written."""
        return self._access_pj("tile_buffer", self.tile_buffer_bytes / 1024, self.energy.tile_buffer_byte)

    def _access_pj(self, memory: str, kb: float, given: float | None) -> float:
        """As the target says; else by capacity, from its fitted table or DOSA's lines."""
        if given is not None:
            return given
        fitted: CapacityCurve | None = getattr(self.epa, memory, None)
        at_0, per_kb = _DOSA_PJ[memory]
        return fitted(kb) if fitted else at_0 + per_kb * kb

    @property
    def scratchpad_bytes_per_cycle(self) -> float:
        """Scratchpad bandwidth, reads and writes together."""
        default = 2.0 * self.side
        return default if self.bandwidth.scratchpad_bytes is None else self.bandwidth.scratchpad_bytes

    def changed(self, name: str, changes: Mapping[str, Any]) -> Target:
        """The target under another name with other values, by field (`bandwidth.dram_bytes`).

        Raises:
            ValidationError: there is no such Gemmini.
        """
        content: dict[str, Any] = {**self.model_dump(exclude_none=True), "name": name}
        for field, value in changes.items():
            outer, _, inner = field.partition(".")
            content[outer] = {**content[outer], inner: value} if inner else value
        return Target.model_validate(content)

    @property
    def sizes(self) -> str:
        """Array and memories, for comments in what is written for it."""
        return (
            f"{self.side} x {self.side} array, {self.scratchpad_bytes // 1024} KB scratchpad, "
            f"{self.accumulator_bytes // 1024} KB accumulator ({self.element_type})"
        )

    @property
    def scratchpad_rows(self) -> int:
        """Rows of `side` elements."""
        return self.scratchpad_bytes // (self.side * self.element_bytes)

    @property
    def accumulator_rows(self) -> int:
        """Rows of `side` words."""
        return self.accumulator_bytes // (self.side * self.accumulator_bytes_per_word)

    @property
    def max_block_len(self) -> int:
        """MAX_BLOCK_LEN: side-wide blocks one scratchpad mvin may move."""
        return max(1, self.max_bytes // (self.side * self.element_bytes))


def preset_names() -> tuple[str, ...]:
    """Names of the shipped targets, sorted."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.yaml")))


def target_yaml(target: Target) -> str:
    """The target as YAML that `load_target` reads back to an equal target."""
    return yaml.safe_dump(target.model_dump(exclude_none=True), sort_keys=False)


def _epa(content: object, folder: Path) -> object:
    """What stands under `epa`: a table to fit, or curves that were fitted before.

    Raises:
        EpaError: neither of them.
    """
    if isinstance(content, dict) and set(content) <= set(Epa.model_fields):
        return content
    if isinstance(content, dict) and set(content) == {"table"} and isinstance(content["table"], str):
        return fit_table(folder / content["table"])
    raise EpaError("give {table: FILE.csv}, with the columns memory, capacity_kb and pj")


def load_target(name_or_path: str | Path) -> Target:
    """A preset by name, or a target YAML file by path.

    Raises:
        TargetError: unknown preset, unreadable file, or a field that does not validate.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        preset = PRESETS / f"{name_or_path}.yaml"
        if not preset.exists():
            advice = did_you_mean(str(name_or_path), preset_names())
            raise TargetError(
                f"unknown target {str(name_or_path)!r}: {advice}{' ' if advice else ''}"
                f"choose one of {', '.join(preset_names())}, or give a .yaml file or a gemmini_params.h"
            )
        path = preset
    try:
        content = load_yaml(path)
        if isinstance(content, dict) and content.get("epa") is not None:
            content = {**content, "epa": _epa(content["epa"], path.parent)}
        return Target.model_validate(content)
    except EpaError as error:
        raise TargetError(f"{path}: epa: {error}") from error
    except OSError as error:
        raise TargetError(f"{path}: cannot read the target: {error.strerror}") from error
    except FormatError as error:
        raise TargetError(str(error)) from error
    except ValidationError as error:
        raise TargetError(f"{path}: {one_line(error, Target)}") from error
