"""Adam against torch's own, bit for bit."""

from __future__ import annotations

import subprocess
import sys

import torch

from fadiff.optimizer.gradient.adam import Adam


def test_equal_to_torch_to_the_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(5, 3, generator=generator), torch.randn(7, generator=generator), torch.zeros(2)]

    def loss(x: torch.Tensor, y: torch.Tensor, _unused: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).sum() + ((y - 2) ** 2).sum() * x.mean().exp()

    ours = [p.clone().requires_grad_() for p in start]
    theirs = [p.clone().requires_grad_() for p in start]
    adam = Adam(ours, 0.1)
    reference = torch.optim.Adam([{"params": theirs[:1]}, {"params": theirs[1:]}], lr=0.1)
    for step in range(50):
        rate = 0.0 if step < 20 else 0.05
        adam.rates[1], reference.param_groups[1]["lr"] = rate, rate
        adam.step(loss(*ours))
        reference.zero_grad()
        loss(*theirs).backward()  # type: ignore[no-untyped-call]
        reference.step()
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(ours[1], start[1])


def test_a_search_does_not_load_torch_s_compiler() -> None:
    code = (
        "import sys, optimizer; from fadiff.costmodel.target.target import load_target;"
        "from tests.optimizer.graphs import separable;"
        "optimizer.optimize(separable(blocks=1), load_target('gemmini-small'),"
        "method='gradient', time_budget=0.5);"
        "assert 'torch' in sys.modules and 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
