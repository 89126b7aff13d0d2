"""Random problems with inequalities, judged by duality: python tests/fuzzing_loop.py 2000 --jobs 2.

The judge trusts no other solver. In units u = mean + root z in which the prior is white, with the
misses of noisy rows beside z, a problem is the least |z| with rows = b or rows >= b. Any weights of
the rows, none negative on inequalities, prove a lower bound; the best of them come from
non-negative least squares. A problem is rebuilt from its seed: --one SEED.
"""

import argparse
import contextlib
import functools
import itertools
import multiprocessing
import sys
import time
import warnings
from dataclasses import dataclass, field
from unittest import mock

import numpy as np
import torch
from draws import is_fair, shares_axes, without_numbers
from draws_fields import Made, prior_of, stacked
from draws_laws import ANYWHERE, LAWS, draw_law
from scipy.linalg import block_diag
from scipy.optimize import linprog, minimize, nnls

import probconserv as pc
from probconserv.conditioning.loop import bounded as _bounded

ERRORS = tuple(getattr(pc.errors, f"{x}Error") for x in ("Degenerate", "Infeasible", "Input"))
KINDS = ("linear", "nonlinear", "linear", "nonlinear", "empty")  # seed modulo 5
FIELDS = ("Diagonal", "LowRank", "bare LowRank", "Ensemble", "Dense")
FAR = 100.0  # standard deviations: what is further away may be refused
CLOSE = 1e-8  # of half the squared distance: how much more it may be than the least
ROOM = 1e-4  # the same of half a squared distance that is less than this
BROKEN = 1e-10  # standard deviations, times 1 + distance: by how much a row may be broken
HOLDS = 1e-12  # of a row's terms: the same
ACTIVE = 1e-9  # the same: an inequality that is so near is met
STILL = 1e-5  # of |z|: what may be left to push a field along laws that are not linear
NOTHING = 1e-9  # of 1: what is left of it where a set is empty
FEW = 30  # points up to which these are compared to another method
EMPTY = 1e-6  # standard deviations that laws must be moved by, or there may be a field


@dataclass
class Problem:
    """A field, what is asked of it, and the same in numbers."""

    made: Made
    u: np.ndarray  # (points,), which obeys
    asked: list = field(default_factory=list)
    equal: list = field(default_factory=list)  # of linear rows (G, b, std)
    least: list = field(default_factory=list)  # (G, c), G u >= c
    ends: tuple = (-np.inf, np.inf)  # low and high of points
    curved: list = field(default_factory=list)  # (f, b, side), f of all points
    off: float = 0.0  # standard deviations: by how much the values of laws are wrong
    draws: int = 2  # 0 if laws are not linear or are limits

    @functools.cached_property
    def root(self):  # (points, z)
        prior = self.made.priors[0]
        values, vectors = np.linalg.eigh(prior.covariance)
        own = np.diag(np.sqrt(prior.variance))
        root = np.concatenate([own, prior.factor.T, vectors * np.sqrt(values.clip(0))], 1)
        return root[:, root.any(0)]

    def rows(self):
        """Linear rows (E, b, std) and (A, c) of all points."""
        n = len(self.u)
        blank = [(np.zeros((0, n)), np.zeros(0), np.zeros(0))]
        E, b, std = (np.concatenate(x) for x in zip(*blank, *self.equal, strict=True))
        low, high = (np.broadcast_to(x, n) for x in self.ends)
        more = [
            (np.eye(n)[np.isfinite(x)] * s, s * x[np.isfinite(x)])
            for x, s in ((low, 1), (high, -1))
        ]
        A, c = (np.concatenate(x) for x in zip(*more, *self.least, strict=True))
        return E, b, std, A, c


@dataclass
class Outcome:
    """What became of a problem."""

    kind: str
    seed: int
    distance: float = 0.0  # of the solution, in standard deviations
    wrong: str = ""
    refused: str = ""
    other: bool = False  # laws that are not linear: another method found a nearer field
    solves: int = 0

    @property
    def right(self):
        return not self.wrong and (self.kind == "empty" or not self.refused)


# Fields


