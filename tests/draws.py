"""Random problems: a field or a state, with laws that it can obey, of every size and scale."""

from dataclasses import dataclass

import numpy as np
import torch
from draws_fields import (
    FIELDS,
    Made,
    draw_dtype,
    draw_mixture,
    draw_shape,
    draw_shapes,
    draw_state,
    field_of,
    tame,
    wild,
)
from draws_laws import LAWS, OVERDETERMINED, Stated, draw_law, draw_noise, draw_where
from exact import posterior

import probconserv as pc

FLOATS = {torch.float64: np.float64, torch.float32: np.float32}


@dataclass
class Problem:
    made: Made
    laws: list
    parts: list[np.ndarray]  # points that are independent of all others; those without rows are out
    G: np.ndarray  # (rows, points)
    b: np.ndarray  # (rows,)
    noise: np.ndarray  # (rows,)


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
