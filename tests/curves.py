"""Fields and a law for the tests of laws that are not linear."""

import torch

import probconserv as pc

DOUBLE = torch.float64


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def prior(*shape, seed=0):
    return pc.Diagonal(1 + 0.3 * randn(*shape, seed=seed), 0.02 + randn(*shape, seed=seed + 1) ** 2)


def energy(u):
    return u.square().sum()