def draw_field(rng, most, away=(-1, 1)):
    """A field or a state some standard deviations from values that it will have to obey."""
    count = int(np.exp(rng.uniform(np.log(3), np.log(most + 1))))
    batch = (2,) * int(count >= 8 and rng.random() < 0.2)
    names = "uv" if count >= 8 and rng.random() < 0.3 else ("",)
    size = count // (len(batch) + 1) // len(names)
    rows = int(rng.integers(2, 5)) if len(names) == 1 and size >= 8 and rng.random() < 0.4 else 0
    shape = (*batch, rows, size // rows) if rows else (*batch, size)
    scale = 10.0 ** rng.integers(-5, 6) if rng.random() < 0.3 else 1.0
    slopes, values = zip(*(draw_values(rng, shape, len(batch), scale) for _ in names), strict=True)
    dims, shared = len(shape) - len(batch), len(names) > 1 and rng.random() < 0.4
    parts = [draw_white(rng, shape, scale, 6 if shared else 0, dims) for _ in names]
    prior = stacked([p for p, _ in parts], *[np.hstack] * shared)
    problem = Problem(Made(None, [prior]), np.concatenate(values))
    far = rng.normal(size=problem.root.shape[1]) * 10 ** rng.uniform(*away)
    prior.mean = problem.u + problem.root @ far
    means = dict(zip(names, prior.mean.reshape(len(names), *shape), strict=True))
    if shared:
        members, own = (
            {n: p[k](means[n]) for n, (_, p) in zip(names, parts, strict=True)} for k in (0, 1)
        )
        made = pc.Ensemble(members, own, batch_dims=len(batch), shrinkage=0.0)
    else:
        each = {n: make(means[n]) for n, (_, make) in zip(names, parts, strict=True)}
        made = pc.State(**each) if len(each) > 1 else each[""]
    problem.made = Made(made, [prior])
    return problem, dict(zip(names, slopes, strict=True))


def draw_values(rng, shape, lead, scale):
    """Values, and the axes along which they rise (1) or fall (-1)."""
    u = rng.normal(size=shape) * (rng.random(shape) < rng.choice([0.6, 1.0]))
    u = scale * (np.abs(u) if rng.random() < 0.7 else u)
    axes = [k - len(shape) for k in range(lead, len(shape)) if rng.random() < 0.3 and shape[k] > 1]
    slopes = [(axis, int(rng.choice([1, -1]))) for axis in axes]
    for axis, sign in slopes:
        u = sign * np.sort(sign * u, axis)
    return slopes, u.ravel()


def draw_white(rng, shape, scale, members, dims):
    """The covariance of a field as a `Prior`, and how it is made about a mean.

    members: of an ensemble that fields share; then there are two makers, of members and variance.
    """
    kind = "Ensemble" if members else rng.choice(FIELDS)
    wide = (
        10 ** rng.uniform(-rng.choice([0, 2, 6]), 0, shape)
        * (scale * 10 ** rng.uniform(-2, 0)) ** 2
    )
    own = wide * 10 ** rng.uniform(-6, 0) if kind in ("LowRank", "Ensemble") else wide
    own = own * (kind not in ("bare LowRank", "Dense"))
    factor = np.sqrt(wide) * rng.normal(size=(members or rng.integers(2, 8), *shape))

    def white(factor=None):
        zero = torch.zeros(shape, dtype=torch.float64)
        return prior_of(
            zero, torch.tensor(own), None if factor is None else torch.tensor(factor), dims
        )

    if kind == "Ensemble":
        factor = factor - factor.mean(0)
        prior = white(factor / np.sqrt(len(factor) - 1))
        if members:
            return prior, ((lambda mean: mean + factor), (lambda mean: own))
        lead = len(shape) - dims
        return prior, lambda mean: pc.Ensemble(mean + factor, own, batch_dims=lead, shrinkage=0.0)
    if kind == "Diagonal":
        return white(), lambda mean: pc.Diagonal(mean, own)
    if kind == "Dense":
        n = shape[-1]
        x = np.linspace(0, 1, n)
        smooth = np.exp(
            -0.5 * ((x[:, None] - x) / rng.uniform(0.03, 0.3)) ** 2
        ) + 10 ** rng.uniform(-8, -2) * np.eye(n)
        root = np.sqrt(wide).reshape(-1, n, 1)
        square = root * smooth * root.swapaxes(1, 2)
        prior = white()
        prior.covariance = block_diag(*square)
        return prior, lambda mean: pc.Dense(mean, square.reshape(*shape, n))
    return white(factor), lambda mean: pc.LowRank(mean, factor, own, dims)


# What is asked


def add_law(rng, problem, side=0):
    """A linear law that the values obey, up to its noise; side: a limit that they keep."""
    made = problem.made
    stated = draw_law(rng, str(rng.choice([*ANYWHERE] if side else LAWS)), made, torch.float64)
    if stated is None or not is_fair(stated, made) or not shares_axes(made, [stated]):
        return
    blank, G = without_numbers(stated, made)
    norms = np.linalg.norm(G @ problem.root, axis=1)
    if stated.name == "smoothness":
        noise = blank.noise.double().expand(stated.rows).numpy().ravel()
        problem.asked.append(blank)
        problem.equal.append((G, 0 * noise, noise))
        return
    noisy = not side and (stated.name == "periodic" or rng.random() < 0.4)
    noise = norms.reshape(stated.rows) * 10 ** rng.uniform(-4, 1) * noisy
    noise = noise[..., :1] + 0 * noise if stated.shared else noise
    b = G @ problem.u + noise.ravel() * rng.normal(size=len(G)) * (stated.name != "periodic")
    b = b * (stated.name != "periodic") + problem.off * norms * rng.normal(size=len(G))
    if side:
        b = b - side * norms * rng.exponential(size=len(G)) * (rng.random(len(G)) < 0.5)
        law = stated.make(b.reshape(stated.rows), noise)
        problem.asked.append(pc.at_least(law) if side > 0 else pc.at_most(law))
        problem.least.append((side * G, side * b))
        problem.draws = 0
    else:
        problem.asked.append(stated.make(b.reshape(stated.rows), noise))
        problem.equal.append((G, b, noise.ravel()))


def add_limits(rng, problem, slopes):
    """Bounds and order that the values keep."""
    made, start = problem.made, 0
    u, std = (made.split(x) for x in (problem.u, problem.made.priors[0].std))
    low, high = np.full(len(problem.u), -np.inf), np.full(len(problem.u), np.inf)
    for name, shape in made.shapes.items():
        n = int(np.prod(shape))
        for axis, sign in slopes[name]:
            numbers = start + np.arange(n).reshape(shape)
            first, last = (np.delete(numbers, k, axis).ravel() for k in (-1, 0))
            eye = np.eye(len(problem.u))
            problem.asked.append(pc.monotone(sign < 0, axis, name))
            problem.least.append((sign * (eye[last] - eye[first]), np.zeros(len(first))))
        ends = {}
        for end, sign, x in (("low", -1, low), ("high", 1, high)):
            how = rng.choice(["none", "one", "each", "tight"], p=[0.3, 0.4, 0.2, 0.1])
            if how == "none" and (end == "low" or ends or slopes[name] or problem.curved):
                continue
            room = std[name] * rng.exponential(size=shape) * (rng.random(shape) < 0.7)
            value = u[name] + sign * room * 10 ** rng.uniform(-1, 1)
            if how in ("none", "one"):
                value = (u[name].min() if sign < 0 else u[name].max()) + sign * rng.choice(
                    [0, std[name].mean()]
                )
            if how == "tight":  # next to nothing is left
                value = u[name] + sign * std[name] * 10.0 ** rng.integers(-10, -2) * (
                    rng.random(shape) < 0.9
                )
            if how == "tight" and slopes[name]:
                continue
            ends[end] = value
            x[start : start + n] = np.broadcast_to(value, shape).ravel()
        if ends:
            problem.asked.append(pc.bounds(**ends, of=name))
        start += n
    problem.ends = low, high


def draw_linear(rng):
    problem, slopes = draw_field(rng, 300)
    add_linear(rng, problem, slopes, rng.integers(0, 4))
    return problem


def draw_empty(rng):
    """Laws and limits that no field obeys, clearly, though each by itself may hold."""
    while True:
        problem, slopes = draw_field(rng, 60)
        problem.off = 10 ** rng.uniform(-1, 2)
        add_linear(rng, problem, slopes, rng.integers(1, 4))
        if emptiness(problem) > EMPTY:
            return problem


def draw_nonlinear(rng):
    problem, slopes = draw_field(rng, 120, away=(-1.5, 0.3))
    for _ in range(rng.integers(1, 3)):
        add_curved(rng, problem)
    if rng.random() < 0.8:
        add_linear(rng, problem, slopes, rng.integers(0, 3))
    problem.draws = 0
    return problem


def add_linear(rng, problem, slopes, count):
    for _ in range(count):
        add_law(rng, problem)
    for _ in range(rng.integers(1, 3) * (rng.random() < 0.4)):
        add_law(rng, problem, int(rng.choice([1, -1])))
    add_limits(rng, problem, slopes)


FUNCTIONS = {
    "squares": lambda x, y, size: (x / size).square().sum()[None],
    "two squares": lambda x, y, size: torch.stack(
        [(x[::2] / size).square().sum(), (y[1::2] / size).square().sum()]
    ),
    "cubes": lambda x, y, size: ((x / size) ** 3).sum()[None],
    "exponentials": lambda x, y, size: torch.exp(x / size).sum()[None],
    "products": lambda x, y, size: (x * y)[:3] / size**2,
    "budget": lambda x, y, size: (x * y).sum()[None] / size**2,
    "share": lambda x, y, size: (x[0] / (size + (y * y).sum() / size))[None],
}


def add_curved(rng, problem):
    """A law that is not linear, of each entry of a batch, that the values obey; or a limit."""
    made = problem.made
    shape, prior = next(iter(made.shapes.values())), made.priors[0]
    lead = len(shape) - next(iter(made.fields.values())).event_dims
    lead = int(lead > 0 and shape[0] == 2)
    name, size = str(rng.choice([*FUNCTIONS])), float(np.abs(problem.u).max() + prior.std.mean())

    def function(u):  # of one entry
        parts = [x.reshape(-1) for x in (u.values() if isinstance(u, dict) else [u])]
        return FUNCTIONS[name](parts[0], parts[1] if len(parts) > 1 else parts[0].flip(0), size)

    def whole(u):  # of all points
        parts = [x.reshape(shape) for x in u.chunk(len(made.shapes))]
        each = [[x[i] for x in parts] for i in range(shape[0])] if lead else [parts]
        return torch.cat([function(dict(enumerate(one))) for one in each])

    value = whole(torch.tensor(problem.u)).numpy()
    rows = np.linalg.norm(jacobian(whole, problem.u) @ problem.root, axis=1)
    side = int(rng.choice([0, 0, 0, 1, -1]))
    noise = rows * 10 ** rng.uniform(-3, 0.5) * (side == 0 and rng.random() < 0.3)
    value = (
        value
        + noise * rng.normal(size=len(value))
        - side * rows * rng.exponential() * (rng.random() < 0.5)
    )
    entries = (2, -1) if lead else (-1,)
    law = pc.nonlinear(
        function, value.reshape(entries), noise=noise.reshape(entries), batch_dims=lead
    )
    problem.asked.append(
        [law, pc.at_least(law) if side else 0, pc.at_most(law) if side else 0][side]
    )
    problem.curved.append((whole, value, noise, side))


def jacobian(function, u):
    return torch.autograd.functional.jacobian(function, torch.tensor(u)).numpy()


# The judge


@dataclass
class White:
    """Rows of a problem in units of the prior, with the misses of noisy rows: y = (z, e)."""

    E: np.ndarray  # rows that are b
    b: np.ndarray
    A: np.ndarray  # rows that are c or more
    c: np.ndarray

    @classmethod
    def of(cls, problem, u=None):
        """u: where laws that are not linear are linearised; without them if it is None."""
        E, b, std, A, c = problem.rows()
        for function, value, noise, side in problem.curved if u is not None else ():
            J, now = jacobian(function, u), function(torch.tensor(u)).numpy()
            if side:
                A, c = np.concatenate([A, side * J]), np.append(c, side * (value - now + J @ u))
            else:
                E, b, std = (
                    np.concatenate([E, J]),
                    np.append(b, value - now + J @ u),
                    np.append(std, noise),
                )
        mean, root = problem.made.priors[0].mean, problem.root
        E, b = np.concatenate([E @ root, np.diag(std)[:, std > 0]], 1), b - E @ mean
        A, c = np.pad(A @ root, ((0, 0), (0, (std > 0).sum()))), c - A @ mean
        sizes = [np.linalg.norm(x, axis=1) for x in (E, A)]
        sizes = [np.where(x > 0, x, 1.0) for x in sizes]
        return cls(E / sizes[0][:, None], b / sizes[0], A / sizes[1][:, None], c / sizes[1])

    def without_equal(self):
        """The least y of the equal rows alone, and a basis of the directions that they leave."""
        left, size, right = np.linalg.svd(self.E, full_matrices=True)
        kept = size > 1e-9
        own = right[: len(size)][kept]
        return own.T @ ((left.T[: len(size)][kept] @ self.b) / size[kept]), np.concatenate(
            [right[: len(size)][~kept], right[len(size) :]]
        )


def spread(problem, u):
    """y of a field: the least z that moves the mean there, and the misses of noisy rows."""
    prior = problem.made.priors[0]
    z = np.linalg.lstsq(
        problem.root / prior.std[:, None], (u - prior.mean) / prior.std, rcond=1e-13
    )[0]
    E, b, std, *_ = problem.rows()
    e = [((b - E @ u) / np.where(std > 0, std, 1.0))[std > 0]]
    for function, value, noise, side in problem.curved:
        missed = value - function(torch.tensor(u)).numpy()
        e.append((missed / np.where(noise > 0, noise, 1.0))[noise > 0] if not side else [])
    return np.concatenate([z, *e])


def bound(white, y):
    """What weights of the rows prove half the squared distance to be, and what they leave of y."""
    here = white.A @ y - white.c <= ACTIVE * (1 + np.linalg.norm(y))
    _, free = white.without_equal()
    some = white.A[here]
    weights = weighed(free @ some.T, free @ y)
    pull = some.T @ weights
    others = np.linalg.lstsq(white.E.T, y - pull, rcond=1e-11)[0]
    pull = pull + white.E.T @ others
    return weights @ white.c[here] + others @ white.b - pull @ pull / 2, np.linalg.norm(y - pull)


def weighed(columns, target):
    """Weights, none negative, with which the columns come nearest to the target."""
    some = np.linalg.norm(columns, axis=0) > 0
    weights = np.zeros(len(some))
    if some.any():
        weights[some] = nnls(columns[:, some], target, maxiter=100_000)[0]
    return weights


def least(white):
    """The least |y| by non-negative least squares (Lawson and Hanson); inf if there is none."""
    start, free = white.without_equal()
    if (np.abs(white.E @ start - white.b) > EMPTY).any():
        return np.inf
    rows, value = white.A @ free.T, white.c - white.A @ start
    norms = np.linalg.norm(rows, axis=1)
    if (value[norms < NOTHING] > EMPTY).any():
        return np.inf
    rows, value = (x[norms >= NOTHING] for x in (rows, value))
    size = max(1.0, np.abs(value).max(initial=0))
    given, target = np.vstack([rows.T, value / size]), np.append(np.zeros(len(free)), 1.0)
    away = target - given @ weighed(given, target)
    if np.linalg.norm(away) < NOTHING:
        return np.inf
    return float(np.hypot(np.linalg.norm(start), np.linalg.norm(away[:-1]) / away[-1] * size))


def emptiness(problem):
    """By how many standard deviations rows must be off, at least."""
    white = White.of(problem)
    E, A = (np.pad(x, ((0, 0), (0, 1)), constant_values=1.0) for x in (white.E, white.A))
    under = np.concatenate([-A, -E, np.concatenate([white.E, -np.ones((len(E), 1))], 1)])
    found = linprog(
        np.eye(E.shape[1])[-1],
        under,
        np.concatenate([-white.c, -white.b, white.b]),
        bounds=[(None, None)] * (E.shape[1] - 1) + [(0, None)],
    )
    return found.fun if found.status == 0 else 0.0


def broken(problem, u, distance):
    """The first thing that u does not obey, in words, or nothing."""
    prior = problem.made.priors[0]
    low, high = problem.ends
    if not (np.isfinite(u).all() and (u >= low).all() and (u <= high).all()):
        return "outside of bounds"
    E, b, std, A, c = problem.rows()
    for name, rows, value in (("law", E[std == 0], b[std == 0]), ("limit", A, c)):
        miss = rows @ u - value
        miss = np.abs(miss) if name == "law" else np.maximum(-miss, 0)
        terms = np.abs(rows) @ (np.abs(u) + prior.std) + np.abs(value)
        size = np.linalg.norm(rows @ problem.root, axis=1)
        if (miss > np.maximum(BROKEN * (1 + distance) * size, HOLDS * terms)).any():
            return f"a {name} is broken by {(miss / size).max():.1e}"
    for function, value, noise, side in problem.curved:
        miss, J = function(torch.tensor(u)).numpy() - value, jacobian(function, u)
        miss = np.maximum(-side * miss, 0) if side else np.abs(miss) * (noise == 0)
        size = np.linalg.norm(J @ problem.root, axis=1)
        terms = np.abs(J) @ (np.abs(u) + prior.std) + np.abs(value)
        if (miss > np.maximum(BROKEN * (1 + distance) * size, HOLDS * terms)).any():
            return f"a law that is not linear is broken by {(miss / size).max():.1e}"
    return ""


def judged(found, problem, u):
    y = spread(problem, u)
    found.distance, half = float(np.linalg.norm(y)), y @ y / 2
    found.wrong = broken(problem, u, found.distance)
    if found.wrong:
        return
    proved, left = bound(White.of(problem, u), y)
    if problem.curved:
        if left > STILL * (1 + found.distance):
            found.wrong = f"not stationary: {left:.1e} of {found.distance:.1e}"
        elif len(u) <= FEW:
            found.other = another(problem) < half * (1 - CLOSE) - CLOSE
    elif half - proved > CLOSE * (half + ROOM) and half > (
        best := least(White.of(problem)) ** 2 / 2
    ) + CLOSE * (best + ROOM):
        found.wrong = (
            f"half the squared distance is {half:.12g}, proved {proved:.12g}, found {best:.12g}"
        )


def another(problem):
    """Half the squared distance that SLSQP finds from the mean, or inf."""
    prior, root = problem.made.priors[0], problem.root
    E, b, std, A, c = problem.rows()
    size = root.shape[1]
    rows = [
        (lambda u: E @ u - b, lambda u: E, std, 0),
        (lambda u: A @ u - c, lambda u: A, 0 * c, 1),
    ]
    for function, value, noise, side in problem.curved:
        rows.append(
            (
                lambda u, f=function, v=value, s=side or 1: s * (f(torch.tensor(u)).numpy() - v),
                lambda u, f=function, s=side or 1: s * jacobian(f, u),
                noise,
                side,
            )
        )
    place, given = size, []
    for f, J, noise, side in rows:
        noisy = np.zeros((len(noise), size + sum(int((n > 0).sum()) for *_, n, _ in rows)))
        for k in np.flatnonzero(noise > 0):
            noisy[k, place], place = noise[k], place + 1
        norm = np.linalg.norm(np.hstack([J(prior.mean) @ root, noisy]), axis=1)
        norm = np.where(norm > 0, norm, 1.0)
        if len(noise):
            given.append(
                {
                    "type": "ineq" if side else "eq",
                    "fun": lambda y, f=f, m=noisy, n=norm: (
                        (f(prior.mean + root @ y[:size]) + m @ y) / n
                    ),
                    "jac": lambda y, J=J, m=noisy, n=norm: (
                        (
                            np.pad(
                                J(prior.mean + root @ y[:size]) @ root,
                                ((0, 0), (0, m.shape[1] - size)),
                            )
                            + m
                        )
                        / n[:, None]
                    ),
                }
            )
    found = minimize(
        lambda y: y @ y / 2,
        np.zeros(place),
        jac=lambda y: y,
        constraints=given,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 300},
    )
    feasible = all(
        (np.abs(x) if g["type"] == "eq" else -x).max() < 1e-8
        for g in given
        for x in [g["fun"](found.x)]
    )
    return found.fun if found.success and feasible else np.inf


