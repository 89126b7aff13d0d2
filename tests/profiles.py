"""Profiles for the tests of fronts, and where their fronts are, by walking along them."""

import math

import numpy as np
import torch

import probconserv as pc

NAN = math.nan
DRAWS = 20_000
CLOSE = 5 / math.sqrt(DRAWS)  # ten standard errors of a probability of 1/2


def line(points, low=0.0, high=1.0):
    return torch.linspace(low, high, points, dtype=torch.float64)


def certain(u):
    """A field with no variance at all."""
    return pc.Diagonal(u, 0.0)


def walked(u, x, level, rule):
    """The front of one profile, by walking along it."""
    for i in range(len(x)):
        if rule == "point" and u[i] <= level:
            return x[i]
        if rule == "crossing" and i and u[i - 1] > level and u[i] <= level:
            return np.interp(level, [u[i], u[i - 1]], [x[i], x[i - 1]])
    return NAN
