"""Random fields and states, with laws that they can obey, of every kind, size and scale."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse
import torch
from exact import posterior

import probconserv as pc

FIELDS = ("Diagonal", "LowRank", "bare LowRank", "from_samples", "Dense")
PRIORS = (*FIELDS, "Mixture", "State", "shared State")
ANYWHERE = {"integral": pc.integral, "cells": pc.cells, "regions": pc.regions}
ANYWHERE |= {"linear": pc.linear, "sparse": pc.linear}
OVERDETERMINED = (*ANYWHERE, "boundary")
LAWS = (*ANYWHERE, "boundary", "initial", "periodic", "smoothness")
SEVERAL = ("cells", "linear", "sparse")  # may read several fields of a state
RULES = ("left", "right", "trapezoid", "simpson", "cell", "periodic")
FLOATS = {torch.float64: np.float64, torch.float32: np.float32}
NO_PLACE = 99  # of values at points, which tie nothing to each other


@dataclass
class Prior:
    """The numbers that fields were made of, in float64, with all their points in one vector."""

    mean: np.ndarray  # (points,)
    variance: np.ndarray  # (points,), each point's own
    factor: np.ndarray  # (directions, points)
    covariance: np.ndarray  # (points, points), beside these two

    @property
    def std(self):
        shared = np.square(self.factor).sum(0) + np.diagonal(self.covariance)
        return np.sqrt(self.variance + shared)

    def draw(self, rng):
        """Some values that it can move to, in extended precision."""
        z = rng.normal(size=self.mean.shape).astype(np.longdouble) * 10 ** rng.uniform(-1, 1)
        weights = rng.normal(size=len(self.factor)).astype(np.longdouble)
        dense = self.covariance @ (z / np.where(self.std > 0, self.std, 1.0)) / len(z)
        return self.mean + np.sqrt(self.variance) * z + weights @ self.factor + dense

    def part(self, points):
        """Arguments of `posterior` for some of the points."""
        factor, covariance = self.factor[:, points], self.covariance[np.ix_(points, points)]
        own = {"variance": self.variance[points], "factor": factor[factor.any(1)]}
        return {"mean": self.mean[points], **own, "covariance": covariance}


@dataclass
class Made:
    """A field, or a state of several, and what it was made of."""

    field: pc.Field | pc.State
    priors: list[Prior]  # one, or one for each component of a mixture
    most: int = 2  # axes that a row reads at most

    @property
    def fields(self):  # by name, "" for a field by itself
        return self.field.fields if isinstance(self.field, pc.State) else {"": self.field}

    @property
    def shapes(self):
        return {name: tuple(field.shape) for name, field in self.fields.items()}

    def split(self, x):  # (..., points) to (..., *shape) by name
        ends = np.cumsum([np.prod(shape) for shape in self.shapes.values()]).astype(int)
        pieces = zip(self.shapes.items(), np.split(x, ends[:-1], -1), strict=True)
        return {name: each.reshape(*x.shape[:-1], *shape) for (name, shape), each in pieces}


@dataclass
class Problem:
    made: Made
    laws: list
    parts: list[np.ndarray]  # points that are independent of all others; those without rows are out
    G: np.ndarray  # (rows, points)
    b: np.ndarray  # (rows,)
    noise: np.ndarray  # (rows,)


# Fields


def draw_shape(rng, kind):
    """(T, M), sometimes (batch, T, M) or (M,); no two sizes are the same."""
    times, points = int(rng.integers(1, 5)), int(rng.integers(1, 9))
    points += points == times
    if kind != "Mixture" and rng.random() < 0.1:
        return (points,)
    batch = int(rng.choice([size for size in (2, 3, 5) if size not in (times, points)]))
    return (*[batch] * (rng.random() < 0.25 and times * points < 13), times, points)


def draw_shapes(rng):
    """Of two or three fields: (*batch, T, M) with M of their own, or also T, or (*batch, M)."""
    batch, times = (2,) * int(rng.random() < 0.3), int(rng.integers(1, 4))
    alike, shapes = rng.random() < 0.6, {}
    for name in "uvw"[: rng.integers(2, 4)]:
        own = (times if alike else int(rng.integers(1, 4)), int(rng.integers(1, 6)))
        shapes[name] = (*batch, *own[int(not alike and rng.random() < 0.4) :])
    return shapes, len(batch)


def wild(rng, shape):
    """Means and variances of any size.

    Variances are of one size or over up to eight decades, now and then with zeros; means half of
    the time the same everywhere, up to a few standard deviations.
    """
    variance = 10 ** (rng.uniform(-rng.choice([0.0, 1.0, 8.0]), 0.0, shape) + rng.uniform(-12, 12))
    variance = variance * (rng.random(shape) >= 0.2 * (rng.random() < 0.2))
    size, z = 10 ** rng.uniform(-12, 12), rng.normal(size=shape)
    mean = (
        size * z if rng.random() < 0.5 else size + np.sqrt(variance) * z * 10 ** rng.uniform(-1, 1)
    )
    return mean, variance


def tame(rng, shape):
    """The same, of about one size."""
    size = 10 ** rng.uniform(-6, 6)
    return size * rng.normal(size=shape), size**2 * rng.uniform(0.5, 8, shape)


def draw_dtype(rng, share=0.3):
    return torch.float32 if rng.random() < share else torch.float64


def draw_state(rng, kind, shapes, lead, moments):
    """A state whose fields share their first `lead` axes."""
    each = {name: moments(rng, shape) for name, shape in shapes.items()}
    if kind == "shared State":
        how = int(rng.integers(2, 7)), rng.random() < 0.5, draw_dtype(rng)
        drawn = {name: draw_members(rng, *both, *how) for name, both in each.items()}
        samples, own = ({name: x[i] for name, x in drawn.items()} for i in (0, 1))
        state = pc.State.from_samples(samples, own, lead, shrinkage=0.0)
        priors = [prior_of(f.mean, f.rest, f.factor, f.event_dims) for f in state.parts]
        return Made(state, [stacked(priors, np.hstack)])
    kinds = rng.choice(FIELDS if rng.random() < 0.75 else FIELDS[:1], len(shapes))
    dims = [int(rng.integers(1, 1 + len(shape) - lead)) for shape in shapes.values()]
    triples = zip(kinds, each.values(), dims, strict=True)
    fields, priors = zip(*(field_of(rng, k, *both, n) for k, both, n in triples), strict=True)
    return Made(
        pc.State(**dict(zip(shapes, fields, strict=True))), [stacked([p for (p,) in priors])]
    )


def stacked(priors, join=lambda factors: scipy.linalg.block_diag(*factors)):
    """Of several fields in one vector; join: hstack if all are moved by the same directions."""
    mean, variance = (np.concatenate([getattr(p, x) for p in priors]) for x in ("mean", "variance"))
    dense = scipy.linalg.block_diag(*(p.covariance for p in priors))
    return Prior(mean, variance, join([p.factor for p in priors]), dense)


def field_of(rng, kind, mean, variance, event_dims):
    """A field of about this mean and variance, and its prior, in a list."""
    dtype, size = draw_dtype(rng), int(np.prod(mean.shape[-event_dims:]))
    if kind == "from_samples":
        how = int(rng.integers(2, 7)), rng.random() < 0.5, dtype
        members, own = draw_members(rng, mean, variance, *how)
        made = pc.LowRank.from_samples(members, own, event_dims, shrinkage=0.0)
        return made, [prior_of(made.mean, own, made.factor, event_dims)]
    mean = torch.tensor(mean, dtype=dtype)
    own = variance * 10 ** rng.uniform(-4, 4) if kind == "LowRank" else variance
    own = torch.tensor(own * (kind not in ("bare LowRank", "Dense")), dtype=dtype)
    if kind == "Diagonal":
        return pc.Diagonal(mean, own), [prior_of(mean, own)]
    if kind == "Dense":
        square = torch.tensor(draw_covariance(rng, variance, event_dims), dtype=dtype)
        prior = prior_of(mean, own)
        prior.covariance = apart(exactly(square).reshape(-1, size, size).swapaxes(0, 1))
        return pc.Dense(mean, square, event_dims), [prior]
    factor = np.sqrt(variance) * rng.normal(size=(rng.integers(1, 5), *mean.shape))
    factor = torch.tensor(factor, dtype=dtype)
    return pc.LowRank(mean, factor, own, event_dims), [prior_of(mean, own, factor, event_dims)]


def draw_members(rng, mean, variance, count, bare, dtype):
    """An ensemble; and a variance of the points' own, which is 0 if it is bare."""
    variance = np.where(variance > 0, variance, variance.max() or 1.0)
    top = np.sqrt(variance.max()) * 10 ** rng.uniform(-3, 3)
    members = np.sqrt(variance) * rng.normal(size=(count, *mean.shape))
    members = torch.tensor(mean / np.abs(mean).max() * top + members, dtype=dtype)
    return members, torch.tensor(variance * (not bare) * 10 ** rng.uniform(-4, 1), dtype=dtype)


