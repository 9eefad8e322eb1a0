"""What a schedule costs on a Gemmini: targets, mappings, schedules, exact and differentiable evaluation.

Rooms, each needing only those before it:

target    one Gemmini and its memories          group     layers that run together, and where tensors live
mapping   how one layer is tiled                schedule  the whole decision: legal, scored, in schedule.json
count     loop nest, bytes, energy              relaxed   the differentiable model (torch)
latency   cycles of what was counted
"""
