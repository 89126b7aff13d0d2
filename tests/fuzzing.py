"""Random problems for `condition` against `exact.py`: python tests/fuzzing.py 20000 --jobs 2.

A problem is rebuilt from its seed: python tests/fuzzing.py --one SEED. Laws that contradict each
other, and laws that do not: python tests/fuzzing.py 20000 --kinds contradictions consistent.
"""

import argparse
import contextlib
import itertools
import multiprocessing
import sys
import time
import warnings
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import torch
from draws import draw_overdetermined, draw_problem
from draws_fields import PRIORS
from exact import Posterior, posterior

import probconserv as pc
from probconserv.solvers import banded as _banded
from probconserv.solvers import engine as _engine

KINDS = (*PRIORS, "contradictions", "consistent")  # seed modulo 10
WELL = 1e8  # a problem of a lower condition number must be solved to within CLOSE
CLOSE = 1e-6
FIXED = 1e-28  # of the prior's variance: less is left only where exact rows fix a point
NOTHING = 1e-20  # the same: less need not be told from 0
SINGULAR = 1e-8  # least eigenvalue, of 1: rounding such a covariance changes no variance by much
ROUNDED = 32  # roundings of a member that its std may be off by, times the condition's root
HOLDS = {2**-52: 1e-12, 2**-23: 1e-6}  # by dtype: exact rows, relative to their terms
DECIDED = 1e-8  # the same where rows follow from others, or nearly; terms with the prior's std
CLEAR = 1e-3  # a contradiction, relative to the terms of its row
CONSISTENT = 1e-7  # the same: rounding of b, to float32 at worst
AGREED = 1e-12  # the same: rows of which any may be left out
FEW = 12  # points up to which the density of a draw is computed by the oracle
NUMBERS = ("mean", "variance", "zeros", "evidence", "density", "rows")
COLUMNS = (*NUMBERS, "not finite", "refused", "ill refused", "accepted")


@dataclass
class Outcome:
    """What `condition` did; numbers relative to what they may be off by, so that 1 is wrong."""

    kind: str
    seed: int
    well: bool
    mean: float = 0.0
    variance: float = 0.0
    zeros: float = 0.0  # points that exact rows fix and that have some variance left
    evidence: float = 0.0
    density: float = 0.0  # of a draw
    rows: float = 0.0  # exact rows, for the mean and for a sample
    finite: bool = True
    refused: str = ""
    accepted: bool = False

    def wrong(self, column):
        """By how much; 0 or less than 1 is right."""
        if column in NUMBERS:
            return float(getattr(self, column))
        return {
            "not finite": not self.finite,
            "refused": bool(self.refused) and self.well,
            "ill refused": bool(self.refused) and not self.well,
            "accepted": self.accepted,
        }[column]

    @property
    def right(self):
        return all(self.wrong(column) < 1 for column in COLUMNS if column != "ill refused")


def problem(seed):
    """The kind, the problem and the truth of a seed; unlucky draws are drawn again."""
    kind = KINDS[seed % len(KINDS)]
    draw = draw_problem if kind in PRIORS else draw_overdetermined
    draws = (draw(np.random.default_rng([seed, attempt]), kind) for attempt in itertools.count())
    pairs = ((drawn, truth_of(drawn)) for drawn in draws if drawn is not None)
    return next((kind, drawn, truth) for drawn, truth in pairs if suits(kind, truth))


def suits(kind, truth):
    if kind == "contradictions":
        return truth.miss > CLEAR and truth.condition < WELL
    return truth.miss < CONSISTENT and (kind != "consistent" or truth.redundant > 0)


def truth_of(drawn):
    """By the oracle, part by part; the evidence is (components, parts)."""
    numbers = range(len(drawn.parts))
    solved = [[solve(drawn, prior, number) for number in numbers] for prior in drawn.made.priors]
    evidence = np.array([[part.log_evidence for part in one] for one in solved])
    means, variances = (
        np.array([getattr(p, x) for p in drawn.made.priors]) for x in ("mean", "std")
    )
    before = np.array([prior.weight for prior in drawn.made.priors])
    variances, weights = variances**2, np.tile(before / before.sum(), (len(means[0]), 1)).T
    for number, points in enumerate(drawn.parts):
        means[:, points] = [one[number].mean for one in solved]
        variances[:, points] = [one[number].variance for one in solved]
        share = before * np.exp(evidence[:, number] - evidence[:, number].max())
        weights[:, points] = (share / share.sum())[:, None]
    mean = (weights * means).sum(0)
    every = [part for one in solved for part in one]
    return Posterior(
        mean=mean,
        variance=(weights * (variances + (means - mean) ** 2)).sum(0),
        log_evidence=evidence,
        condition=max(part.condition for part in every),
        redundant=sum(part.redundant for part in every),
        miss=max(part.miss for part in every),
        doubt=sum(part.doubt for part in every),
        shift=max(part.shift for part in every),
    )


