"""Lower bounds that hold for every mapping and every fusion: what a perfect memory would cost."""

from __future__ import annotations

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.schedule.schedule import Profile
from fadiff.costmodel.target.target import Target


def fusion_bound(graph: Graph, target: Target, profile: Profile = "dosa") -> float:
    """EDP in uJ x cycles if all tensors between layers stayed on chip (costmodel LBfuse).

    Per layer: multiply-accumulates, accumulator updates of the fewest reduction passes, operands
    read from the scratchpad once per pass; DRAM moves weights and the network's inputs and outputs
    once.  Cycles: the fewest array passes, or DRAM bandwidth for the layer's weights.  Kernel taps
    are not packed with channels, so row packing can beat it on first layers.
    """
    side = target.side
    e, word = target.element_bytes, target.accumulator_bytes_per_word
    inside = {t for layer in graph.layers for t in layer.outputs} - set(graph.outputs)
    energy = cycles = 0.0
    for layer in graph.tensor_core_layers:
        d = layer.dims
        pixels = d.N * d.P * d.Q
        depthwise = layer.op == "depthwise"
        lanes_k = 1 if depthwise else -(-d.K // side)
        passes = d.R * d.S * (1 if depthwise else -(-d.C // side))
        groups = -(-d.G // side) if depthwise else d.G
        outputs = d.G * d.K * pixels
        weights = d.G * d.K * d.C * d.R * d.S
        updates = outputs * passes
        accumulator = (2 * updates + (2 * outputs if profile == "hw" else -outputs)) * word
        scratchpad = (d.G * d.C * d.R * d.S * pixels * lanes_k + weights) * e
        dram = (0 if layer.weight.tensor in inside else weights) * e
        if layer.output.tensor in graph.outputs:
            dram += outputs * e
        if layer.input.tensor in graph.inputs:
            dram += graph.tensors[layer.input.tensor].nbytes
        macs = layer.macs
        energy += macs * target.energy.mac + (macs + weights) * e * target.energy.register_byte
        energy += accumulator / word * target.accumulator_word_pj
        energy += scratchpad * target.scratchpad_byte_pj + dram * target.energy.dram_byte
        cycles += max(groups * pixels * lanes_k * passes, dram / target.bandwidth.dram_bytes)
    return energy * cycles * 1e-6
