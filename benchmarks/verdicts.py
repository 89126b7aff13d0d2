"""How often `diagnose` is right, by simulation: `python benchmarks/verdicts.py [--repeats 2000]`.

Truth and prior differ by errors of 10 % at each of 16 points: `independent` from point to point,
`smooth` (Matern 3/2 of length 0.2), or `shared`, one error for all points. The prior states them as
they are (`Dense`, or 4 to 100 members drawn like the truth), or only how large they are
(`Diagonal`). One total is known, or one at each of 12 times, with errors that are independent in
time or, `jointly`, smooth in time and stated so. The total is right, or wrong in one of the ways of
`WRONG`. The last table is of right energies, the mean square of 40 points. Prints Markdown tables;
with 2000 repeats it takes about seven minutes on one core. Joint totals take a fifth of the
repeats, wrong ones a twentieth, energies half.
"""

import argparse
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

import probconserv as pc

Row = tuple[str, ...]
POINTS, TIMES, SIZE = 16, 12, 0.1
ERRORS = ("independent", "smooth", "shared")
MEMBERS = {f"{n} members": n for n in (4, 8, 20, 100)}
PRIORS = ("Diagonal", "Dense", *MEMBERS)
TOTALS = ("1 total", "12 times", "12 times jointly")
ENERGY_POINTS, NORMAL = 40, 2.807  # beyond which a normal number is in 0.5 % of cases
WEIGHTS = torch.full((POINTS,), 1 / POINTS, dtype=torch.float64)


class Wrong(NamedTuple):
    """A way for totals to be wrong, and the cause that should be named for it."""

    change: Callable[[Tensor], Tensor]
    kind: str
    amount: float  # of a shift; of the others it depends on the prior


def factor(f: float) -> Wrong:
    return Wrong(lambda b: f * b, "factor", f)


def offset(share: float) -> Wrong:
    return Wrong(lambda b: b + share * b.mean(), "offset", share)


def shift(rows: int) -> Wrong:
    """As if the clock were late: the first value is repeated."""
    return Wrong(lambda b: b[(torch.arange(len(b)) - rows).clamp_min(0)], "shift", rows)


WRONG = {
    "factor 0.5": factor(0.5),
    "factor 2": factor(2.0),
    "factor 10": factor(10.0),
    "factor 100": factor(100.0),
    "factor 1/100": factor(0.01),
    "factor 1000": factor(1000.0),
    "1 row late": shift(1),
    "3 rows late": shift(3),
    "1 % too large": offset(0.01),
    "10 % too large": offset(0.1),
    "100 % too large": offset(1.0),
}


def correlation(errors: str, count: int) -> Tensor:
    """Between points of [0, 1], or times."""
    if errors != "smooth":
        each = torch.eye(count) if errors == "independent" else torch.ones(count, count)
        return each.double()
    x = torch.linspace(0, 1, count, dtype=torch.float64)
    d = math.sqrt(3) * (x[:, None] - x).abs() / 0.2
    return (1 + d) * (-d).exp()


class World:
    """Truths and priors whose errors are of one kind."""

    def __init__(self, errors: str, totals: str, prior: str, rng: torch.Generator) -> None:
        self.prior, self.rng, self.jointly = prior, rng, totals.endswith("jointly")
        times = 1 if totals == "1 total" else TIMES
        t, x = (torch.linspace(0, 1, n, dtype=torch.float64) for n in (times, POINTS))
        self.mean = (1 + 3 * t[:, None] ** 2) * (1 + 0.5 * (3 * x).sin())
        std = SIZE * self.mean
        self.variance, inside = std.square(), correlation(errors, POINTS)
        self.in_x = _root(inside)
        self.in_t = _root(correlation("smooth" if self.jointly else "independent", times))
        self.covariance = std[..., None] * inside * std[:, None]  # (T, M, M)
        if self.jointly:
            between = correlation("smooth", times)
            whole = torch.einsum("st,xy->sxty", between, inside)
            self.covariance = std[..., None, None] * whole * std

    def error(self, *more: int) -> Tensor:
        z = torch.randn(*more, *self.mean.shape, generator=self.rng, dtype=torch.float64)
        return self.variance.sqrt() * (self.in_t @ z @ self.in_x.T)

    def case(self) -> tuple[pc.fields.Field, Tensor]:
        """A prior, and the totals of a truth that it should expect."""
        dims = 2 if self.jointly else 1
        if self.prior in MEMBERS:
            members = self.mean + self.error(MEMBERS[self.prior])
            field: pc.fields.Field = pc.Ensemble(members, batch_dims=members.ndim - 1 - dims)
            return field, (self.mean + self.error()) @ WEIGHTS
        mean = self.mean + self.error()
        if self.prior == "Dense":
            return pc.Dense(mean, self.covariance, dims), self.mean @ WEIGHTS
        return pc.Diagonal(mean, self.variance), self.mean @ WEIGHTS


