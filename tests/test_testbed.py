"""The toy atmosphere closes its budgets, its emulator does not, and the blunt fixers close them."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from probconserv.weather.testbed import LeakyEmulator, ToyAtmosphere

DT = 21600.0


def totals(toy, state):
    """Dry air, water and energy of the sphere, by sums over edges and half levels in NumPy."""
    edges = np.linspace(-np.pi / 2, np.pi / 2, len(toy.lat) + 1)
    areas = np.diff(np.sin(edges))[:, None] / (2 * len(toy.lon)) * np.ones(len(toy.lon))
    pressure, t, q = (
        state[name].numpy() for name in ("surface_pressure", "temperature", "specific_humidity")
    )
    half = toy.a.numpy()[:, None, None] + toy.b.numpy()[:, None, None] * pressure[:, None]
    mass = np.diff(half, axis=1) / 9.80665 * areas
    water = (mass * q).sum((1, 2, 3))
    energy = (mass * (1004.64 * t + 2.501e6 * q)).sum((1, 2, 3))
    return mass.sum((1, 2, 3)) - water, water, energy, areas


def asked(toy, before, after, fluxes):
    """What the totals should be after the step."""
    dry, water, energy, areas = totals(toy, before)
    mean = {name: (x.numpy() * areas).sum((1, 2)) for name, x in fluxes.items()}
    rain = (after["precipitation"].numpy() * areas).sum((1, 2))
    heat = mean["top_energy"] + mean["surface_energy"]
    return dry, water + DT * (mean["evaporation"] - rain), energy + DT * heat


@pytest.fixture(scope="module")
def emulator():
    return LeakyEmulator(ToyAtmosphere(lat=6, lon=10))


def test_the_budgets_of_the_toy_close_to_rounding(emulator):
    toy, before = emulator.toy, emulator.begin
    after, fluxes = toy.step(before, 0.0, DT)
    for now, then in zip(totals(toy, after), asked(toy, before, after, fluxes), strict=False):
        assert now == pytest.approx(then, rel=1e-13)
    assert (after["surface_pressure"] - before["surface_pressure"]).abs().mean() > 50


def test_a_finer_toy_stays_in_bounds():
    toy = ToyAtmosphere(lat=20, lon=44)
    state, before = toy.start(), None
    for number in range(12):
        before, (state, _) = state, toy.step(state, number * DT, DT)
    assert state["specific_humidity"].min() > 0
    assert 180 < state["temperature"].min() < state["temperature"].max() < 320
    assert (state["temperature"] - before["temperature"]).abs().max() < 10


def test_it_rains_in_some_places(emulator):
    rain = emulator.begin["precipitation"]
    assert rain.min() == 0
    assert 0.2 < (rain > 0).double().mean() < 0.8


def test_the_emulator_leaks_and_becomes_negative(emulator):
    state = {name: x.expand(3, *x.shape[1:]) for name, x in emulator.begin.items()}
    dry = totals(emulator.toy, state)[0]
    for number in range(40):
        state, _ = emulator.step(state, number)
    assert (totals(emulator.toy, state)[0] > dry * 1.001).all()
    assert state["precipitation"].min() < 0
    assert state["surface_pressure"][0].sub(state["surface_pressure"][1]).abs().max() > 1


def test_a_step_with_the_same_number_has_the_same_noise(emulator):
    once, again = emulator.step(emulator.begin, 3)[0], emulator.step(emulator.begin, 3)[0]
    other = emulator.step(emulator.begin, 4)[0]
    assert torch.equal(once["temperature"], again["temperature"])
    assert not torch.equal(once["precipitation"], other["precipitation"])


def test_the_blunt_fixers_close_the_budgets_with_one_number_each(emulator):
    before = {name: x.expand(3, *x.shape[1:]) for name, x in emulator.begin.items()}
    after, fluxes = emulator.step(before, 0)
    blunt = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "blunt.py"))
    fixed = blunt["BluntFixer"](emulator.toy)(before, after, DT, fluxes)
    wanted = asked(emulator.toy, before, fixed, fluxes)
    for now, then in zip(totals(emulator.toy, fixed), wanted, strict=False):
        assert now == pytest.approx(then, rel=1e-13)
    shift = fixed["temperature"] - after["temperature"]
    assert shift.std((1, 2, 3)).max() < 1e-12
    assert fixed["specific_humidity"].min() >= 0
