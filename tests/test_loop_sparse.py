"""Inequalities beside many rows that read few points each: the same as with matrices."""

import numpy as np
import pytest
import torch
from kkt import distance_from_optimal
from seeds import SEED, generator

import probconserv as pc
from probconserv.conditioning.loop import factors, layout

pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")


def by_entries(monkeypatch, way="factor"):
    """All rows by their entries, however few; solved by a factor or without one."""
    monkeypatch.setattr(layout, "FEW", -1)
    monkeypatch.setattr(layout, "SHARED", 1e9)
    if way == "gradients":
        monkeypatch.setattr(factors, "EASY_FACTOR", 0)


def cells(n=4, m=5, intervals=2, grad=False):
    """A state of cells and faces, the law of each cell, and that nothing is negative."""
    rng = np.random.default_rng([SEED, 1])
    edges = [np.linspace(0, 1, k + 1) for k in (n, m)]
    mesh = pc.Mesh(x=edges[0], y=edges[1], periodic=("x", "y"))
    fields = {}
    for name, times in (("u", intervals + 1), ("fx", intervals), ("fy", intervals)):
        variance = 10.0 ** rng.uniform(-2, 0, (times, n, m))
        mean = torch.as_tensor(0.3 + rng.normal(size=variance.shape) * np.sqrt(variance))
        fields[name] = pc.Diagonal(mean.requires_grad_(grad), variance)
    law = pc.cell_budgets(mesh, np.linspace(0, 1, intervals + 1), fluxes=("fx", "fy"))
    return pc.State(**fields), law, pc.bounds(low=0.0, of="u")


def map_of_members(n=7, m=5):
    """A map with members that falls nowhere along one axis, is positive and has a total."""
    rng = np.random.default_rng([SEED, 2])
    mean = np.linspace(-0.2, 1, n)[:, None] + 0.3 * rng.normal(size=(n, m))
    field = pc.LowRank(mean, 0.2 * rng.normal(size=(3, n, m)), np.full((n, m), 0.04), event_dims=2)
    total = pc.weighted_sum(np.full((n, m), 1 / (n * m)), 0.5)
    return field, total, pc.monotone(axis=0), pc.bounds(low=0.0)


def smooth(n=20):
    """Values that are smooth, up to noise, not negative and have a total."""
    rng, x = np.random.default_rng([SEED, 3]), np.linspace(0, 1, n)
    field = pc.Diagonal(np.sin(9 * x) + 0.2 * rng.normal(size=n), 0.04)
    return field, pc.smoothness(x, np.full(n, 0.04), 0.9), pc.integral(x, 0.4), pc.bounds(low=0.0)


def tables(post):
    """Point and draws, of a field or of a state."""
    parts = list(post.parts) if hasattr(post, "parts") else [post]
    return torch.cat([torch.cat([p.point[None], p.draws]).flatten(1) for p in parts], 1)


@pytest.mark.parametrize("way", ["factor", "gradients"])
@pytest.mark.parametrize("problem", [cells, map_of_members, smooth])
def test_entries_and_matrices_give_the_same_fields(monkeypatch, problem, way):
    expected = tables(pc.condition(*problem(), draws=3, generator=generator()))
    by_entries(monkeypatch, way)
    found = tables(pc.condition(*problem(), draws=3, generator=generator()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("way", ["factor", "gradients"])
def test_entries_and_matrices_give_the_same_gradients(monkeypatch, way):
    def gradients():
        given = cells(grad=True)
        post = pc.condition(*given, draws=2, generator=generator())
        means = [part.mean for part in given[0].parts]
        loss = sum((post[k].draws.sin().sum() + post[k].point.sum()) for k in ("u", "fx"))
        return torch.autograd.grad(loss, means)

    expected = gradients()
    by_entries(monkeypatch, way)
    for one, other in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


def test_many_cells_obey_their_budgets_and_are_the_nearest():
    state, law, low = cells(20, 27, 2)
    post = pc.condition(state, law, low, draws=0)
    assert float(post["u"].point.min()) == 0.0
    assert (law.residual(post).abs() <= 1e-12 * law.magnitude(post)).all()
    # D^-1 (u - mean) is G^T lambda, and more where a cell is at its bound
    names = ("u", "fx", "fy")
    unit = torch.eye(1080, dtype=torch.float64).reshape(1080, 2, 20, 27)
    maps = {k: law.maps[k].on(state[k].shape) for k in names}
    rows = torch.cat([maps[k].adjoint(unit).flatten(1) for k in names], 1)
    pull = torch.cat(
        [((post[k].point - state[k].mean) / state[k].variance).flatten() for k in names]
    )
    held = torch.cat([(post[k].point == 0).flatten() & (k == "u") for k in names])
    multiplier = torch.linalg.lstsq(rows[:, ~held].T, pull[~held, None]).solution[:, 0]
    left = pull - rows.T @ multiplier
    assert left[~held].abs().max() < 1e-6 * pull.abs().max()
    assert left[held].min() > -1e-6 * pull.abs().max()
    assert (post["u"].std[post["u"].point == 0] == 0).all()
    again = pc.condition(state, law, low, draws=2, generator=generator())
    torch.testing.assert_close(again["fx"].point, post["fx"].point, rtol=0, atol=1e-10)


def test_a_large_map_rises_along_one_axis_and_keeps_its_total():
    field, total, rises, low = map_of_members(50, 40)
    post = pc.condition(field, total, rises, low, draws=2, generator=generator())
    for u in (*post.draws, post.point):
        assert float(u.min()) == 0.0
        assert float(u.diff(dim=0).min()) == 0.0
    assert total.residual(post.draws).abs().max() < 1e-12
    alone = pc.condition(field, total, rises, low, draws=0)
    torch.testing.assert_close(alone.point, post.point, rtol=0, atol=1e-10)
    assert alone.std[alone.point == 0].max() < 1e-8


def test_order_in_time_on_a_map_is_the_nearest(monkeypatch):
    rng = np.random.default_rng([SEED, 4])
    mean, n = rng.normal(size=(4, 3, 2)), 24
    weights = rng.random((4, 3, 2))
    total = pc.weighted_sum(weights, 3.0)
    by_entries(monkeypatch)
    given = pc.Diagonal(mean, 0.5), total, pc.monotone(axis=0)
    post = pc.condition(*given, draws=2, generator=generator())
    order = np.eye(n)[6:] - np.eye(n)[:-6]
    off = distance_from_optimal(
        post.point.numpy().ravel(),
        mean.ravel(),
        0.5 * np.eye(n),
        weights.reshape(1, n),
        order,
        np.zeros(n - 6),
    )
    assert off < 1e-6


def test_rows_that_are_too_closely_tied_are_refused_in_words(monkeypatch):
    by_entries(monkeypatch, "gradients")
    monkeypatch.setattr(factors, "STEPS", 1)
    monkeypatch.setattr(factors, "MOST_NUMBERS", 10)
    with pytest.raises(pc.errors.InputError, match=r"`laws`: 40 rows that are tied .* Ways out"):
        pc.condition(*cells(), draws=2, generator=generator())
