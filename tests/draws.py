"""Random fields, with laws that they can obey, of every kind, size and scale."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from exact import posterior

import probconserv as pc

FIELDS = ("Diagonal", "LowRank", "bare LowRank", "from_samples", "Dense", "Mixture")
LAWS = ("integral", "cells", "boundary", "initial", "periodic", "smoothness", "linear", "sparse")
TAKES = inspect.signature(pc.integral).parameters
RULES = ["left", "right", "trapezoid", "simpson", "cell", *["periodic"] * ("period" in TAKES)]
SHRINKS = "shrinkage" in inspect.signature(pc.LowRank.from_samples).parameters
UNSHRUNK = {"shrinkage": 0.0} if SHRINKS else {}
FLOATS = {torch.float64: np.float64, torch.float32: np.float32}


@dataclass
class Prior:
    """The numbers that a field was made of, in float64."""

    mean: np.ndarray  # (*shape)
    variance: np.ndarray  # (*shape), each point's own
    factor: np.ndarray  # (rank, *shape)
    covariance: np.ndarray | None = None  # (*lead, E, E), instead of variance and factor

    @property
    def std(self):  # (*shape)
        if self.covariance is None:
            return np.sqrt(self.variance + np.square(self.factor).sum(0))
        return np.sqrt(np.diagonal(self.covariance, axis1=-2, axis2=-1)).reshape(self.mean.shape)

    def draw(self, rng):
        """Some field that it can move to, in extended precision."""
        z = rng.normal(size=self.mean.shape).astype(np.longdouble) * 10 ** rng.uniform(-1, 1)
        if self.covariance is not None:
            z = z / np.where(self.std > 0, self.std, 1.0)
            blocks = z.reshape(*self.covariance.shape[:-1], 1)
            return self.mean + (self.covariance @ blocks).reshape(z.shape) / blocks.shape[-2]
        weights = rng.normal(size=(len(self.factor), *[1] * z.ndim)).astype(np.longdouble)
        return self.mean + np.sqrt(self.variance) * z + (self.factor * weights).sum(0)

    def part(self, points):
        """Arguments of `posterior` for the points of one independent part."""
        mean = self.mean.ravel()[points]
        if self.covariance is not None:
            blocks = self.covariance.reshape(-1, *self.covariance.shape[-2:])
            return {"mean": mean, "covariance": blocks[points[0] // len(points)]}
        factor = self.factor.reshape(len(self.factor), self.mean.size)[:, points]
        return {"mean": mean, "variance": self.variance.ravel()[points], "factor": factor}


@dataclass
class Problem:
    field: pc.Field
    priors: list[Prior]  # one, or one for each component of a mixture
    laws: list
    parts: np.ndarray  # (parts, points of each): those of one part are independent of the others
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


def draw_variance(rng, shape, zeros=True):
    """Of one size or over up to eight decades, now and then with zeros."""
    decades = rng.choice([0.0, 1.0, 8.0])
    variance = 10 ** (rng.uniform(-decades, 0.0, shape) + rng.uniform(-12, 12))
    return variance * (rng.random(shape) >= 0.2 * (zeros and rng.random() < 0.2))


def draw_mean(rng, variance):
    """Of any size; half of the time the same everywhere, up to a few standard deviations."""
    size, z = 10 ** rng.uniform(-12, 12), rng.normal(size=variance.shape)
    return size * z if rng.random() < 0.5 else size + np.sqrt(variance) * z * draw_few(rng)


def draw_few(rng):
    return 10 ** rng.uniform(-1, 1)


def draw_field(rng, kind, shape, dtype, event_dims):
    """A field and the numbers that it was made of."""
    variance = draw_variance(rng, shape, zeros=kind != "from_samples")
    return field_of(rng, kind, draw_mean(rng, variance), variance, dtype, event_dims)


def field_of(rng, kind, mean, variance, dtype, event_dims):
    """A field of about this mean and variance, and its prior, in a list."""
    if kind == "from_samples":
        return ensemble_of(rng, mean, variance, dtype, event_dims)
    mean, none = torch.tensor(mean, dtype=dtype), np.zeros((0, *mean.shape))
    own = variance * 10 ** rng.uniform(-4, 4) if kind == "LowRank" else variance
    own = torch.tensor(0 * own if kind == "bare LowRank" else own, dtype=dtype)
    if kind == "Diagonal":
        return pc.Diagonal(mean, own), [Prior(exactly(mean), exactly(own), none)]
    if kind == "Dense":
        square = torch.tensor(draw_covariance(rng, variance, event_dims), dtype=dtype)
        blocks = exactly(square.flatten(-event_dims).flatten(-1 - event_dims, -2))
        prior = Prior(exactly(mean), 0 * exactly(mean), none, blocks)
        return pc.Dense(mean, square, event_dims), [prior]
    factor = np.sqrt(variance) * rng.normal(size=(rng.integers(1, 5), *mean.shape))
    factor = torch.tensor(factor, dtype=dtype)
    prior = Prior(*map(exactly, (mean, own, factor)))
    return pc.LowRank(mean, factor, own, event_dims), [prior]


def ensemble_of(rng, mean, variance, dtype, event_dims):
    """Of a few members, half of the time with a variance of the points' own."""
    top = np.sqrt(variance.max()) * 10 ** rng.uniform(-3, 3)
    apart = np.sqrt(variance) * rng.normal(size=(rng.integers(2, 7), *mean.shape))
    members = torch.tensor(mean / np.abs(mean).max() * top + apart, dtype=dtype)
    own = variance * rng.choice([0.0, 1.0]) * 10 ** rng.uniform(-4, 1)
    own = torch.tensor(own, dtype=dtype)
    made = pc.LowRank.from_samples(members, own, event_dims, **UNSHRUNK)
    return made, [Prior(*map(exactly, (made.mean, own, made.factor)))]


