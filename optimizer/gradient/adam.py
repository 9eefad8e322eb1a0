"""Adam, to the bit that of torch.optim at its default betas; and how many threads descent takes.

torch.optim loads torch's compiler when the first optimiser is made, which takes longer than a small search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


@contextmanager
def one_thread() -> Iterator[None]:
    """The tensors of a step are small: a second thread costs more in synchronisation than it saves."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Adam:
    """Moves `parameters` against their gradients (Kingma and Ba 2015, algorithm 1)."""

    def __init__(self, parameters: Sequence[Tensor], rate: float) -> None:
        self.parameters = tuple(parameters)
        self.rates = [rate] * len(self.parameters)
        """Of every parameter; may be changed between steps."""
        self._mean = [torch.zeros_like(p) for p in self.parameters]
        self._square = [torch.zeros_like(p) for p in self.parameters]
        self._steps = 0

    def step(self, loss: Tensor) -> None:
        """One step down from where `loss` was computed; a parameter that it does not depend on stays."""
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        self._steps += 1
        rows = zip(self.parameters, gradients, self._mean, self._square, self.rates, strict=True)
        with torch.no_grad():
            for parameter, gradient, mean, square, rate in rows:
                if gradient is None:
                    continue
                mean.lerp_(gradient, 1 - BETA1)
                square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
                root = (square.sqrt() / (1 - BETA2**self._steps) ** 0.5).add_(EPSILON)
                parameter.addcdiv_(mean, root, value=-rate / (1 - BETA1**self._steps))
