"""Fixers: budgets close, jointly and most probably, without negative values."""

import copy

import pytest
import torch
from weather import FLUXES, STEP, air, grid_of, levels_of, stepped

import probconserv as pc
from probconserv.weather import Fixer, Grid, Levels

SHIFTS = {"surface_pressure": -50, "temperature": 1}
LAWS = ("dry_air", "water", "energy")


def case(members=2, dtype=torch.float64, grid=None, levels=None):
    grid, levels = grid or grid_of(), levels or levels_of()
    before = air(grid, levels, members, dtype)
    return Fixer(grid, levels), before, stepped(before)


def off(fixer, fixed):
    """The largest difference from the targets, relative to these."""
    found, targets = fixer.totals(fixed), fixer.targets()
    return max(float(((found[law] - t) / t).abs().max()) for law, t in targets.items())


def by_hand(state, grid, levels, g=9.80665, cp=1004.64, heat=2.501e6):
    """Dry air, water and energy by plain sums over half levels."""
    half = levels.a[:, None, None] + levels.b[:, None, None] * state["surface_pressure"][:, None]
    mass = half.diff(dim=1) / g
    q, t = state["specific_humidity"], state["temperature"]
    each = (mass * (1 - q), mass * q, mass * (cp * t + heat * q))
    return torch.stack([(x.sum(1) * grid.areas).sum((1, 2)) for x in each], -1)


def test_all_budgets_close_to_rounding():
    fixer, before, after = case()
    fixed = fixer(before, after, STEP, FLUXES)
    start, end = (by_hand(each, fixer.grid, fixer.levels) for each in (before, fixed))
    rain = (fixed["precipitation"] * fixer.grid.areas).sum((1, 2))
    gain = torch.stack([0 * rain, 3e-5 - rain, -1.5 + 0 * rain], -1) * STEP
    torch.testing.assert_close(end, start + gain, rtol=1e-13, atol=0)


def test_nothing_is_negative_and_inputs_are_as_they_were():
    fixer, before, after = case()
    kept = copy.deepcopy((before, after))
    fixed = fixer(before, after, STEP, FLUXES)
    assert min(float(after[n].min()) for n in ("specific_humidity", "precipitation")) < 0
    assert min(float(fixed[n].min()) for n in ("specific_humidity", "precipitation")) == 0
    for old, new in zip(kept, (before, after), strict=True):
        assert all(bool((old[name] == new[name]).all()) for name in old)


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")  # it rains too much
def test_it_is_the_most_probable_state():
    """As found by the engine for any law, in units of the errors, where nothing is near zero."""
    grid, levels = grid_of(4, 5), levels_of(3)
    before = air(grid, levels, 1)
    before["precipitation"] += 1e-4
    before["specific_humidity"] += 1e-3
    after = before | {name: before[name] + x for name, x in SHIFTS.items()}
    std = {
        "surface_pressure": torch.tensor(80.0),
        "precipitation": torch.tensor(2e-5),
        "temperature": torch.tensor([0.5, 2.0, 1.0])[:, None, None].expand(3, 4, 5),
        "specific_humidity": 0.05 * after["specific_humidity"][0],
    }
    fixed = Fixer(grid, levels, std)(before, after, STEP, FLUXES)
    thick = (levels.count * levels.shares)[:, None, None].sqrt()
    width = {name: x / thick if x.ndim == 3 else x for name, x in std.items()}
    value = by_hand(before, grid, levels)[0] + STEP * torch.tensor([0.0, 3e-5, -1.5])

    def rows(s):
        one = {name: (after[name][0] + width[name] * x)[None] for name, x in s.items()}
        rain = STEP * (one["precipitation"] * grid.areas).sum()
        return (by_hand(one, grid, levels)[0] + rain * torch.tensor([0.0, 1.0, 0.0])) / value * 1e3

    cells = grid.areas.mean() / grid.areas  # alike per area
    prior = {n: pc.Diagonal(0 * x[0], cells.expand_as(x[0])) for n, x in after.items()}
    point = pc.condition(pc.State(**prior), pc.nonlinear(rows, 1e3)).point
    for name, x in after.items():
        change = width[name] * point[name]
        near = 1e-6 * float(change.abs().max())
        torch.testing.assert_close(fixed[name][0] - x[0], change, rtol=0, atol=near)


def test_held_points_have_nothing_to_gain():
    """At a point held at zero the law would only gain by a negative value."""
    fixer, before, after = case()
    std = {"specific_humidity": 3e-3}  # far more than there is at the top
    wet = after | {"specific_humidity": after["specific_humidity"] * 1.3}
    fixed = fixer(before, wet, STEP, FLUXES, std=std)
    q, old = fixed["specific_humidity"], wet["specific_humidity"].clamp(0.0)
    mass = fixer.levels.thickness(fixed["surface_pressure"])
    share = (5 * fixer.levels.shares)[:, None, None]
    worth = (q - old) / mass * share  # the same wherever q is free
    free = q > 0
    middle = worth[free].median()
    assert 0.1 < float((~free).double().mean()) < 0.9
    torch.testing.assert_close(worth[0][free[0]], worth[0][free[0]][0].expand(int(free[0].sum())))
    assert float(middle) < 0
    assert bool((worth[~free] >= 3 * middle).all())
    assert off(fixer, fixed) < 1e-13