def exactly(x):
    return x.double().numpy()


def draw_covariance(rng, variance, event_dims):  # (*shape, *event)
    event = variance.shape[-event_dims:]
    size = int(np.prod(event))
    root = rng.normal(size=(*variance.shape[:-event_dims], size, size + 3))
    square = root @ np.swapaxes(root, -1, -2)
    diagonal = np.diagonal(square, axis1=-2, axis2=-1)
    std = np.sqrt(variance.reshape(diagonal.shape) / diagonal)
    square = square * std[..., None] * std[..., None, :]
    return ((square + np.swapaxes(square, -1, -2)) / 2).reshape(*variance.shape, *event)


def draw_mixture(rng, kind, shape, dtype, event_dims):
    """Components of comparable spread, some standard deviations apart."""
    count = int(rng.integers(2, 5))
    variance = draw_variance(rng, shape, zeros=False)
    mean, few = draw_mean(rng, variance), (count, *[1] * len(shape))
    variance = variance * 10 ** rng.uniform(-1, 1, few)
    mean = mean + np.sqrt(variance) * rng.normal(size=variance.shape) * draw_few(rng)
    mean, variance = (torch.tensor(x, dtype=dtype) for x in (mean, variance))
    none = np.zeros((0, *shape))
    priors = [Prior(exactly(m), exactly(v), none) for m, v in zip(mean, variance, strict=True)]
    return pc.Mixture(pc.Diagonal(mean, variance), event_dims=event_dims), priors


# Laws


@dataclass
class Stated:
    """A law without its numbers: make(value, noise), both of the shape `rows`."""

    name: str
    make: Callable
    rows: tuple[int, ...]
    dims: int = 1
    shared: bool = False  # the noise is the same along the last axis of the rows


