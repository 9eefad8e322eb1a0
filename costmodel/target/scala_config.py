"""The Chisel configuration of a target: what Gemmini's generator is given to make that hardware."""

from __future__ import annotations

from fadiff.costmodel.target.target import Target

_TEXT = """\
// {target.name}: {target.sizes}.
// Not Gemmini's to say: {dram:g} DRAM bytes per cycle, and {tile_buffer} KB of SoC cache as tile buffer.
// Put this file beside your SoC configurations and `new FadiffGemminiConfig` among their fragments.
package gemmini

object FadiffGemmini {{
  val config = {base}.copy(
    tileRows = 1,
    tileColumns = 1,
    meshRows = {target.side},
    meshColumns = {target.side},
    dataflow = Dataflow.WS,
    sp_capacity = CapacityInKilobytes({scratchpad}),
    sp_banks = {target.scratchpad_banks},
    acc_capacity = CapacityInKilobytes({accumulator}),
    dma_maxbytes = {target.max_bytes},
    has_max_pool = {max_pool},
    has_first_layer_optimizations = {row_packing},
    acc_read_full_width = {full_width},
    has_normalizations = {normalizations},
    ex_read_from_acc = {from_acc},
    use_tl_ext_mem = {ext_mem}
  )
}}

class FadiffGemminiConfig extends DefaultGemminiConfig(FadiffGemmini.config)
"""


def scala_config(target: Target) -> str:
    """A Scala file with the configuration and a fragment of it for Chipyard.

    Names are those of GemminiArrayConfig (ucb-bar/gemmini); what a target does not say stays as in its
    default.
    """

    def flag(value: bool) -> str:
        return str(value).lower()

    floats = target.element_type == "float32"
    return _TEXT.format(
        target=target,
        dram=target.bandwidth.dram_bytes,
        scratchpad=target.scratchpad_bytes // 1024,
        accumulator=target.accumulator_bytes // 1024,
        tile_buffer=target.tile_buffer_bytes // 1024,
        base="GemminiFPConfigs.defaultFPConfig" if floats else "GemminiConfigs.defaultConfig",
        max_pool=flag(target.has_max_pool),
        row_packing=flag(target.has_row_packing),
        full_width=flag(target.has_full_width_read),
        normalizations=flag(target.has_normalizations),
        from_acc=flag(target.ex_read_from_acc),
        ext_mem=flag(target.use_tl_ext_mem),
    )