# Running


DRAW = {"linear": draw_linear, "nonlinear": draw_nonlinear, "empty": draw_empty}


def problem_of(seed):
    kind = KINDS[seed % len(KINDS)]
    return kind, DRAW[kind](np.random.default_rng(seed))


def outcome(seed):
    """What `condition` makes of the problem of a seed."""
    kind, problem = problem_of(seed)
    found = Outcome(kind, seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pc.ImplausibleWarning)
            solve(found, problem)
    except ERRORS as error:
        found.refused = f"{type(error).__name__}: {error}"
    except Exception as error:
        found.wrong = repr(error)
    if kind == "empty" and not found.refused:
        found.wrong = found.wrong or "accepted"
    if found.refused:
        found.distance = (
            np.linalg.norm(spread(problem, problem.u))
            if problem.curved
            else least(White.of(problem))
        )
    return found


def solve(found, problem):
    generator = torch.Generator().manual_seed(found.seed)
    with counted() as counts:
        post = pc.condition(problem.made.field, *problem.asked, draws=0)
    found.solves = sum(counts if problem.curved else counts[:1])
    judged(found, problem, flat(post, lambda one: one.point)[0])
    if problem.draws and not found.wrong:
        post = pc.condition(problem.made.field, *problem.asked, draws=2, generator=generator)
        judged(found, problem, flat(post, lambda one: one.point)[0])
        draws = flat(post, lambda one: one.draws)
    elif not found.wrong:
        draws = post.sample(2, generator)
        draws = torch.cat(
            [x.reshape(2, -1) for x in (draws.values() if isinstance(draws, dict) else [draws])], 1
        ).numpy()
    for u in draws if not found.wrong else ():
        found.wrong = found.wrong or broken(problem, u, np.linalg.norm(spread(problem, u)))