def solve(drawn, prior, number):
    points = drawn.parts[number]
    own = drawn.G[:, points].any(1) | (number == 0 and ~drawn.G.any(1))  # and rows of no point
    rows = {"G": drawn.G[own][:, points], "b": drawn.b[own], "noise": drawn.noise[own]}
    return posterior(**prior.part(points), **rows)


def outcome(seed):
    """What `condition` makes of the problem of a seed."""
    kind, drawn, truth = problem(seed)
    found = Outcome(kind, seed, truth.condition < WELL)
    try:
        with warnings.catch_warnings(), other_ways(seed):
            warnings.simplefilter("ignore", pc.ImplausibleWarning)
            post = pc.condition(drawn.made.field, *drawn.laws)
            compare(found, drawn, truth, post)
            found.accepted = kind == "contradictions"
    except Exception as error:
        expected = kind == "contradictions" and isinstance(error, pc.errors.InfeasibleError)
        found.refused = "" if expected else repr(error)
    return found


@contextlib.contextmanager
def other_ways(seed):
    """Every other problem has bands row by row."""
    with contextlib.ExitStack() as patched:
        if seed // 10 % 2:
            patched.enter_context(mock.patch.object(_banded, "SMALL", 0))
            patched.enter_context(mock.patch.object(_engine, "MANY", 1))
        yield


def compare(found, drawn, truth, post):
    fields, draws = [post], [post.sample(1, torch.Generator().manual_seed(0))]
    if isinstance(post, pc.State):
        fields, draws = post.parts, draws[0].values()
    eps = max(torch.finfo(field.dtype).eps for field in fields)
    each = [f.mean for f in fields], [f.variance for f in fields], draws
    mean, variance, draw = (torch.cat([x.double().ravel() for x in one]).numpy() for one in each)
    found.finite = all(np.isfinite(x).all() for x in (mean, variance, draw))
    if not found.finite or found.kind == "contradictions":
        return
    sure, mixture = found.well and not truth.redundant, isinstance(post, pc.Mixture)
    before = np.max([prior.std for prior in drawn.made.priors], 0)
    holds, spread = HOLDS[eps], 0 * before
    if not sure:  # the rounding of what was there before may stay, and of values that repeat
        holds, spread = max(10 * holds, DECIDED), before
    found.rows = max(row_error(drawn, u, spread) for u in (mean, draw)) / holds
    # the oracle may leave out other redundant rows for other components: then weights differ
    unclear = truth.miss > AGREED or (mixture and (truth.redundant or truth.doubt > CLOSE / 10))
    if not found.well or unclear:
        return
    size = np.abs(truth.mean) + before * (1 + truth.shift / CLOSE)
    found.mean = relative(np.abs(mean - truth.mean), size) / CLOSE
    fixed = np.abs(truth.variance) <= FIXED * before**2
    least = max(NOTHING, rounding_of(drawn.made.fields.values(), truth.condition))
    left = truth.variance > least * before**2
    off = np.abs(variance - truth.variance)
    if mixture:  # its components' means are rounded before they are compared
        off = off - np.square(64 * eps * truth.mean)
    elif not all(map(is_regular, drawn.made.fields.values())):
        others = [truth.variance, *(truth_of(other).variance for other in as_rounded(drawn))]
        off = np.abs(variance - np.clip(variance, np.min(others, 0), np.max(others, 0)))
    if not mixture:
        right = off <= CLOSE * truth.variance  # what noise alone leaves may be as little
        much = ~left & (variance > least * before**2)
        found.zeros = np.count_nonzero(~right & (much | (fixed & (variance > 0))))
    found.variance = relative(off[left], truth.variance[left]) / CLOSE
    size = max(1.0, float(np.abs(truth.log_evidence).sum()))
    if sure and not mixture and truth.doubt < CLOSE / 10 * size:
        off = abs(float(post.log_evidence.double().sum()) - float(truth.log_evidence.sum()))
        found.evidence = off / size / CLOSE
        found.density = density_error(drawn, post, draw) / CLOSE


