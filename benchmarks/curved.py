"""How far draws are from the conditional distribution: `python benchmarks/curved.py`.

Fields of two points: the Gaussian about the point, draws that are moved to the nearest field that
obeys, and draws with weights, beside quadrature.
"""

import math

import torch
from torch import Tensor

import probconserv as pc

N = 100_000  # draws
GRID = 1_000_001  # places along the law
Moments = tuple[Tensor, Tensor]


def moments(u: Tensor, weights: Tensor) -> Moments:
    """Mean and standard deviation of each point, of u (n, 2)."""
    weights = (weights / weights.sum())[:, None]
    mean = (weights * u).sum(0)
    return mean, (weights * (u - mean).square()).sum(0).sqrt()


def density(u: Tensor, mean: list[float], variance: list[float]) -> Tensor:
    """Of the prior, but for a factor."""
    away = (u - torch.tensor(mean)).square() / torch.tensor(variance)
    return (-away.sum(-1) / 2).exp()


def circle(mean: list[float], variance: list[float]) -> Moments:
    """Given u1^2 + u2^2 = 1: the slope of the law is as steep all over."""
    angle = torch.linspace(-math.pi, math.pi, GRID, dtype=torch.float64)[:-1]
    u = torch.stack([angle.cos(), angle.sin()], -1)
    return moments(u, density(u, mean, variance))


def product(mean: list[float], variance: list[float]) -> Moments:
    """Given u1 u2 = 1 with u1 > 0: along u1 the density is that of the prior over u1."""
    first = torch.linspace(1e-3, 6, GRID, dtype=torch.float64)
    u = torch.stack([first, 1 / first], -1)
    return moments(u, density(u, mean, variance) / first)


def cut(mean: list[float], variance: list[float]) -> Moments:
    """Given u1 + u2 = 1 and no value below 0: the prior cut off there."""
    first = torch.linspace(0, 1, GRID, dtype=torch.float64)
    u = torch.stack([first, 1 - first], -1)
    return moments(u, density(u, mean, variance))


def shown(name: str, found: Moments) -> None:
    words = [", ".join(f"{float(x):.3f}" for x in each) for each in found]
    print(f"{name:34} {words[0]:>16} {words[1]:>16}")


def main() -> None:
    print(f"{'':34} {'mean':>16} {'std':>16}")
    laws = {
        "circle": (lambda u: u.square().sum(), circle, [1.5, 0.9], [0.09, 0.36]),
        "product": (lambda u: u.prod(), product, [1.0, 1.5], [0.09, 0.25]),
    }
    for name, (law, quadrature, mean, variance) in laws.items():
        for share in (1.0, 0.1):  # of the variance
            own = [share * v for v in variance]
            post = pc.condition(pc.Diagonal(mean, own), pc.nonlinear(law, 1.0))
            shown(f"{name}, {share:g}: quadrature", quadrature(mean, own))
            shown("  Gaussian", (post.point, post.std))
            plain = post.sample(N, torch.Generator().manual_seed(0))
            shown("  draws", moments(plain, torch.ones(N)))
            found = post.weighted(N, torch.Generator().manual_seed(1))
            shown("  weighted", moments(found.draws, found.log_weights.exp()))
            print(f"  left of {N}: {float(found.effective_sample_size):.0f}")
    mean, variance = [0.2, 0.8], [0.25, 0.25]
    given = pc.Diagonal(mean, variance), pc.weighted_sum([1.0, 1.0], 1.0)
    shown("bounds: quadrature", cut(mean, variance))
    draws = pc.condition(*given, pc.bounds(low=0.0), draws=N).draws
    shown("  draws", moments(draws, torch.ones(N)))
    print(f"  on a bound: {float((draws == 0).any(-1).double().mean()):.2f}")
    draws = pc.condition(*given, pc.bounds(low=0.0, truncated=True), draws=N).draws
    shown("  truncated=True", moments(draws, torch.ones(N)))


if __name__ == "__main__":
    main()
