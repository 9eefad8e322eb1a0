"""Ways to run one group against all of them."""

import numpy as np

from benchmarks.adversary.attacks import residents
from fadiff.costmodel.schedule.schedule import GroupTile
from fadiff.costmodel.target.target import Target
from tests.optimizer.graphs import Net


def test_every_set_of_resident_weights_is_tried():
    """Of five members; which of the weights stay is not a matter of size alone."""
    net = Net(32, 8)
    x = net.x
    for i, channels in enumerate((8, 16, 96, 64, 32)):
        x = net.conv(f"c{i}", x, channels)
    target = Target(name="t", side=16, scratchpad_bytes=8192, accumulator_bytes=4096, tile_buffer_bytes=8192)
    attempt = residents(np.random.default_rng(0), net.build(), target, GroupTile(1, 1, 8))
    assert attempt.tried > 5 and not attempt.breaks