def _root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp_min(0).sqrt()


def answers(world: World, repeats: int, wrong: Wrong | None = None) -> Counter[str]:
    """How often each answer was given; and how often the right cause was named, as "cause"."""
    count: Counter[str] = Counter()
    for _ in range(repeats):
        field, total = world.case()
        found = pc.diagnose(
            field, pc.weighted_sum(WEIGHTS, wrong.change(total) if wrong else total)
        )
        count[found.answer] += 1
        if wrong is not None and found.answer != "agrees":
            count["cause"] += any(_right(cause, wrong) for cause in found.causes)
    return count


def _right(cause: object, wrong: Wrong) -> bool:
    kind, amount = cause.kind, cause.amount  # type: ignore[attr-defined]
    if kind != wrong.kind:
        return False
    if kind == "factor":
        return abs(math.log(abs(amount / wrong.amount))) < math.log(1.5)
    return kind == "offset" or amount == wrong.amount


def false_alarms(repeats: int, rng: torch.Generator) -> Iterable[Row]:
    """In % of the right totals: "does not agree", and in brackets all that is not "agrees"."""
    for prior, totals in itertools.product(PRIORS, TOTALS):
        if prior == "Diagonal" and totals.endswith("jointly"):
            continue
        count = repeats // 5 if totals.endswith("jointly") else repeats  # these take a while
        found = [answers(World(e, totals, prior, rng), count) for e in ERRORS]
        shares = [(c["does not agree"], count - c["agrees"]) for c in found]
        cells = (tuple(f"{100 * n / count:.2f}" for n in pair) for pair in shares)
        yield prior, totals, *(f"{alarm} ({doubt})" for alarm, doubt in cells)


def power(repeats: int, rng: torch.Generator) -> Iterable[Row]:
    """In %: "does not agree", "agrees if shared", and how often the cause is named."""
    for (name, wrong), totals in itertools.product(WRONG.items(), ("1 total", "12 times")):
        if wrong.kind == "factor" or totals == "12 times":
            found = [answers(World("smooth", totals, p, rng), repeats, wrong) for p in PRIORS]
            yield (
                name,
                totals,
                *(
                    " / ".join(
                        f"{100 * c[key] / repeats:.0f}"
                        for key in ("does not agree", "agrees if shared", "cause")
                    )
                    for c in found
                ),
            )


def energies(repeats: int, rng: torch.Generator) -> Iterable[Row]:
    """In % of right energies: rejected by `diagnose`, by the tangent, by the nearest field."""
    mean = 1 + 0.5 * (6 * torch.linspace(0, 1, ENERGY_POINTS, dtype=torch.float64)).sin()
    for errors, size in itertools.product(("independent", "smooth"), (0.1, 0.3, 0.6)):
        covariance = size**2 * (correlation(errors, len(mean)) + 1e-6 * torch.eye(len(mean)))
        field, root, wrong = pc.Dense(mean, covariance), _root(covariance), [0, 0, 0]
        for _ in range(repeats):
            truth = mean + root @ torch.randn(len(mean), generator=rng, dtype=torch.float64)
            law = pc.nonlinear(_energy, float(_energy(truth)))
            wrong[0] += pc.diagnose(field, law).answer != "agrees"
            slope = 2 * mean / len(mean)
            z = (_energy(mean) - law.value) / (slope @ covariance @ slope).sqrt()
            wrong[1] += abs(float(z)) > NORMAL
            away = pc.condition(field, law).point - mean
            wrong[2] += float(away @ torch.linalg.solve(covariance, away)) > NORMAL**2
        yield errors, f"{100 * size:.0f} %", *(f"{100 * n / repeats:.1f}" for n in wrong)


def _energy(u: Tensor) -> Tensor:
    return u.square().mean()


def table(heads: Iterable[str], rows: Iterable[Row]) -> None:
    heads = tuple(heads)
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000, help="right totals of each kind")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(given.seed)
    table(("prior", "totals", *ERRORS), false_alarms(given.repeats, rng))
    table(("b is wrong by", "totals", *PRIORS), power(max(given.repeats // 20, 1), rng))
    heads = "errors", "size", "`diagnose`", "tangent at the mean", "nearest field that obeys"
    table(heads, energies(given.repeats // 2, rng))


if __name__ == "__main__":
    main()