def draw_law(rng, name, shape, dims, dtype, std):
    """One of LAWS, over the last `dims` axes if it can be; None if the shape is too small."""

    def numbers(x):
        return torch.tensor(np.asarray(x, float), dtype=dtype)

    if name in ("integral", "cells"):
        make, lead = draw_total(rng, name, shape, dims, numbers)
        return Stated(name, make, lead, dims)
    if name in ("linear", "sparse"):
        make, rows = draw_linear(rng, name, shape, dims, numbers)
        return Stated(name, make, rows, dims)
    points = shape[-1]
    if name == "boundary":
        ends = sorted(rng.permutation(["left", "right"])[: rng.integers(1, 2 + (points > 1))])

        def make(value, noise):
            values = {end: numbers(value[..., i]) for i, end in enumerate(ends)}
            return pc.boundary(**values, noise=numbers(noise[..., 0]))

        return Stated(name, make, (*shape[:-1], len(ends)), shared=True)
    if name == "initial" and len(shape) > 1:
        return Stated(name, lambda *given: pc.initial(*map(numbers, given)), (*shape[:-2], points))
    if name == "periodic" and points > 1:
        return Stated(name, lambda value, noise: pc.periodic(numbers(noise)), shape[:-1])
    if name == "smoothness" and points > 2:
        x, rho = numbers(draw_grid(rng, points)), float(rng.choice([0.0, 1.0, rng.random()]))
        law = pc.smoothness(x, numbers(std**2), rho)
        return Stated(name, lambda value, noise: law, (*shape[:-1], points - 2))
    return None


def draw_total(rng, name, shape, dims, numbers):
    space = shape[-dims:]
    times, lead = draw_times(rng, shape, dims)
    if name == "cells":
        volumes = numbers(rng.uniform(0.1, 2, space) * draw_where(rng, space))
        how = {"times": times}
        return lambda value, noise: pc.cells(volumes, numbers(value), numbers(noise), **how), lead
    rule = str(rng.choice(RULES if min(space) > 1 else ["cell"]))
    x = tuple(numbers(draw_grid(rng, size + (rule == "cell"))) for size in space)
    if rule == "periodic":
        x = tuple(numbers(np.arange(size) * 10 ** rng.uniform(-3, 3)) for size in space)
    how = {"rule": rule, "times": times}
    if "where" in TAKES and rng.random() < 0.3:
        how["where"] = draw_where(rng, space)
    x = x if dims > 1 else x[0]
    return lambda value, noise: pc.integral(x, numbers(value), noise=numbers(noise), **how), lead


def draw_linear(rng, name, shape, dims, numbers):
    space, count = shape[-dims:], int(rng.integers(1, 4))
    times, lead = draw_times(rng, shape, dims)
    matrix = numbers(rng.normal(size=(count, *space)) * draw_where(rng, (count, *space)))
    how = {"times": times}
    if name == "sparse":
        how["space"] = space
        matrix = matrix.flatten(1)
        matrix = matrix.to_sparse() if rng.random() < 0.5 else scipy.sparse.coo_array(matrix)
    rows = (*lead, count)
    return lambda value, noise: pc.linear(matrix, numbers(value), numbers(noise), **how), rows


def draw_grid(rng, points):
    return rng.uniform(0.2, 1.5, points).cumsum() * 10 ** rng.uniform(-3, 3)


def draw_where(rng, space):
    """True or False for each point, at least one True in each row."""
    where = rng.random(space) < rng.choice([0.6, 1.0])
    where[..., rng.integers(space[-1])] = True
    return where


def draw_times(rng, shape, dims):
    """`times` of a law, and the axes before space that its rows have."""
    lead = shape[:-dims]
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
    shape = draw_shape(rng, kind)
    dtype = torch.float32 if rng.random() < 0.3 else torch.float64
    law_dtype = dtype if rng.random() < 0.3 else torch.float64
    event_dims = int(rng.integers(1, 3)) if len(shape) > 1 else 1
    draw = draw_mixture if kind == "Mixture" else draw_field
    made, priors = draw(rng, kind, shape, dtype, event_dims)
    two = len(shape) > 1 and (kind == "Diagonal" or event_dims == 2)
    stated = []
    for name in rng.choice(LAWS, rng.integers(1, 5)):
        dims = 2 if two and rng.random() < 0.3 else 1
        law = draw_law(rng, name, shape, dims, law_dtype, priors[0].std)
        twice = 1 + (rng.random() < 0.05)
        stated += [law] * twice if law is not None and is_fair(law, priors[0]) else []
    if not stated:
        return None
    joint = max([1 if kind == "Diagonal" else event_dims, *(law.dims for law in stated)])
    parts = np.arange(np.prod(shape)).reshape(-1, int(np.prod(shape[-joint:])))
    u = priors[0].draw(rng)
    if any(law.name == "periodic" for law in stated):
        u = with_equal_ends(u, priors[0], parts)
    if u is None:
        return None
    rows = [state(rng, law, priors[0], u, law_dtype) for law in stated]
    return problem_of(made, priors, rows, parts)


