"""Roots of sums within bounds, block by block, against the field as a whole."""

from fractions import Fraction
from math import fsum

import numpy as np
import pytest

from probconserv._block_roots import Block, bounded_roots
from probconserv._errors import InfeasibleError, InputError


class Blocks:
    """A field in blocks, and how often it was read."""

    def __init__(self, *parts, size=7):
        self.parts = np.broadcast_arrays(*parts)
        self.size, self.reads = size, 0

    def __call__(self):
        self.reads += 1
        for i in range(0, len(self.parts[0]), self.size):
            yield Block(*(x[i : i + self.size] for x in self.parts))


def field(points, rows=1, seed=0, low=0.0, high=np.inf):
    """Mean, variance, weights, bounds, labels."""
    rng = np.random.default_rng(seed)
    mean, variance = 0.2 + 0.3 * rng.standard_normal(points), rng.random(points) ** 2
    return mean, variance, rng.random(points) + 0.1, low, high, rng.integers(0, rows, points)


def row_sums(weights, u, labels, rows):
    return np.array([fsum((weights * u)[labels == r]) for r in range(rows)])


def check(parts, totals, **how):
    """The field after the move, within its bounds and with the totals, and the roots."""
    blocks = Blocks(*parts, size=how.pop("size", 7))
    roots = bounded_roots(blocks, np.asarray(totals), **how)
    whole = Block(*blocks.parts)
    u = roots.apply(whole)
    assert roots.passes == blocks.reads
    assert (u >= whole.low).all()
    assert (u <= whole.high).all()
    found = row_sums(whole.weights, u, whole.labels, len(totals))
    start = np.clip(whole.mean, whole.low, whole.high)
    terms = [row_sums(abs(whole.weights), abs(x), whole.labels, len(totals)) for x in (u, start)]
    assert (abs(found - totals) <= 1e-12 * (sum(terms) + abs(np.asarray(totals)))).all()
    return u, roots


def by_sorting(mean, variance, weights, low, high, total):
    """lambda in rational numbers: F at every breakpoint, then a straight line."""
    exact = lambda x: None if np.isinf(x) else Fraction(float(x))  # noqa: E731
    points = [tuple(map(exact, p)) for p in zip(mean, variance, weights, low, high, strict=True)]

    def sums(tilt):
        moved = ((g, y - tilt * d * g, a, b) for y, d, g, a, b in points)
        held = ((g, u if a is None else max(u, a), b) for g, u, a, b in moved)
        return sum(g * (u if b is None else min(u, b)) for g, u, b in held)

    marks = [
        (y - e) / (d * g) for y, d, g, a, b in points for e in (a, b) if d * g and e is not None
    ]
    marks = [min(marks) - 1, *sorted(marks), max(marks) + 1]
    values = [sums(m) for m in marks]
    k = sum(v > total for v in values)
    k = min(max(k, 1), len(marks) - 1)
    left, right, above, below = marks[k - 1], marks[k], values[k - 1], values[k]
    return float(
        left if above == below else left + (above - total) * (right - left) / (above - below)
    )


@pytest.mark.parametrize("capacity", [1, 3, 1000])
@pytest.mark.parametrize("share", [0.01, 0.8, 1.0, 3.0])
def test_the_root_is_that_of_sorted_breakpoints_in_rational_numbers(share, capacity):
    mean, variance, weights, low, high, labels = np.broadcast_arrays(*field(25, high=1.5))
    total = share * (weights * np.clip(mean, low, high)).sum()
    total = min(total, 0.99 * (weights * high).sum())
    _, roots = check((mean, variance, weights, low, high, labels), [total], capacity=capacity)
    wanted = by_sorting(mean, variance, weights, low, high, Fraction(total))
    assert roots.tilt[0] == pytest.approx(wanted, rel=1e-11, abs=1e-13)


def test_a_field_that_moves_little_is_read_once():
    parts = field(5000, rows=3)
    mean, _, weights, *_, labels = parts
    totals = 0.99 * row_sums(weights, mean.clip(0), labels, 3)
    _, roots = check(parts, totals, size=640, capacity=1200)
    assert roots.passes == 1


@pytest.mark.parametrize("capacity", [1, 10, 10_000])
def test_rows_together_are_rows_one_by_one(capacity):
    parts = mean, variance, weights, low, high, labels = field(400, rows=5, high=1.0)
    totals = row_sums(weights, mean.clip(0, 1), labels, 5) * [0.1, 0.5, 1.0, 1.2, 1.5]
    u, _ = check(parts, totals, size=37, capacity=capacity)
    for r in range(5):
        own = labels == r
        alone, _ = check((mean[own], variance[own], weights[own], low, high, 0), [totals[r]])
        np.testing.assert_allclose(u[own], alone, rtol=1e-10, atol=1e-13)


