"""The target as a Timeloop architecture with its energy table, native dialect (v0.4)."""

from __future__ import annotations

from fadiff.costmodel.count.energy import picojoules_per_byte
from fadiff.costmodel.count.traffic import Memory
from fadiff.costmodel.target.target import Target
from fadiff.emitters.timeloop.write.yaml_text import OneLine

Yaml = dict[str, object]


def architecture(target: Target, *, tile_buffer: bool = False) -> Yaml:
    """Root keys `architecture` and `ERT`.

    One accumulator slice per array column and one register per processing element, as in DOSA:
    K fans out below the scratchpad (X axis), C below the accumulator (Y axis).  With `tile_buffer`,
    the SoC cache that holds fused intermediates stands between DRAM and scratchpad.
    """
    e, side = target.element_bytes, target.side
    dram = storage("DRAM", "DRAM", e, shared_bandwidth=target.bandwidth.dram_bytes / e)
    scratchpad = storage(
        "Scratchpad",
        "SRAM",
        e,
        entries=target.scratchpad_bytes // e,
        shared_bandwidth=target.scratchpad_bytes_per_cycle / e,
    )
    cache = storage(
        "TileBuffer",
        "SRAM",
        e,
        entries=target.tile_buffer_bytes // e,
        shared_bandwidth=target.bandwidth.tile_buffer_bytes / e,
    )
    accumulator = storage(
        "Accumulator",
        "SRAM",
        target.accumulator_bytes_per_word,
        entries=target.accumulator_rows,
        shared_bandwidth=target.bandwidth.accumulator_words_per_column,
        instances=side,
        mesh_x=side,
    )
    registers = storage("Registers", "SRAM", e, entries=1, instances=side * side, mesh_x=side)
    mac = {
        "name": "MACC",
        "class": "intmac" if target.element_type == "int8" else "fpmac",
        "attributes": {"word_bits": 8 * e, "instances": side * side, "meshX": side},
    }
    pe_rows = {"name": f"PERows[0..{side - 1}]", "local": [registers, mac]}
    pe_cols = {"name": f"PECols[0..{side - 1}]", "local": [accumulator], "subtree": [pe_rows]}
    chip = {
        "name": "chip",
        "local": [cache, scratchpad] if tile_buffer else [scratchpad],
        "subtree": [pe_cols],
    }
    system = {"name": "system", "local": [dram], "subtree": [chip]}
    return {
        "architecture": {"version": 0.4, "subtree": [system]},
        "ERT": energy_table(target, tile_buffer=tile_buffer),
    }


def storage(
    name: str,
    kind: str,
    word_bytes: int,
    *,
    entries: int | None = None,
    shared_bandwidth: float | None = None,
    instances: int = 1,
    mesh_x: int | None = None,
) -> Yaml:
    """One storage component; bandwidth in words per cycle and instance."""
    attributes: Yaml = {"word_bits": 8 * word_bytes, "block_size": 1, "instances": instances}
    if entries is not None:
        attributes = {"entries": entries, **attributes}
    if mesh_x is not None:
        attributes["meshX"] = mesh_x
    if shared_bandwidth is not None:
        attributes["shared_bandwidth"] = number(shared_bandwidth)
    return {"name": name, "class": kind, "attributes": attributes}


def energy_table(target: Target, *, tile_buffer: bool = False) -> Yaml:
    """`ERT`: picojoules per word and action, so that neither Python nor Accelergy is needed."""
    per_byte = picojoules_per_byte(target)
    memories: dict[str, Memory] = {
        "Registers": "register",
        "Accumulator": "accumulator",
        "Scratchpad": "scratchpad",
    }
    if tile_buffer:
        memories["TileBuffer"] = "tile-buffer"
    memories["DRAM"] = "dram"
    per_word = {name: per_byte[memory] * word_bytes(memory, target) for name, memory in memories.items()}
    tables = [
        _table(name, {"read": energy, "write": energy, "update": energy}) for name, energy in per_word.items()
    ]
    return {"version": 0.4, "tables": [*tables, _table("MACC", {"compute": target.energy.mac})]}


def word_bytes(memory: Memory, target: Target) -> int:
    """Bytes of what Timeloop counts as one word."""
    return target.accumulator_bytes_per_word if memory == "accumulator" else target.element_bytes


def _table(component: str, energies: dict[str, float]) -> Yaml:
    actions = [
        OneLine({"name": action, "arguments": {}, "energy": float(f"{energy:.10g}")})
        for action, energy in {**energies, "leak": 0.0}.items()
    ]
    return {"name": f"system.{component}", "actions": actions}


def number(value: float) -> float | int:
    """Ten digits at most, an integer where it is one: readers of the file expect `8`, not `8.0`."""
    short = float(f"{value:.10g}")
    return int(short) if short.is_integer() else short