def draw_overdetermined(rng, kind):
    """More exact rows than a field of a few points has directions, in several laws."""
    shape, size = (int(rng.integers(2, 6)),), 10 ** rng.uniform(-6, 6)
    mean, variance = size * rng.normal(size=shape), size**2 * rng.uniform(0.5, 8, shape)
    name = str(rng.choice([name for name in FIELDS if name != "Mixture"]))
    made, (prior,) = field_of(rng, name, mean, variance, torch.float64, 1)
    bare = prior.covariance is None and not prior.variance.any()
    directions = min(len(prior.factor) - (name == "from_samples"), *shape) if bare else shape[0]
    u, rows, count = prior.draw(rng), [], 0
    while len(rows) < 2 or count <= directions:
        name = str(rng.choice(["integral", "cells", "cells", "linear", "sparse", "boundary"]))
        law = draw_law(rng, name, shape, 1, torch.float64, prior.std)
        apart = size * rng.normal(size=shape) if kind == "contradictions" else 0.0
        rows.append(state(rng, law, prior, u + apart, torch.float64, exact=True))
        count += int(np.prod(law.rows))
    return problem_of(made, [prior], rows, np.arange(*shape)[None])


def problem_of(made, priors, rows, parts):
    laws, numbers = zip(*rows, strict=True)
    return Problem(
        made, priors, list(laws), parts, *(np.concatenate(x) for x in zip(*numbers, strict=True))
    )


def state(rng, stated, prior, u, dtype, exact=False):
    """The law with numbers that hold for u up to its noise, and its rows (G, b, noise)."""
    blank, G = without_numbers(stated, u.shape)
    if stated.name == "smoothness":
        noise = blank.noise.double().expand(stated.rows).numpy().ravel()
        return blank, (G, 0 * noise, noise)
    noise = draw_noise(rng, (np.abs(G) @ prior.std.ravel()).reshape(stated.rows), exact)
    noise = noise[..., :1] + 0 * noise if stated.shared else noise
    noise = noise.astype(FLOATS[dtype]).astype(float)
    b = (G.astype(np.longdouble) @ u.ravel()).reshape(stated.rows)
    b = (b + noise * rng.normal(size=b.shape)).astype(FLOATS[dtype]).astype(float)
    b = 0 * b if stated.name == "periodic" else b
    return stated.make(b, noise), (G, b.ravel(), noise.ravel())


def without_numbers(stated, shape):
    """The law with value 0 and noise 0, and G as (rows, points)."""
    law = stated.make(np.zeros(stated.rows), np.zeros(stated.rows))
    size = int(np.prod(shape))
    unit = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
    return law, law.apply(unit).reshape(size, -1).numpy().T


def is_fair(stated, prior):
    """Whether a law whose value is 0 is not absurd for the prior; the others get a fair value."""
    if stated.name not in ("periodic", "smoothness"):
        return True
    law, G = without_numbers(stated, prior.mean.shape)
    spread = np.abs(G) @ prior.std.ravel()
    near = np.abs(G @ prior.mean.ravel()) <= 100 * spread
    noise = law.noise.double().expand(stated.rows).numpy().ravel()
    return bool(near.all() and (stated.name == "periodic" or (noise > 0.01 * spread).all()))


def with_equal_ends(u, prior, parts):
    """The field nearest to u whose first point is its last; None where the prior cannot."""
    _, G = without_numbers(Stated("periodic", lambda *_: pc.periodic(), u.shape[:-1]), u.shape)
    moved = np.empty(u.size)
    for points in parts:
        own = G[(G[:, points] != 0).any(1)][:, points]
        there = {**prior.part(points), "mean": u.ravel()[points].astype(float)}
        solved = posterior(G=own, b=np.zeros(len(own)), **there)
        if solved.miss > 1e-14:
            return None
        moved[points] = solved.mean
    return moved.reshape(u.shape).astype(np.longdouble)
