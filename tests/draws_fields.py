"""Random fields and states, of every kind, size and scale, with the numbers they are made of."""

from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg
import torch

import probconserv as pc

FIELDS = ("Diagonal", "LowRank", "bare LowRank", "Ensemble", "Dense")
PRIORS = (*FIELDS, "Mixture", "State", "shared State")
EIGENVALUE = 2.0**-48  # what may be rounding in an eigenvalue of a covariance, of 1


@dataclass
class Prior:
    """The numbers that fields were made of, in float64, with all their points in one vector."""

    mean: np.ndarray  # (points,)
    variance: np.ndarray  # (points,), each point's own
    factor: np.ndarray  # (directions, points)
    covariance: np.ndarray  # (points, points), beside these two
    weight: float = 1.0  # as a component of a mixture

    @property
    def std(self):
        shared = np.square(self.factor).sum(0) + np.diagonal(self.covariance)
        return np.sqrt(self.variance + shared)

    @property
    def regular(self):
        """With as much more at each point as may be rounding of the covariance."""
        more = EIGENVALUE * len(self.mean) * np.diag(np.diagonal(self.covariance))
        return replace(self, covariance=self.covariance + more)

    @property
    def singular(self):
        """Without the directions of the covariance that may be rounding."""
        std = np.sqrt(np.diagonal(self.covariance))
        scale = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
        values, vectors = np.linalg.eigh(self.covariance * scale * scale[:, None])
        large = values > EIGENVALUE * len(std)
        factor = (vectors[:, large] * np.sqrt(values[large])).T * std
        factor = np.concatenate([self.factor, factor])
        return replace(self, factor=factor, covariance=0 * self.covariance)

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

    field: pc.fields.Field | pc.State
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
        state = pc.Ensemble(samples, own, batch_dims=lead, shrinkage=0.0)
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
    if kind == "Ensemble":
        how = int(rng.integers(2, 7)), rng.random() < 0.5, dtype
        members, own = draw_members(rng, mean, variance, *how)
        made = pc.Ensemble(members, own, batch_dims=mean.ndim - event_dims, shrinkage=0.0)
        return made, [prior_of(made.mean, own, made.factor, event_dims)]
    mean = torch.tensor(mean, dtype=dtype)
    own = variance * 10 ** rng.uniform(-4, 4) if kind == "LowRank" else variance
    own = torch.tensor(own * (kind not in ("bare LowRank", "Dense")), dtype=dtype)
    if kind == "Diagonal":
        return pc.Diagonal(mean, own), [prior_of(mean, own)]
    if kind == "Dense":
        singular = dtype == torch.float64 and rng.random() < 0.2
        square = torch.tensor(draw_covariance(rng, variance, event_dims, singular), dtype=dtype)
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


def draw_covariance(rng, variance, event_dims, singular):  # (*shape, *event)
    event = variance.shape[-event_dims:]
    size = int(np.prod(event))
    rank = int(rng.integers(1, size + 1)) if singular else size + 3
    root = rng.normal(size=(variance.size // size, size, rank))
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
    weights = 10 ** rng.uniform(-3, 0, count) if rng.random() < 0.5 else np.ones(count)
    for prior, weight in zip(priors, weights, strict=True):
        prior.weight = weight
    return pc.Mixture(pc.Diagonal(mean, variance), weights, event_dims), priors