@pytest.mark.parametrize("law", LAWS)
def test_a_law_alone_closes_and_needs_only_its_variables(law):
    grid, levels = grid_of(), levels_of()
    needed = {"dry_air": [], "water": ["precipitation"], "energy": ["temperature"]}[law]
    names = ["surface_pressure", "specific_humidity", *needed]
    before = {name: x for name, x in air(grid, levels).items() if name in names}
    whole = stepped(air(grid, levels))
    fixer = Fixer(grid, levels, laws=[law])
    fixed = fixer(before, {name: whole[name] for name in names}, STEP, FLUXES)
    assert list(fixed) == names
    assert off(fixer, fixed) < 1e-13


@pytest.mark.parametrize("name", ["surface_pressure", "temperature", "specific_humidity"])
def test_variables_may_have_dtypes_of_their_own(name):
    fixer, before, after = case()
    fixed = fixer(before, after | {name: after[name].float()}, STEP, FLUXES)
    assert {n: x.dtype == torch.float32 for n, x in fixed.items()} == {n: n == name for n in fixed}
    assert off(fixer, fixed) < 1e-7


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")  # the air is dry
def test_a_uniform_state_whose_points_all_round_alike_is_fixed():
    fixer, before, after = case(dtype=torch.float32)
    dry = {name: torch.zeros_like(before[name]) for name in ("specific_humidity", "precipitation")}
    assert off(fixer, fixer(before | dry, after | dry, STEP, FLUXES)) < 1e-6


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")  # moves beside tiny errors
@pytest.mark.parametrize("std", [0.02, 1e-20])
def test_errors_of_any_size_will_do(std):
    """Where all errors are tiny, and where that of humidity is far too large."""
    fixer, before, after = case()
    every = dict.fromkeys(after, std) if std < 1e-9 else {"specific_humidity": std}
    assert off(fixer, fixer(before, after, STEP, FLUXES, std=every)) < 1e-10


def test_a_level_that_a_step_leaves_alone_is_hardly_corrected():
    fixer, before, after = case()
    after["temperature"][:, 0] = before["temperature"][:, 0]
    moved = fixer(before, after, STEP, FLUXES)["temperature"] - after["temperature"]
    assert moved[:, 0].abs().max() < 1e-2 * moved[:, 1:].abs().max()


def test_errors_that_are_not_given_are_those_of_what_the_step_changes():
    fixer, before, after = case()
    areas, moist = fixer.grid.areas, {"specific_humidity": 1e-4}
    change = {n: (after[n] - before[n]) ** 2 for n in SHIFTS}
    level = {n: (x * areas).sum((-2, -1), keepdim=True).expand_as(x) for n, x in change.items()}
    pressure = (level["surface_pressure"] + change["surface_pressure"]) / 2
    said = moist | {"surface_pressure": pressure**0.5, "temperature": level["temperature"] ** 0.5}
    found = fixer(before, after, STEP, FLUXES, std=moist)
    wanted = Fixer(fixer.grid, fixer.levels)(before, after, STEP, FLUXES, std=said)
    for name, x in wanted.items():
        torch.testing.assert_close(found[name], x, rtol=1e-10, atol=0)


GRIDS = {
    "healpix": Grid.healpix(2),
    "faces": Grid.healpix(2, faces=True),
    "gaussian": Grid.gaussian(6, 11),
    "areas": Grid(torch.rand(9, 4, 3, generator=torch.Generator().manual_seed(0))),
}


@pytest.mark.parametrize("name", GRIDS)
def test_budgets_close_on_any_grid(name):
    fixer, before, after = case(3, grid=GRIDS[name])
    assert off(fixer, fixer(before, after, STEP, FLUXES)) < 1e-13


def test_budgets_close_on_pressure_levels_that_the_surface_cuts():
    levels = Levels.pressure([100.0, 2e4, 5e4, 8e4, 9.9999e4, 1.01e5])
    fixer, before, after = case(3, levels=levels)
    fixed = fixer(before, after, STEP, FLUXES)
    assert off(fixer, fixed) < 1e-13
    old, new = (s["surface_pressure"].flatten() - levels.a[1:-1, None] for s in (after, fixed))
    assert not bool((old * new < 0).any())  # no column crosses an edge
    assert bool((new == 0).any())  # some stop there


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")  # nothing evaporates
def test_corrections_do_not_depend_on_the_size_of_cells():
    """Small cells near the poles, thin layers at the top: the same correction."""
    fixer, before, _ = case()
    flat = {name: torch.full_like(x, float(x.mean())) for name, x in before.items()}
    std = {"temperature": 1.0, "specific_humidity": 1e-4}
    loss = flat | {"temperature": flat["temperature"] - 0.5}
    fixed = fixer(flat, loss, STEP, std=std)
    moved = fixed["temperature"] - loss["temperature"]
    assert float(moved.max() - moved.min()) < 1e-3 * float(moved.mean())


