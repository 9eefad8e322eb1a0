"""The hand-written gradient of the fetch rule against automatic differentiation of the rule itself."""

import pytest
import torch

from fadiff.costmodel.relaxed.fetch_gradient import LoopOrders, fetches


def naive(trips, gates, member, orders):
    index, relevant, grouped = orders
    n, count = relevant.shape[:2]
    t = trips[index].view(n, count, *trips.shape[1:])
    g = gates[index].view(n, count, *trips.shape[1:])
    met = 1 - torch.cumprod(1 - relevant * g, dim=0) * (1 - grouped * member)
    return torch.prod(1 + (1 - relevant) * met * t, dim=0)


@pytest.mark.parametrize("integral", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_value_and_gradient(seed, integral):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        values = torch.rand(shape, generator=generator, dtype=torch.float64)
        return (values.round() if integral else values).requires_grad_()

    n, count = 6, 3
    index = torch.stack([torch.randperm(8, generator=generator)[:n] for _ in range(count)], dim=1)
    relevant, grouped = (draw(n, count, 1, 1).detach().round() for _ in range(2))
    orders = LoopOrders(index.reshape(-1), relevant, grouped)
    leaves = (draw(8, 2, 4), draw(8, 2, 4), draw(2, 4))
    ours, theirs = fetches(*leaves, orders), naive(*leaves, orders)
    assert torch.allclose(ours, theirs, rtol=1e-12)
    upstream = torch.rand(ours.shape, generator=generator, dtype=torch.float64)
    for a, b in zip(
        torch.autograd.grad(ours, leaves, upstream),
        torch.autograd.grad(theirs, leaves, upstream),
        strict=True,
    ):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)
