"""Fixers say what is not plausible of a step, once: moves, rain, units."""

import warnings

import pytest
import torch
from weather import FLUXES, STEP, air, grid_of, levels_of, stepped

from probconserv import ImplausibleWarning
from probconserv.weather import Fixer, Levels, _doubts
from probconserv.weather.testbed import LeakyEmulator, ToyAtmosphere


def case(levels=None, **more):
    grid, levels = grid_of(), levels or levels_of()
    before = air(grid, levels)
    before["precipitation"] += 2e-5  # 3.2e-5 in the mean
    return Fixer(grid, levels, **more), before, stepped(before)


def warned(fixer, *arguments, **more):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fixer(*arguments, **more)
    assert all(w.category is ImplausibleWarning and w.filename == __file__ for w in found)
    return [str(w.message) for w in found]


def test_a_run_in_the_right_units_is_silent():
    toy = ToyAtmosphere()
    emulator, fixer = LeakyEmulator(toy, leak=0.09), Fixer(toy.grid, toy.levels)
    state = emulator.begin
    for number in range(8):
        after, fluxes = emulator.step(state, number)
        state = fixer(state, after, emulator.dt, fluxes)  # warnings are errors here
    assert not fixer._doubts.said


UNITS = {  # what precipitation is multiplied by
    "m s-1": 1e-3,
    "metres in each step": STEP / 1000,
    "m h-1": 3.6,
    "m day-1": 86.4,
}


@pytest.mark.parametrize("fluxes", [FLUXES, None])
@pytest.mark.parametrize("unit", UNITS)
def test_precipitation_in_another_unit_is_said_with_the_unit(unit, fluxes):
    fixer, before, after = case()
    other = after | {"precipitation": UNITS[unit] * after["precipitation"]}
    told = warned(fixer, before, other, STEP, fluxes)
    where = "evaporation is 3e-05" if fluxes else "usual is 3e-05"
    assert told[0].startswith("step 1: `after['precipitation']` is ")
    assert f"must be in kg m-2 s-1, where {where}. It looks like {unit}: multiply it" in told[0]
    assert f"multiply it by {1 / UNITS[unit]:.4g}." in told[0]


def test_an_amount_of_each_short_step_is_said():
    fixer, before, after = case()
    amount = after | {"precipitation": 600 * after["precipitation"]}
    calm = amount | {"temperature": before["temperature"]}
    assert "looks like kg m-2, or mm, in each step" in warned(fixer, before, calm, 600.0)[0]


def test_no_rain_at_all_is_no_other_unit():
    assert not _doubts.of_unit(0.0, 3e-5, STEP)
    assert not _doubts.of_unit(1e-9, 3e-5, STEP)  # a start from rest
    assert not _doubts.of_unit(3e-5, 3e-8, STEP)  # evaporation is not what it should be


@pytest.mark.parametrize("dt", [6, 0.25, 360.0])  # hours, days, minutes
def test_a_step_in_another_unit_is_said(dt):
    fixer, before, after = case()
    warm = after | {"temperature": before["temperature"] + 2}
    (told,) = [text for text in warned(fixer, before, warm, dt, FLUXES) if "`dt`" in text]
    assert f"step 1: `dt` is {dt:g} s, in which the temperature changes by 2 K. Is it in" in told


def test_a_short_step_is_said_where_changes_are_not_known():
    fixer, before, after = case(std={"temperature": 1.0})
    assert any("`dt` is 6 s. Is it in" in text for text in warned(fixer, before, after, 6.0))


def test_a_hundredfold_cut_of_rain_is_said():
    fixer, before, _ = case(std={"specific_humidity": 0.0, "surface_pressure": 0.0}, laws=["water"])
    wet = before | {"specific_humidity": 1.02 * before["specific_humidity"]}
    gain = fixer.totals(wet)["water"] - fixer.totals(before)["water"]
    wet["precipitation"] = wet["precipitation"][:1].expand(2, -1, -1)  # alike
    rain = fixer.grid.mean(wet["precipitation"])
    fluxes = {"evaporation": gain / STEP + rain / 100}
    (told,) = [t for t in warned(fixer, before, wet, STEP, fluxes) if "budget of water" in t]
    most = float(rain.max())
    assert f"from {most:.2g} to {most / 100:.2g} kg m-2 s-1 in the mean over the globe" in told


def test_a_move_of_many_standard_deviations_is_said_with_its_size():
    std = {"surface_pressure": 5.0, "temperature": 0.01, "specific_humidity": 1e-6}
    fixer, before, after = case(std=std)
    fixed = {}
    (told,) = [
        text
        for text in warned(lambda *x: fixed.update(fixer(*x)), before, after, STEP, FLUXES)
        if "standard deviations" in text
    ]
    moved = {n: float((fixed[n] - after[n].clamp(0.0)).abs().max() / s) for n, s in std.items()}
    worst = max(moved, key=moved.get)
    assert f"the budgets move {worst} at a point by {moved[worst]:.3g} of its standard" in told
    assert "Dry air was off by" in told


def test_each_is_said_once_in_the_life_of_a_fixer():
    fixer, before, after = case()
    metres = after | {"precipitation": after["precipitation"] / 1000}
    assert len(warned(fixer, before, metres, STEP, FLUXES)) == 1
    assert not warned(fixer, before, metres, STEP, FLUXES)
    fixer.reset()
    assert not warned(fixer, before, metres, STEP, FLUXES)


def test_rain_is_no_matter_where_the_law_of_water_is_not_closed():
    fixer, before, after = case(laws=["dry_air"])
    metres = after | {"precipitation": after["precipitation"] / 1000}
    assert not warned(fixer, before, metres, STEP)


def test_nothing_is_said_of_a_compiled_step():
    fixer, before, after = case()
    step = torch.compile(fixer, fullgraph=True, backend="eager")
    metres = after | {"precipitation": after["precipitation"] / 1000}
    assert not warned(step, before, metres, STEP, FLUXES)


@pytest.mark.parametrize("members", [None, 2])
@pytest.mark.parametrize(
    "levels", [levels_of(), Levels.pressure([100.0, 2e4, 5e4, 8e4, 9.9999e4, 1.01e5])]
)
def test_the_bound_on_moves_is_above_them_and_not_by_much(levels, members, monkeypatch):
    """By plain differences over the errors that the fixer took."""
    kept = []
    original = _doubts.Doubts.judge

    def judge(self, numbers, task, closed):
        kept.append((task, closed))
        return original(self, numbers, task, closed)

    monkeypatch.setattr(_doubts.Doubts, "judge", judge)
    fixer, before, after = case(levels)
    after["precipitation"] = after["precipitation"].clamp(0.0)
    after["specific_humidity"] = after["specific_humidity"].clamp(0.0)
    fixer(before, after, STEP, FLUXES, members=members)
    (task, closed) = kept[0]
    errors, new = task.all_errors(), (closed.pressure, closed.temperature, closed.vapour)
    old = task.air.pressure, task.air.temperature, task.air.vapour
    names = "surface_pressure", "temperature", "specific_humidity"
    most = max(
        float(((y - x).square() / errors[name].variance(x)).nan_to_num(0.0).max())
        for name, x, y in zip(names, old, new, strict=True)
    )
    assert most <= 1.0001 * float(closed.far.max()) < 3**2 * most