def test_members_are_fixed_one_by_one():
    fixer, before, after = case(3)
    together = fixer(before, after, STEP, FLUXES)
    for i in range(3):
        alone = Fixer(fixer.grid, fixer.levels)
        one = alone(
            *({n: x[i : i + 1] for n, x in s.items()} for s in (before, after)), STEP, FLUXES
        )
        for name, x in one.items():
            torch.testing.assert_close(x[0], together[name][i], rtol=1e-10, atol=1e-16)


def test_blocks_give_what_the_whole_gives(monkeypatch):
    fixer, before, after = case(3)
    learns = after | {"temperature": after["temperature"].clone().requires_grad_()}
    whole = fixer(before, learns, STEP, FLUXES)
    assert whole["surface_pressure"].requires_grad
    monkeypatch.setattr("probconserv.weather._close.BLOCK", 64)
    pieces = Fixer(fixer.grid, fixer.levels)(before, after, STEP, FLUXES)
    for name, x in whole.items():
        torch.testing.assert_close(pieces[name], x.detach(), rtol=1e-11, atol=1e-18)


def test_a_wider_error_takes_more_of_the_correction():
    fixer, before, _ = case()
    only = {"surface_pressure": 0.0, "specific_humidity": 0.0, "temperature": torch.zeros(5)}
    only["temperature"][1] = 1.0  # with a variance of 0 at all other levels
    cold = before | {"temperature": before["temperature"] - 1}
    fixed = Fixer(fixer.grid, fixer.levels, only, laws=["energy"])(before, cold, STEP)
    moved = (fixed["temperature"] - cold["temperature"]).abs().amax((0, 2, 3))
    assert [bool(x > 0) for x in moved] == [False, True, False, False, False]


def test_the_spread_of_members_says_where_to_correct():
    fixer, before, after = case(4)
    after["temperature"] = before["temperature"].mean(0, keepdim=True).repeat(4, 1, 1, 1)
    north = torch.arange(7) < 3
    spread = torch.linspace(-3, 3, 4, dtype=torch.float64)[:, None, None, None]
    after["temperature"] = after["temperature"] + spread * (0.1 + 3 * north[:, None]) - 1
    fixed = fixer(before, after, STEP, FLUXES, members=4)
    moved = (fixed["temperature"] - after["temperature"])[0, -1].abs().mean(-1)
    assert float(moved[:3].min()) > 2 * float(moved[3:].max())  # 4 members do not say much
    assert off(fixer, fixed) < 1e-13


def test_what_is_counted_and_not_moved_stays():
    fixer, before, after = case()
    others = {
        "cloud_liquid": torch.full_like(after["temperature"], 1e-5),
        "cloud_ice": torch.full_like(after["temperature"], 2e-5),
        "eastward_wind": torch.full_like(after["temperature"], 20.0),
        "northward_wind": torch.full_like(after["temperature"], -3.0),
        "surface_geopotential": torch.linspace(0, 3e4, 84).reshape(7, 12).double(),
        "a tracer": torch.ones(2),
    }
    fixed = fixer(before | others, after | others, STEP, FLUXES)
    assert all(fixed[name] is x for name, x in others.items())
    dry, moist = (fixer.totals(s) for s in (fixed | {"cloud_ice": 0 * others["cloud_ice"]}, fixed))
    ice = 2e-5 * fixer.grid.mean(fixer.levels.thickness(fixed["surface_pressure"]).sum(1)) / 9.80665
    torch.testing.assert_close(moist["water"] - dry["water"], ice)
    torch.testing.assert_close(moist["energy"] - dry["energy"], -3.337e5 * ice, rtol=1e-6, atol=0)
    assert off(fixer, fixed) < 1e-13


def test_the_shares_of_grids_are_those_of_the_sphere():
    """Means over the sphere of 1, sin^2 and sin^4 of the latitude: 1, 1/3 and 1/5."""
    fine = Grid.regular(torch.linspace(-89.95, 89.95, 1800), [0.0, 90.0, 180.0, 270.0])
    for grid, near in ((fine, 1e-6), (Grid.gaussian(8, 5), 1e-14)):
        up = torch.sin(torch.deg2rad(torch.as_tensor(grid.lat)))[:, None].expand(grid.shape)
        found = [float(grid.mean(up**power)) for power in (0, 2, 4)]
        assert found == pytest.approx([1, 1 / 3, 1 / 5], rel=near)


@pytest.mark.parametrize("levels", [levels_of(4), Levels.pressure([100.0, 3e4, 7e4, 1e5])])
def test_layers_are_all_the_air_below_the_top(levels):
    pressure = torch.tensor([[5.3e4, 9.9e4], [1.04e5, 7e4], [2.9e4, 1e5]], dtype=torch.float64)
    thickness = levels.thickness(pressure)
    assert thickness.shape == (3, levels.count, 2)
    assert float(thickness.min()) >= 0
    torch.testing.assert_close(thickness.sum(1), pressure - 100)