def prior_of(mean, own, factor=None, event_dims=1):
    mean, own = exactly(mean).ravel(), exactly(own).ravel()
    blocks = np.zeros((0, 1, len(mean)))
    if factor is not None:
        size = int(np.prod(factor.shape[-event_dims:]))
        blocks = exactly(factor).reshape(len(factor), -1, size)
    return Prior(mean, own, apart(blocks), np.zeros((len(mean), len(mean))))


def apart(factor):  # (R, blocks, points of each) to (blocks R, blocks points)
    """Directions of blocks, as directions of all that are 0 in the other blocks."""
    rank, blocks, size = factor.shape
    each = np.eye(blocks)[:, None, :, None] * factor[None]
    return each.reshape(blocks * rank, blocks * size)


def exactly(x):
    return x.double().numpy()


def draw_covariance(rng, variance, event_dims):  # (*shape, *event)
    event = variance.shape[-event_dims:]
    size = int(np.prod(event))
    root = rng.normal(size=(variance.size // size, size, size + 3))
    root *= np.sqrt(variance.reshape(-1, size, 1) / np.square(root).sum(-1, keepdims=True))
    square = root @ root.swapaxes(1, 2)
    return ((square + square.swapaxes(1, 2)) / 2).reshape(*variance.shape, *event)


def draw_mixture(rng, kind, mean, variance, event_dims):
    """Components of comparable spread, some standard deviations apart, and their priors."""
    count, dtype = int(rng.integers(2, 5)), draw_dtype(rng)
    variance = np.where(variance > 0, variance, variance.max() or 1.0)
    variance = variance * 10 ** rng.uniform(-1, 1, (count, *[1] * mean.ndim))
    mean = mean + np.sqrt(variance) * rng.normal(size=variance.shape) * 10 ** rng.uniform(-1, 1)
    mean, variance = (torch.tensor(x, dtype=dtype) for x in (mean, variance))
    priors = [prior_of(m, v) for m, v in zip(mean, variance, strict=True)]
    return pc.Mixture(pc.Diagonal(mean, variance), event_dims=event_dims), priors


# Laws


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
        law = pc.smoothness(x, numbers(stds[of] ** 2), rho, of=of)
        return Stated(name, lambda value, noise: law, (*before, points - 2), len(before))
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
    least = -10 if rng.random() < 0.05 else -6  # now and then all but exact
    noise = spread * 10 ** rng.uniform(least, 2 if least == -6 else -6, spread.shape)
    return noise * (rng.random(spread.shape) < (0.0 if exact else rng.choice([0.0, 0.5, 1.0])))


# Problems


def draw_problem(rng, kind):
    """A field of this kind and one to four laws that some field obeys, up to noise; or None."""
    if "State" in kind:
        made = draw_state(rng, kind, *draw_shapes(rng), wild)
    else:
        shape = draw_shape(rng, kind)
        dims = int(rng.integers(1, 3)) if len(shape) > 1 else 1
        draw = draw_mixture if kind == "Mixture" else field_of
        made = Made(*draw(rng, kind, *wild(rng, shape), dims), dims if kind == "Mixture" else 2)
    single = any(field.dtype == torch.float32 for field in made.fields.values())
    stated, dtype = [], draw_dtype(rng, 0.3 * single)
    for name in rng.choice(LAWS, rng.integers(1, 5)):
        law = draw_law(rng, name, made, dtype)
        twice = 1 + (rng.random() < 0.05)
        stated += [law] * twice if law is not None and is_fair(law, made) else []
    if not stated or not shares_axes(made, stated):
        return None
    u = with_equal_ends(made, stated, made.priors[0].draw(rng))
    return None if u is None else problem_of(made, [state(rng, x, made, u, dtype) for x in stated])


def draw_overdetermined(rng, kind):
    """Exact rows in several laws on a few points, some of which follow from others, or should."""
    kinds, batch = [*FIELDS, "State", "shared State"], (2,) * int(rng.random() < 0.3)
    name, count = str(rng.choice(kinds)), rng.integers(2, 4)
    if name in FIELDS:
        made = Made(*field_of(rng, name, *tame(rng, (*batch, int(rng.integers(2, 6)))), 1), 1)
    else:
        shapes = {of: (*batch, int(rng.integers(1, 4))) for of in "uvw"[:count]}
        made = draw_state(rng, name, shapes, len(batch), tame)
    (prior,), stated, G = made.priors, [], np.zeros((0, len(made.priors[0].mean)))
    u, most, combine = prior.draw(rng), rng.integers(2, 5), rng.random() < 0.6
    while len(stated) < most or (not combine and len(G) <= G.shape[1]):
        last = combine and len(stated) == most - 1
        law = combined(rng, made, G) if last and G.any() else None
        law = law or draw_law(rng, str(rng.choice(OVERDETERMINED)), made, torch.float64)
        off = prior.std * rng.normal(size=u.shape) * (kind == "contradictions")
        stated.append(state(rng, law, made, u + off, torch.float64, exact=True))
        G = np.concatenate([G, stated[-1][1][0]])
    return problem_of(made, stated)


def combined(rng, made, G):
    """A law with rows that follow from rows of all others, or nearly, of any scale; or None."""
    batch = next(iter(made.shapes.values()))[:-1]
    index = made.split(np.arange(G.shape[1])).values()
    here = np.concatenate([x.reshape(-1, x.shape[-1])[0] for x in index])  # of one entry
    std, own = made.priors[0].std[here], G[:, here]
    own = own[np.abs(own) @ std > 0]
    if not len(own):
        return None
    shape = (int(rng.integers(1, 4)), len(own))
    rows = rng.normal(size=shape) * draw_where(rng, shape) @ (own / (np.abs(own) @ std)[:, None])
    near = 10 ** rng.uniform(-4, -1, (len(rows), 1)) * (rng.random((len(rows), 1)) < 0.4)
    rows = rows + near * rng.normal(size=rows.shape) / np.where(std > 0, std, np.inf)
    rows = torch.tensor(rows * 10 ** rng.uniform(-12, 12, (len(rows), 1)))
    pieces = rows.split([shape[-1] for shape in made.shapes.values()], 1)
    matrix = dict(zip(made.shapes, pieces, strict=True)) if len(pieces) > 1 else rows

    def make(value, noise):
        return pc.linear(matrix, torch.tensor(value))

    return Stated("linear", make, (*batch, len(rows)), len(batch))


def shares_axes(made, stated):
    """Whether the fields have the same sizes on the axes along which nothing is tied."""
    free = [len(field.shape) - field.event_dims for field in made.fields.values()]
    lead = min([*free, *(law.places for law in stated)])
    return len({shape[:lead] for shape in made.shapes.values()}) == 1


def problem_of(made, rows):
    laws, numbers = zip(*rows, strict=True)
    G, b, noise = (np.concatenate(x) for x in zip(*numbers, strict=True))
    parts = parts_of(made.priors[0], G)
    if isinstance(made.field, pc.Mixture):  # its weights are of whole parts
        (shape,), dims = made.shapes.values(), made.field.event_dims
        parts = [*np.arange(np.prod(shape)).reshape(-1, int(np.prod(shape[-dims:])))]
    return Problem(made, list(laws), parts, G, b, noise) if parts else None


def parts_of(prior, G):
    """Points that rows or the prior tie together, for every part that has rows."""
    ties = [(x != 0).astype(float) for x in (G, prior.factor, prior.covariance)]
    reach = np.eye(G.shape[1]) + sum(x.T @ x for x in ties)
    for _ in range(len(reach).bit_length()):
        reach = np.minimum(reach @ reach, 1.0)
    number = (reach > 0).argmax(1)  # the first point that is tied to each
    return [np.flatnonzero(number == k) for k in np.unique(number[G.any(0)])]


def state(rng, stated, made, u, dtype, exact=False):
    """The law with numbers that hold for u up to its noise, and its rows (G, b, noise)."""
    blank, G = without_numbers(stated, made)
    if stated.name == "smoothness":
        noise = blank.noise.double().expand(stated.rows).numpy().ravel()
        return blank, (G, 0 * noise, noise)
    noise = draw_noise(rng, (np.abs(G) @ made.priors[0].std).reshape(stated.rows), exact)
    noise = noise[..., :1] + 0 * noise if stated.shared else noise
    noise = noise.astype(FLOATS[dtype]).astype(float)
    b = (G.astype(np.longdouble) @ u).reshape(stated.rows)
    b = (b + noise * rng.normal(size=b.shape)).astype(FLOATS[dtype]).astype(float)
    b = 0 * b if stated.name == "periodic" else b
    return stated.make(b, noise), (G, b.ravel(), noise.ravel())


def without_numbers(stated, made):
    """The law with value 0 and noise 0, and G as (rows, points)."""
    law = stated.make(np.zeros(stated.rows), np.zeros(stated.rows))
    unit = np.eye(len(made.priors[0].mean))
    return law, law.apply(made.split(unit)).reshape(len(unit), -1).numpy().T


def is_fair(stated, made):
    """Whether a law whose value is 0 is not absurd for the prior; the others get a fair value."""
    if stated.name not in ("periodic", "smoothness"):
        return True
    (law, G), prior = without_numbers(stated, made), made.priors[0]
    spread = np.abs(G) @ prior.std
    near = np.abs(G @ prior.mean) <= 100 * spread
    noise = law.noise.double().expand(stated.rows).numpy().ravel()
    return bool(near.all() and (stated.name == "periodic" or (noise > 0.01 * spread).all()))


def with_equal_ends(made, stated, u):
    """What is nearest to u where `periodic` laws hold; None where the prior cannot."""
    laws = [law for law in stated if law.name == "periodic"]
    if not laws:
        return u
    G, prior = np.concatenate([without_numbers(law, made)[1] for law in laws]), made.priors[0]
    for points in parts_of(prior, G):
        own = G[:, points][G[:, points].any(1)]
        there = {**prior.part(points), "mean": u[points].astype(float)}
        solved = posterior(G=own, b=np.zeros(len(own)), **there)
        if solved.miss > 1e-14:
            return None
        u[points] = solved.mean
    return u