def density_error(drawn, post, draw):
    """Of log p(u | b) = log p(u, b) - log p(b), relative to the larger of the two; 0 if unknown."""
    if isinstance(post, pc.State) or len(draw) > FEW or not (drawn.noise > 0).all():
        return 0.0
    prior, eye = drawn.made.priors[0].part(np.arange(len(draw))), np.eye(len(draw))
    rows = posterior(G=drawn.G, b=drawn.b, noise=drawn.noise, **prior)
    G, b = np.concatenate([drawn.G, eye]), np.concatenate([drawn.b, draw])
    both = posterior(G=G, b=b, noise=np.concatenate([drawn.noise, 0 * draw]), **prior)
    size = max(1.0, abs(both.log_evidence), abs(rows.log_evidence))
    if both.redundant or both.condition > WELL or both.doubt > CLOSE / 10 * size:
        return 0.0
    try:
        found = post.log_prob(torch.tensor(draw, dtype=post.dtype).reshape(post.shape))
    except pc.errors.DegenerateError:  # directions alone have none
        return 0.0
    return abs(float(found.double().sum()) - (both.log_evidence - rows.log_evidence)) / size


def rounding_of(fields, condition):
    """The share of a variance that the rounding of fields alone may leave."""
    most = [0.0]
    for field in fields:
        if getattr(field, "rounding", 0):  # directions were taken off a mean
            std = field.factor.double().square().sum(0).sqrt()
            rounding = float((field.rounding * field.mean.double().abs() / std).max())
            most.append((ROUNDED * rounding) ** 2 * condition)
    return max(most)


def is_regular(field):
    """Whether rounding its covariance changes no variance by much."""
    if not isinstance(field, pc.Dense):
        return True
    size = int(np.prod(field.shape[-field.event_dims :]))
    matrix = field.covariance().double().reshape(-1, size, size)
    std = matrix.diagonal(dim1=-2, dim2=-1).sqrt()
    std = torch.where(std > 0, std, 1.0)
    values = torch.linalg.eigvalsh(matrix / std[:, None] / std[..., None])
    return bool((values[:, 0] > SINGULAR * values[:, -1]).all())


def as_rounded(drawn):
    """Two problems with covariances that rounding may have made this one of.

    One has as much more at each point as may be rounding, one has no direction that may be.
    """
    for name in ("regular", "singular"):
        yield replace(
            drawn, made=replace(drawn.made, priors=[getattr(p, name) for p in drawn.made.priors])
        )


def row_error(drawn, u, spread):
    """|G u - b| of the exact rows relative to their terms |G| (|u| + spread) + |b|."""
    G, b = drawn.G[drawn.noise == 0], drawn.b[drawn.noise == 0]
    return relative(np.abs(G @ u - b), np.abs(G) @ (np.abs(u) + spread) + np.abs(b))


def relative(error, size):
    """The largest ratio; errors so small that float32 cannot hold them are none."""
    error = np.where(error > 1e-40, error, 0.0)
    ratio = np.divide(error, size, out=np.where(error > 0, np.inf, 0.0), where=size > 0)
    return float(ratio.max(initial=0.0))


def run(seeds, jobs=1):
    if jobs == 1:
        return [outcome(seed) for seed in seeds]
    with multiprocessing.get_context("spawn").Pool(jobs, torch.set_num_threads, (1,)) as pool:
        return pool.map(outcome, seeds, chunksize=32)


def table(outcomes):
    """Counts for each kind of problem, and below them the worst problem of each count."""
    heads = ("", "problems", "cond<1e8", *COLUMNS)
    lines, worst = ["".join(f"{head:>15}" for head in heads)], []
    for kind in [kind for kind in KINDS if any(one.kind == kind for one in outcomes)]:
        own = [one for one in outcomes if one.kind == kind]
        counts = [len(own), sum(one.well for one in own)]
        for column in COLUMNS:
            wrong = [one for one in own if one.wrong(column) >= 1]
            counts.append(len(wrong))
            if wrong:
                one = max(wrong, key=lambda one, column=column: one.wrong(column))
                worst.append(f"{kind}, {column}: {one.wrong(column):.1e}, seed {one.seed}")
        lines.append("".join(f"{cell:>15}" for cell in (kind, *counts)))
    return "\n".join([*lines, "The worst, relative to what is allowed:", *worst])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="?", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="other seeds, other problems")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND")
    parser.add_argument("--one", type=int, help="show the problem of this seed")
    given = parser.parse_args()
    if given.one is not None:
        print(*problem(given.one), outcome(given.one), sep="\n")
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
