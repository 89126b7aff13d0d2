"""Which field to give to `condition`, by simulation: `python benchmarks/fields.py`, on one core.

Members and truth are drawn alike about a centre that nobody knows, on 200 points, for some laws at
20 times. The size of their errors varies over the domain. Every field is made of the first 4, 8, 20
or 100 members, given totals of the truth, and compared with it. Prints Markdown tables, with a
number for 4, 8, 20 and 100 members in each cell, or - where the update was refused or not tried.

Errors: `independent` from point to point; `smooth`, Matern 3/2 of length 0.2 in space and time;
`front`, a shift of a front by 0.03, with a little noise; `both`, half of the variance independent,
half smooth; `both, known`, the same, but members are smooth and come with the variance of the rest.
"""

import contextlib
import itertools
import math
import statistics
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

import probconserv as pc
from probconserv.diagnostics.metrics import crps

Draw = tuple[Tensor, Tensor, Tensor, Tensor | float]
Row = tuple[float, ...]
COUNTS = (4, 8, 20, 100)
SHARE = {"independent": 0.0, "smooth": 1.0, "front": 0.0, "both": 0.5, "both, known": 0.5}
LAWS = {"1 total": (1, 1), "8 regions": (1, 8), "64 regions": (1, 64), "20 times": (20, 1)}
CHUNKS = 6  # of 40 repeats, or of 8 with 20 times
x, t = (torch.arange(200).double() + 0.5) / 200, (torch.arange(20).double() + 0.5) / 20
rng = torch.Generator()


def modes(points: Tensor, count: int) -> Tensor:  # (count, points)
    """A smooth function of variance 1 is a sum of these with normal weights."""
    d = math.sqrt(3) * (points[:, None] - points).abs() / 0.2
    values, vectors = torch.linalg.eigh((1 + d) * (-d).exp())
    return (vectors * values.clamp_min(0).sqrt()).T[-count:]


IN_X, IN_T = modes(x, 100), modes(t, 20)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def over_time(z: Tensor) -> Tensor:  # (..., times, n)
    return z if z.shape[-2] == 1 else IN_T.T @ z


def draw(kind: str, times: int, spread: float = 1.0) -> Draw:
    """Truth, 100 members, the size of errors, and what is known of their independent variance."""
    n, share = 40 if times == 1 else 8, SHARE[kind]
    centre = normal(n, 1, 100) @ IN_X
    size = (0.7 * normal(n, 1, 100) @ IN_X).exp()
    size = 0.1 * size / size.square().mean(-1, keepdim=True).sqrt()
    scale = torch.tensor([1.0] + [spread] * 100).double().reshape(-1, 1, 1, 1)  # truth, members
    noise = normal(101, n, times, 200)
    if kind == "front":
        shift = 0.03 * scale * over_time(normal(101, n, times, 1))
        u = centre + torch.special.expit((0.5 + shift - x) / 0.01) + 0.02 * scale * noise
        return u[0], u[1:], size, 0.0
    wave = over_time(normal(101, n, times, 100)) @ IN_X
    own = (1 - share) * size.square() if kind == "both, known" else 0.0
    noise[1:] *= kind != "both, known"
    u = centre + scale * size * (math.sqrt(share) * wave + math.sqrt(1 - share) * noise)
    return u[0], u[1:], size, own


def updates(
    kind: str, members: Tensor, own: Tensor | float, size: Tensor, law: pc.laws.Law
) -> dict[str, Callable[[], pc.fields.Field]]:
    count, times = len(members), members.shape[-2]
    mean, variance = members.mean(0), members.var(0) + own
    points, together = pc.Diagonal(mean, variance), 1 if times == 1 else 2

    def ensemble(shrinkage: float | None = None, dims: int = together) -> pc.Posterior:
        return pc.condition(
            pc.Ensemble(members, own, batch_dims=members.ndim - 1 - dims, shrinkage=shrinkage), law
        )

    def correlated(share: float) -> pc.fields.Field:
        return pc.condition(pc.LowRank.correlated(mean, variance, correlation=share), law)

    def mixture() -> pc.fields.Field:  # its moments are enough here, and faster
        each = own if isinstance(own, Tensor) else members.var(0)
        parts = pc.condition(pc.Diagonal(members, each.expand(members.shape)), law)
        return pc.Mixture(parts).gaussian()

    def moved() -> pc.fields.Field:
        after = ensemble().members()
        return pc.Diagonal(after.mean(0), after.var(0))

    def true_covariance() -> pc.fields.Field:
        more, share = 1 + 1 / count, SHARE[kind]
        rest = (1 - share) * size.square() * (1 if isinstance(own, Tensor) else more)
        factor = math.sqrt(share * more) * size * IN_X[:, None, None]
        return pc.condition(pc.LowRank(mean, factor, rest), law)

    found: dict[str, Callable[[], pc.fields.Field]] = {
        "no update": lambda: points,
        "project": lambda: pc.project(points, law),
        "Diagonal": lambda: pc.condition(points, law),
        "Mixture": mixture,
        "correlated 0.5": lambda: correlated(0.5),
        "correlated 0.9": lambda: correlated(0.9),
        "members": ensemble,
        "shrinkage 0": lambda: ensemble(0.0),
        "shrinkage 0.5": lambda: ensemble(0.5),
        "shrinkage 0.9": lambda: ensemble(0.9),
    }
    if times > 1:
        found["each time"] = lambda: ensemble(dims=1)
    if not isinstance(own, Tensor):
        found["`members()`"] = moved
    if times == 1 and kind != "front" and count == COUNTS[-1]:
        found["true covariance"] = true_covariance
    return found


