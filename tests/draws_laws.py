"""Random laws for drawn fields, as yet without their numbers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch

import probconserv as pc

ANYWHERE = {"integral": pc.integral, "cells": pc.weighted_sum, "regions": pc.regions}
ANYWHERE |= {"linear": pc.linear, "sparse": pc.linear}
OVERDETERMINED = (*ANYWHERE, "boundary")
LAWS = (*ANYWHERE, "boundary", "initial", "periodic", "smoothness")
SEVERAL = ("cells", "linear", "sparse")  # may read several fields of a state
RULES = ("left", "right", "trapezoid", "simpson", "cell", "periodic")
KINDS_OF_NOISE = (-6, 2), (-12, -6), (-12, 12)  # decades: usual, all but exact, any
NO_PLACE = 99  # of values at points, which tie nothing to each other


@dataclass
class Stated:
    """A law without its numbers: make(value, noise), both of the shape `rows`."""

    name: str
    make: Callable
    rows: tuple[int, ...]
    places: int  # axes before those that a row reads
    shared: bool = False  # the noise is the same along the last axis of the rows


def draw_law(rng, name, made, dtype):
    """One of LAWS, of one field or several; None if a shape is too small for it."""

    def numbers(x):
        return torch.tensor(np.asarray(x, float), dtype=dtype)

    spaces, lead = draw_read(rng, name, made)
    of, stds = next(iter(spaces)), made.split(made.priors[0].std)
    if name in ANYWHERE:
        draw = {"integral": draw_integral, "cells": draw_cells, "regions": draw_regions}
        first, how, tail = draw.get(name, draw_linear)(rng, name, spaces, lead, stds, numbers)

        how["times"], rows = draw_times(rng, lead)
        given = {key: x for key, x in how.items() if x is not None}
        first, given = (first[of], {**given, "of": of}) if len(spaces) == 1 else (first, given)

        def make(value, noise):
            return ANYWHERE[name](first, numbers(value), noise=numbers(noise), **given)

        return Stated(name, make, (*rows, *tail), len(lead))
    *before, points = made.shapes[of]
    if name == "boundary":
        ends = sorted(rng.permutation(["left", "right"])[: rng.integers(1, 2 + (points > 1))])

        def make(value, noise):
            values = {end: numbers(value[..., i]) for i, end in enumerate(ends)}
            return pc.boundary(**values, noise=numbers(noise[..., 0]), of=of)

        return Stated(name, make, (*before, len(ends)), NO_PLACE, shared=True)
    if name == "initial" and before:
        rows = (*before[:-1], points)
        return Stated(name, lambda *x: pc.initial(*map(numbers, x), of=of), rows, NO_PLACE)
    if name == "periodic" and points > 1:
        rows = tuple(before)
        return Stated(name, lambda _, noise: pc.periodic(numbers(noise), of=of), rows, len(rows))
    if name == "smoothness" and points > 2:
        x, rho = numbers(draw_grid(rng, points)), float(rng.choice([0.0, 1.0, rng.random()]))
        times, rows = draw_times(rng, before)
        law = pc.smoothness(x, numbers(stds[of] ** 2), rho, times, of)
        return Stated(name, lambda value, noise: law, (*rows, points - 2), len(before))
    return None


def draw_read(rng, name, made):
    """The axes that a law reads of one field or of several, by name; and those before."""
    several = name in SEVERAL and len(made.shapes) > 1 and rng.random() < 0.6
    count = rng.integers(2, len(made.shapes) + 1) if several else 1
    own = {str(name): made.shapes[name] for name in rng.permutation([*made.shapes])[:count]}
    axes = range(min(map(len, own.values())))
    agreed = [k for k in axes if len({shape[:k] for shape in own.values()}) == 1]
    lead = int(agreed[-1] if rng.random() < 0.7 else rng.choice(agreed[-made.most :]))
    return {name: shape[lead:] for name, shape in own.items()}, next(iter(own.values()))[:lead]


def draw_integral(rng, name, spaces, lead, stds, numbers):
    ((of, space),) = spaces.items()
    rule = str(rng.choice(RULES if min(space) > 1 else ["cell"]))
    x = tuple(numbers(draw_grid(rng, size + (rule == "cell"))) for size in space)
    how = {"rule": rule, "where": draw_where(rng, space, 0.3)}
    if rule == "periodic" and (len(space) > 1 or rng.random() < 0.5):
        x = tuple(numbers(np.arange(size) * 10 ** rng.uniform(-3, 3)) for size in space)
    elif rule == "periodic":
        how["period"] = float(x[0][-1] - x[0][0]) * rng.uniform(1.1, 2)
    return {of: x if len(space) > 1 else x[0]}, how, ()


def draw_cells(rng, name, spaces, lead, stds, numbers):
    how, sizes = {}, draw_sizes(rng, spaces, stds)
    if len({*spaces.values()}) == 1:
        how["where"] = draw_where(rng, next(iter(spaces.values())), 0.3)
    if len(spaces) == 1 and rng.random() < 0.2:  # volumes of each place, of either sign
        ((of, space),) = spaces.items()
        how["space_dims"] = len(space)
        return {of: numbers(rng.normal(size=(*lead, *space)) * sizes[of])}, how, ()
    volumes = {of: rng.uniform(0.1, 2, s) * draw_where(rng, s) for of, s in spaces.items()}
    return {of: numbers(v * sizes[of]) for of, v in volumes.items()}, how, ()


def draw_regions(rng, name, spaces, lead, stds, numbers):
    ((of, space),) = spaces.items()
    count = int(rng.integers(1, 4))
    how = {"where": draw_where(rng, space, 0.3), "volumes": numbers(rng.uniform(0.1, 2, space))}
    return {of: rng.integers(-1, count, space)}, how, (count,)


def draw_linear(rng, name, spaces, lead, stds, numbers):
    count, how, sizes = int(rng.integers(1, 4)), {}, draw_sizes(rng, spaces, stds)
    scale, rows = 10 ** (rng.uniform(-12, 12, count) * (rng.random() < 0.3)), (count,)
    if name == "linear" and lead and len(spaces) == 1 and rng.random() < 0.2:
        rows, how["batch_dims"] = (lead[-1], count), 1
    matrices = {}
    for of, space in spaces.items():
        entries = rng.normal(size=(*rows, *space)) * draw_where(rng, (*rows, *space)) * sizes[of]
        matrices[of] = numbers(entries * scale.reshape(count, *[1] * len(space)))
    if name == "sparse" and (len(spaces) == 1 or all(len(s) == 1 for s in spaces.values())):
        how["space"] = next(iter(spaces.values())) if len(spaces) == 1 else None
        kind = torch.Tensor.to_sparse if rng.random() < 0.5 else scipy.sparse.coo_array
        matrices = {of: kind(matrix.flatten(1)) for of, matrix in matrices.items()}
    return matrices, how, (count,)


def draw_sizes(rng, spaces, stds):
    """Of the coefficients of each field, half of the time so that every field matters."""
    most = {of: stds[of].max() for of in spaces}
    even = len(spaces) > 1 and rng.random() < 0.7
    return {of: 1 / size if even and size > 0 else 1.0 for of, size in most.items()}


def draw_grid(rng, points):
    return rng.uniform(0.2, 1.5, points).cumsum() * 10 ** rng.uniform(-3, 3)


def draw_where(rng, space, share=1.0):
    """True or False for each point, at least one True in each row; or None, but for a share."""
    if share < 1 and rng.random() >= share:
        return None
    where = rng.random(space) < rng.choice([0.6, 1.0])
    where[..., rng.integers(space[-1])] = True
    return where


def draw_times(rng, lead):
    """`times` of a law, and the axes before space that its rows have."""
    if not lead or rng.random() < 0.7:
        return None, lead
    chosen = rng.permutation(lead[-1])[: rng.integers(1, lead[-1] + 1)].tolist()
    mask = np.isin(np.arange(lead[-1]), chosen)
    times = [chosen, mask, slice(chosen[0], None)][rng.integers(3)]
    return times, (*lead[:-1], len(np.arange(lead[-1])[times]))


def draw_noise(rng, spread, exact):
    """Relative to the spread of each row; 0 for all rows, for some or for none."""
    low, high = KINDS_OF_NOISE[rng.choice(3, p=[0.85, 0.05, 0.1])]
    noise = spread * 10 ** rng.uniform(low, high, spread.shape)
    return noise * (rng.random(spread.shape) < (0.0 if exact else rng.choice([0.0, 0.5, 1.0])))
