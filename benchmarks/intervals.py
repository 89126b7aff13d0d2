"""How often 90 % intervals of few members hold the truth: `python benchmarks/intervals.py`.

Members and truth are drawn alike about a centre that nobody knows, on 40 points, and the totals are
those of the truth. Prints Markdown tables with the share in % for 4, 8 and 20 members; in brackets
that of mean +- 1.645 standard deviations. A - stands where the update or the interval is refused.

Errors: `independent` from point to point; `smooth`, Matern 3/2 of a length of a fifth of the
domain; `long`, of five times the domain; `both`, half of the variance independent, half smooth. The
size of errors varies over the domain. The last table is of forecasts with their past errors as
members: a total, 10 groups, 100 series.
"""

import math
import warnings

import torch
from torch import Tensor

import probconserv as pc

POINTS, REPEATS, COUNTS = 40, 4000, (4, 8, 20)
ERRORS = {"independent": (0.0, 0.2), "both": (0.5, 0.2), "smooth": (1.0, 0.2), "long": (1.0, 5.0)}
x = (torch.arange(POINTS).double() + 0.5) / POINTS
rng = torch.Generator()


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def smooth(count: int, repeats: int, length: float) -> Tensor:  # (count, repeats, points)
    d = math.sqrt(3) * (x[:, None] - x).abs() / length
    matrix = (1 + d) * (-d).exp() + 1e-10 * torch.eye(POINTS)
    return normal(count, repeats, POINTS) @ torch.linalg.cholesky(matrix).T


def draw(kind: str, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Errors of the truth and the members: shared by points, alone; and the size of both."""
    share, length = ERRORS[kind]
    size = (0.7 * smooth(1, REPEATS, 0.2)).exp()
    shared = math.sqrt(share) * smooth(1 + count, REPEATS, length)
    alone = math.sqrt(1 - share) * normal(1 + count, REPEATS, POINTS)
    return (size * shared)[:, :, None], (size * alone)[:, :, None], size[0][:, None]


def regions(truth: Tensor, count: int, noise: float) -> pc.laws.Law:
    labels = torch.arange(POINTS) * count // POINTS
    totals = truth.new_zeros(*truth.shape[:-1], count).index_add(-1, labels, truth)
    if not noise:
        return pc.regions(labels, totals)
    std = (noise * totals.std(0, keepdim=True)).expand(totals.shape)
    return pc.regions(labels, totals + std * normal(*totals.shape), noise=std)


def inside(field: pc.fields.Field, truth: Tensor, at: slice = slice(None)) -> str:
    low, high = field.interval(0.9)
    held = ((low <= truth) & (truth <= high))[..., at].double().mean()
    plain = ((field.mean - truth).abs() <= 1.645 * field.std)[..., at].double().mean()
    return f"{100 * held:.1f} ({100 * plain:.0f})"


def cell(
    kind: str, count: int, rows: int, shrinkage: float | None, noise: float, known: bool
) -> str:
    rng.manual_seed(count)
    shared, alone, size = draw(kind, count)
    members, rest = shared + alone, 0.0
    if known:  # of members: they come with the variance of what they lack
        members, rest = shared.clone(), (1 - ERRORS[kind][0]) * size.square()
        members[0] += alone[0]
    field: pc.fields.Field = pc.Ensemble(
        members[1:], rest, batch_dims=members.ndim - 2, shrinkage=shrinkage
    )
    try:
        if rows:
            field = pc.condition(field, regions(members[0], rows, noise))
        return inside(field, members[0])
    except pc.ProbConservError:
        return "-"


def table(name: str, *columns: tuple[str, int, float | None, float, bool]) -> None:
    print(f"\n| {name} | {' | '.join(c[0] for c in columns)} |\n|{'---|' * (len(columns) + 1)}")
    for kind in ERRORS:
        cells = []
        for _, *how in columns:
            cells.append(", ".join(cell(kind, count, *how) for count in COUNTS))
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)


def forecasts(correlation: float, off: float, count: int) -> tuple[Tensor, Tensor]:
    """Errors of a total, 10 groups and 100 series, (1 + count, repeats, 1, 111); the rows."""
    shared, alone = normal(1 + count, 400, 1, 1), normal(1 + count, 400, 10, 10)
    e = math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * alone
    sums = [e.sum((-1, -2))[..., None], e.sum(-1), e.flatten(-2)]
    sums = [s + off * s.std() * normal(*s.shape) * (n < 2) for n, s in enumerate(sums)]
    rows = torch.zeros(11, 111).double()
    rows[:, :11] = torch.eye(11)
    rows[0, 1:11] = -1
    for i in range(10):
        rows[1 + i, 11 + 10 * i : 21 + 10 * i] = -1
    return torch.cat(sums, -1)[:, :, None], rows


def hierarchy() -> None:
    print("\n| forecasts and past errors | 8 | 20 | 100 |\n|---|---|---|---|")
    parts = {"total": slice(0, 1), "groups": slice(1, 11), "series": slice(11, None)}
    for correlation in (0.0, 0.5, 0.9):
        cells: dict[str, list[str]] = {name: [] for name in parts}
        for count in (8, 20, 100):
            rng.manual_seed(count)
            errors, rows = forecasts(correlation, 0.3, count)
            forecast, truth = -errors[0], torch.zeros_like(errors[0])
            post = pc.condition(
                pc.Ensemble(forecast + errors[1:], batch_dims=errors.ndim - 2),
                pc.linear(rows, torch.zeros(11)),
            )
            for name, at in parts.items():
                cells[name].append(inside(post, truth, at))
        for name, each in cells.items():
            print(f"| correlation {correlation}, {name} | {' | '.join(each)} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", pc.ImplausibleWarning)
    table("found", ("no law", 0, None, 0.0, False), ("1 total", 1, None, 0.0, False))
    table("found", ("8 regions", 8, None, 0.0, False), ("1, noise", 1, None, 0.5, False))
    table("found", ("8, noise", 8, None, 0.5, False), ("1, known rest", 1, None, 0.0, True))
    table("shrinkage 0", ("1 total", 1, 0.0, 0.0, False), ("8 regions", 8, 0.0, 0.0, False))
    table("shrinkage 0", ("1, noise", 1, 0.0, 0.5, False), ("1, known rest", 1, 0.0, 0.0, True))
    table("shrinkage 0.5", ("1 total", 1, 0.5, 0.0, False), ("8 regions", 8, 0.5, 0.0, False))
    hierarchy()