def flat(post, of):
    """A number for each point, all fields side by side, (n, points)."""
    parts = [of(one) for one in (post.parts if isinstance(post, pc.State) else [post])]
    parts = [
        x if x.ndim > one.mean.ndim else x[None]
        for x, one in zip(parts, post.parts if isinstance(post, pc.State) else [post], strict=True)
    ]
    return torch.cat([x.reshape(len(x), -1) for x in parts], 1).numpy()


@contextlib.contextmanager
def counted():
    """Linear solves of each programme, the most of any part."""
    counts = []

    def looked(nearest):
        def wrapped(*given):
            result = nearest(*given)
            counts.append(int(result.solves.max()) if len(result.solves) else 0)
            return result

        return wrapped

    with mock.patch.object(_bounded, "nearest", looked(_bounded.nearest)):
        yield counts


def run(seeds, jobs=1):
    if jobs == 1:
        return [outcome(seed) for seed in seeds]
    with multiprocessing.get_context("spawn").Pool(jobs, torch.set_num_threads, (1,)) as pool:
        return [*pool.imap_unordered(outcome, seeds, chunksize=4)]


def table(outcomes):
    lines = []
    for one in outcomes:
        if not one.right:
            lines.append(
                f"{one.kind} {one.seed}, {one.distance:.3g} away: {one.wrong or one.refused}"
            )
    for kind in dict.fromkeys(KINDS):
        own = [one for one in outcomes if one.kind == kind]
        if not own:
            continue
        near = [one for one in own if one.distance < FAR]
        solves = [one.solves for one in own if not one.refused] or [0]
        counts = {
            f"within {FAR:g} standard deviations": len(near),
            "wrong": sum(bool(one.wrong) for one in own),
            "refused": sum(bool(one.refused) for one in own),
            "of these near": sum(bool(one.refused) for one in near),
            "said to be empty": sum(is_proved(one.refused) for one in own),
            "another method is nearer": sum(one.other for one in own),
            "linear solves, median": np.median(solves),
            "99 %": np.percentile(solves, 99),
        }
        said = ", ".join(f"{name} {count:g}" for name, count in counts.items())
        lines.append(f"{kind}: {len(own)} problems; {said}")
    return "\n".join(lines)


def is_proved(text):
    """Whether an error says that there is no field, not that none was found."""
    found = ("did not get", "was not found", "are off")
    return bool(text) and not any(word in text for word in found)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="?", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="other seeds, other problems")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND")
    parser.add_argument("--one", type=int, help="show the problem of this seed")
    given = parser.parse_args()
    if given.one is not None:
        print(*problem_of(given.one), outcome(given.one), sep="\n")
        return 0
    start, first = time.perf_counter(), given.seed * 1_000_000
    seeds = (s for s in itertools.count(first) if KINDS[s % len(KINDS)] in given.kinds)
    outcomes = run([*itertools.islice(seeds, given.problems)], given.jobs)
    print(table(outcomes))
    print(f"{given.problems} problems in {time.perf_counter() - start:.0f} s")
    return int(not all(one.right for one in outcomes))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