def test_any_sign_scale_tie_and_capacity_meets_the_totals():
    rng = np.random.default_rng(0)
    for _ in range(150):
        n, rows = rng.integers(1, 60), rng.integers(1, 4)
        unit = 10.0 ** rng.choice([0, 0, 0, 5, -150, -300])
        mean = rng.standard_normal(n) * 10.0 ** -rng.uniform(0, rng.choice([0, 8]), n)
        mean = unit * (np.round(mean) if rng.random() < 0.3 else mean)
        variance = unit * rng.random(n) * 10.0 ** -rng.uniform(0, rng.choice([0, 6, 40]), n)
        variance *= rng.random(n) > 0.1
        weights = rng.random(n) * rng.choice([-1, 1], n) * (rng.random(n) > 0.1)
        low = np.where(rng.random(n) < 0.3, -np.inf, -unit * rng.random(n))
        high = np.where(rng.random(n) < 0.3, np.inf, unit * rng.random(n))
        some = np.clip(unit * rng.choice([1, 1e-3, 100]) * rng.standard_normal(n), low, high)
        some = np.where(variance == 0, np.clip(mean, low, high), some)
        labels = rng.integers(0, rows, n)
        totals = row_sums(weights, some, labels, rows)
        how = {"capacity": int(rng.choice([1, 2, 5, 1000])), "size": int(rng.integers(1, 70))}
        _, roots = check((mean, variance, weights, low, high, labels), totals, **how)
        assert roots.passes < 12


def test_a_field_that_lies_at_its_bound_everywhere_can_rise_and_cannot_fall():
    parts = np.zeros(100), np.ones(100), np.ones(100), 0.0, np.inf, 0
    for capacity in (1, 1000):
        u, _ = check(parts, [50.0], capacity=capacity)
        np.testing.assert_allclose(u, 0.5, rtol=1e-14)
        u, _ = check(parts, [0.0], capacity=capacity)
        assert not u.any()


def test_breakpoints_over_six_hundred_orders_of_magnitude_are_found():
    high = 10.0 ** np.linspace(-300, 300, 301)
    for total in (1e-290, 1e-5, 1.0, 1e200):
        u, roots = check(
            (np.zeros(301), np.ones(301), np.ones(301), 0.0, high, 0), [total], capacity=2
        )
        assert roots.passes < 70
        assert u.sum() == pytest.approx(total, rel=1e-12)


def test_ten_thousand_points_through_a_capacity_of_ten():
    parts = field(10_000)
    total = 0.3 * fsum(parts[2] * parts[0].clip(0))
    few, roots = check(parts, [total], size=1000, capacity=10)
    all_at_once, _ = check(parts, [total], size=1000)
    np.testing.assert_allclose(few, all_at_once, rtol=1e-11, atol=1e-13)
    assert roots.passes < 20


def test_many_points_keep_all_digits():
    mean, variance, weights, *_ = field(400_000)
    total = 0.9 * fsum(weights * mean.clip(0))
    blocks = Blocks(mean, variance, weights, 0.0, np.inf, 0, size=80_000)
    u = bounded_roots(blocks, np.array([total]), capacity=20_000).apply(Block(*blocks.parts))
    assert fsum(weights * u) == pytest.approx(total, rel=1e-14)


def test_no_more_points_are_held_than_the_capacity_and_a_block(monkeypatch):
    from probconserv import _block_roots

    held, add = [], _block_roots._Window.add

    def watched(window, points):
        add(window, points)
        held.append(len(window.kept))

    monkeypatch.setattr(_block_roots._Window, "add", watched)
    parts = field(3000, rows=4)
    totals = 0.5 * row_sums(parts[2], parts[0].clip(0), parts[-1], 4)
    check(parts, totals, size=100, capacity=50)
    assert max(held) <= 50


def test_totals_out_of_reach_are_refused_with_what_can_be_reached():
    read = Blocks(np.ones(4), np.ones(4), np.full(4, 0.5), 0.0, 3.0, [0, 0, 1, 1])
    with pytest.raises(InfeasibleError, match=r"3.5, of row 1, .* from 0 to 3"):
        bounded_roots(read, np.array([1.0, 3.5]))
    roots = bounded_roots(read, np.array([1.0, 3.0]))
    assert list(roots.most) == [3, 3]
    np.testing.assert_array_equal(roots.apply(Block(*read.parts)), [1, 1, 3, 3])


def test_rows_without_points_or_variance_must_hold_already():
    fixed = Blocks(np.ones(2), np.zeros(2), np.ones(2), 0.0, np.inf, 0)
    assert bounded_roots(fixed, np.array([2.0, 0.0])).passes == 1
    with pytest.raises(InfeasibleError, match="from 0 to 0"):
        bounded_roots(fixed, np.array([2.0, 1.0]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({0: np.nan}, "`mean` must be finite"),
        ({1: -1.0}, "`variance` must be >= 0"),
        ({2: np.inf}, "`weights` must be finite"),
        ({3: 9.0}, "`low` must not be above `high`"),
        ({5: 1}, "`labels` must be from 0 to 0"),
    ],
)
def test_what_cannot_be_used_is_named(changes, words):
    parts = [np.ones(3), np.ones(3), np.ones(3), 0.0, 5.0, 0]
    for place, value in changes.items():
        parts[place] = np.full(3, value)
    with pytest.raises(InputError, match=words):
        bounded_roots(Blocks(*parts), np.array([2.0]))


def test_totals_and_capacity_are_checked():
    read = Blocks(np.ones(3), np.ones(3), np.ones(3), 0.0, 5.0, 0)
    with pytest.raises(InputError, match="`totals` must be finite"):
        bounded_roots(read, np.array([np.nan]))
    with pytest.raises(InputError, match="`capacity` must be a positive"):
        bounded_roots(read, np.array([2.0]), capacity=0)