def law_of(name: str, truth: Tensor) -> pc.laws.Law:
    regions = LAWS[name][1]
    labels = torch.arange(200) * regions // 200
    totals = truth.new_zeros(*truth.shape[:-1], regions).index_add(-1, labels, truth)
    return pc.regions(labels, totals)


def score(field: pc.fields.Field, truth: Tensor, prior: pc.fields.Field) -> Tensor:  # (5, repeats)
    off, std = field.mean - truth, field.std
    moved = ((field.mean - prior.mean) / prior.std).abs().flatten(1).amax(1)
    low, high = field.interval(0.9)
    inside, half = ((low <= truth) & (truth <= high)).double(), (high - low) / 2
    values = (off.square(), std * crps(off / std), inside, half)
    return torch.stack([*(v.flatten(1).mean(1) for v in values), moved])


def summary(found: Tensor, before: Tensor) -> Row:
    """RMSE and CRPS over those before, coverage in %, width of intervals over that before, largest
    move; standard error of the RMSE."""
    (mse, loss, inside, width, moved), (mse0, loss0, _, width0, _) = found, before
    rmse = float((mse.mean() / mse0.mean()).sqrt())
    error = (mse - rmse**2 * mse0).std() / (2 * rmse * mse0.mean() * math.sqrt(len(mse)))
    wide = width.mean() / width0.mean()
    rest = (loss.mean() / loss0.mean(), 100 * inside.mean(), wide, moved.mean(), error)
    return rmse, *map(float, rest)


def measure(kind: str, law: str, count: int, drawn: list[Draw]) -> dict[str, Row]:
    kept: dict[str, list[Tensor]] = {}
    for truth, members, size, own in drawn:
        todo = updates(kind, members[:count], own, size, law_of(law, truth))
        for name, update in todo.items():
            with contextlib.suppress(pc.errors.InfeasibleError):
                kept.setdefault(name, []).append(score(update(), truth, todo["no update"]()))
    whole = {name: torch.cat(parts, -1) for name, parts in kept.items() if len(parts) == CHUNKS}
    return {name: summary(scores, whole["no update"]) for name, scores in whole.items()}


def compare() -> None:
    found: dict[str, list[dict[str, Row]]] = {}
    for kind, times in itertools.product(SHARE, (1, 20)):
        rng.manual_seed(times)
        drawn = [draw(kind, times) for _ in range(CHUNKS)]
        for law in (law for law in LAWS if LAWS[law][0] == times):
            found[f"{kind}, {law}"] = [measure(kind, law, count, drawn) for count in COUNTS]
    names = list(dict.fromkeys(n for rows in found.values() for row in rows[::-1] for n in row))
    for number, what in enumerate(("RMSE", "CRPS", "% in 90 %", "width", "largest move")):
        digits = (2, 2, 0, 2, 1)[number]
        print(f"\n| {what} | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
        for case, rows in found.items():
            cells = ([f"{r[n][number]:.{digits}f}" if n in r else "-" for r in rows] for n in names)
            text = (" ".join(c) if set(c) != {"-"} else "-" for c in cells)
            print(f"| {case} | {' | '.join(text)} |")
    errors = [row[5] for rows in found.values() for r in rows for row in r.values()]
    print(f"\nStandard errors of the RMSE: {statistics.median(errors):.3f} (median); ", end="")
    print(f"nine of ten below {statistics.quantiles(errors, n=10)[-1]:.3f}.")


def overconfident() -> None:
    print("\n| a third of the spread | members | field | RMSE | CRPS | % in 90 % ", end="")
    print("| CRPS, inflated | % in 90 %, inflated |\n|---|---|---|---|---|---|---|---|")
    for kind, law in itertools.product(("independent", "smooth", "both"), ("1 total", "8 regions")):
        rng.manual_seed(1)
        drawn = [draw(kind, 1, 1 / 3) for _ in range(CHUNKS)]
        for count, name in itertools.product((4, 20), ("Diagonal", "members")):
            parts = []
            for truth, members, _, _ in drawn:
                some, rows = members[:count], law_of(law, truth)
                points = pc.Diagonal(some.mean(0), some.var(0))
                field = (
                    points if name == "Diagonal" else pc.Ensemble(some, batch_dims=some.ndim - 2)
                )
                after = (pc.condition(f, rows) for f in (field, pc.inflate(field, rows)))
                parts.append(torch.stack([score(f, truth, points) for f in (points, *after)]))
            before, plain, wide = torch.cat(parts, -1)
            a, b = summary(plain, before), summary(wide, before)
            print(f"| {kind}, {law} | {count} | {name} | {a[0]:.2f} | {a[1]:.2f} ", end="")
            print(f"| {a[2]:.0f} | {b[1]:.2f} | {b[2]:.0f} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", pc.ImplausibleWarning)
    compare()
    overconfident()
