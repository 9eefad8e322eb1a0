"""What LOOP_CONV_WS asks of a convolution: nothing is issued so yet."""

from __future__ import annotations

from costmodel.group.loop_setting import LoopSetting


def obstacle_to_convolution_loop(setting: LoopSetting) -> str:
    """Why the loop unit of convolutions cannot run the layer's scratchpad tiles; empty if it can."""
    return setting.obstacle or "convolutions are issued as single instructions"
