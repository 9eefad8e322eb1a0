"""Search by gradient, and the only room (with fadiff.costmodel.relaxed) that imports torch.

`relaxation.py` holds tiles, orders and fusion strengths as tensors, `descent.py` descends on them with
`adam.py`, `joint.py` is the method `gradient`: descend, decode, certify.  `dosa.py` (with
`dosa_loss.py`, from the start points of `cosa.py`) is the layer-wise baseline of Hong et al., MICRO
2023.  On any machine `nests.py` is descent for one layer.
Needs `cut`.
"""
