"""Fixers in the loop: no drift, saved and resumed, in training, compiled, with their ledger."""

import io

import pytest
import torch
import xarray as xr
from test_fixers import case, off
from weather import FLUXES, STEP, air, grid_of, levels_of, stepped

from probconserv.errors import InputError
from probconserv.figures import ledger_figure
from probconserv.weather import Fixer

NAMES = ("surface_pressure", "temperature", "specific_humidity", "precipitation")


def rolled(fixer, start, steps, fluxes=FLUXES, seed=0):
    """A leaky model that comes back to where it started; what its totals are off by."""
    state, worst = start, []
    for number in range(steps):
        near = {name: 0.2 * x + 0.8 * start[name] for name, x in state.items()}
        state = fixer(state, stepped(near, seed + number), STEP, fluxes)
        worst.append(off(fixer, state))
    return state, worst


@pytest.mark.parametrize(("dtype", "least"), [(torch.float64, 2e-13), (torch.float32, 1e-7)])
def test_a_rollout_does_not_drift(dtype, least):
    """The budget by plain sums, over 60 steps; the rounding does not add up."""
    grid, levels = grid_of(6, 8), levels_of(3)
    start = air(grid, levels, 2, dtype)
    start["precipitation"] += 1e-5
    fixer = Fixer(grid, levels)
    fluxes = {"evaporation": grid.mean(start["precipitation"])}  # what falls, about
    state, worst = rolled(fixer, start, 60, fluxes)
    assert max(worst[:30]) < least
    assert max(worst[30:]) < least
    assert all(state[name].dtype == dtype for name in NAMES)
    assert fixer.steps == 60
    dry = fixer.totals(start)["dry_air"]
    torch.testing.assert_close(fixer.targets()["dry_air"], dry, rtol=1e-15, atol=0)


def test_a_saved_fixer_goes_on_where_it_was():
    fixer, start, _ = case(3)
    state, _ = rolled(fixer, start, 3)
    file = io.BytesIO()
    torch.save(fixer.state_dict(), file)
    file.seek(0)
    other = Fixer(fixer.grid, fixer.levels)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.steps == 3
    went_on, _ = rolled(fixer, state, 2, seed=9)
    resumed, _ = rolled(other, state, 2, seed=9)
    assert all(bool((went_on[name] == resumed[name]).all()) for name in NAMES)


def test_steps_of_their_own_do_not_add_up():
    _, before, after = case()
    fixer = Fixer(grid_of(), levels_of(), targets="step")
    first = fixer(before, after, STEP, FLUXES)
    again = fixer(before, after, STEP, FLUXES)
    assert all(bool((first[name] == again[name]).all()) for name in NAMES)


def test_reset_starts_another_rollout_of_another_size():
    fixer, before, after = case(2)
    fixer(before, after, STEP)
    fixer.reset()
    more = air(fixer.grid, fixer.levels, 3)
    assert off(fixer, fixer(more, stepped(more), STEP)) < 1e-13
    assert (fixer.steps, len(fixer.ledger)) == (1, 1)


def test_running_totals_stay_in_float64_in_a_model_of_half_precision():
    fixer, before, after = case(dtype=torch.float32)
    fixer(before, after, STEP)
    fixer.half()
    assert fixer.targets()["energy"].dtype == torch.float64
    assert fixer.steps == 1


def test_gradients_flow_through_the_state_and_the_fluxes():
    grid, levels = grid_of(3, 4), levels_of(2)
    before = air(grid, levels, 1)
    before["precipitation"] += 1e-4
    before["specific_humidity"] += 1e-3
    fixer = Fixer(grid, levels, targets="step", ledger=False)
    units = {name: before[name].abs().mean() for name in NAMES}

    def fixed(evaporation, *parts):
        after = {name: x * units[name] for name, x in zip(NAMES, parts, strict=True)}
        found = fixer(before, after, STEP, {"evaporation": 1e-4 * evaporation})
        return tuple(found[name] / units[name] for name in NAMES)

    after = stepped(before)
    parts = [(after[name] / units[name]).requires_grad_() for name in NAMES]
    rate = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(fixed, (rate, *parts), rtol=1e-5, atol=1e-6, fast_mode=True)


def test_a_compiled_fixer_gives_the_same():
    fixer, before, _ = case(2)
    compiled = Fixer(fixer.grid, fixer.levels)
    step = torch.compile(compiled, fullgraph=True, backend="eager")
    state = other = before
    for number in range(2):
        state = fixer(state, stepped(state, number), STEP, FLUXES)
        other = step(other, stepped(other, number), STEP, FLUXES)
    for name in NAMES:
        torch.testing.assert_close(other[name], state[name], rtol=1e-10, atol=1e-16)
    assert compiled.steps == 2


def test_a_compiled_fixer_takes_fluxes_that_change():
    fixer, before, after = case(2)
    compiled = torch.compile(
        Fixer(fixer.grid, fixer.levels, targets="step"), fullgraph=True, backend="eager"
    )
    for rate in (2e-5, 3e-5, 4e-5):
        found = compiled(before, after, STEP, {"evaporation": rate})
        other = Fixer(fixer.grid, fixer.levels)(before, after, STEP, {"evaporation": rate})
        torch.testing.assert_close(found["temperature"], other["temperature"], rtol=1e-12, atol=0)


def test_a_dataset_comes_back_as_a_dataset():
    fixer, before, after = case(2)
    dims = {3: ("member", "lat", "lon"), 4: ("member", "level", "lat", "lon")}
    sets = [
        xr.Dataset({n: (dims[x.ndim], x.numpy(), {"note": n}) for n, x in s.items()})
        for s in (before, after)
    ]
    fixed = fixer(*sets, STEP, FLUXES)
    plain = Fixer(fixer.grid, fixer.levels)(before, after, STEP, FLUXES)
    for name in NAMES:
        assert fixed[name].attrs == {"note": name}
        assert (fixed[name].values == plain[name].numpy()).all()
    one = Fixer(fixer.grid, fixer.levels)(*(s.isel(member=0) for s in sets), STEP, FLUXES)
    assert abs(one - fixed.isel(member=0)).to_array().max() < 1e-8


def test_the_ledger_adds_up_what_was_corrected():
    fixer, state, _ = case(2)
    moved = dict.fromkeys(NAMES, 0.0)
    for number in range(3):
        after = stepped(state, number)
        state = fixer(state, after, STEP, FLUXES)
        moved = {name: moved[name] + state[name] - after[name] for name in NAMES}
    book = fixer.ledger.to_xarray()
    assert dict(book.sizes)["step"] == 3
    found = torch.from_numpy(book["map"].sel(variable="surface_pressure").values)
    torch.testing.assert_close(found, moved["surface_pressure"].mean(0))
    profile = torch.from_numpy(book["profile"].sel(on_levels="temperature").values)
    torch.testing.assert_close(profile, fixer.grid.mean(moved["temperature"]).mean(0))
    last = book.isel(step=-1)
    dry = fixer.totals(state)["dry_air"].numpy()
    assert abs(last["total"].sel(law="dry_air") / dry - 1).max() < 1e-14
    assert abs(last["total"] / last["target"] - 1).max() < 1e-13
    rain = last["correction"].sel(variable="precipitation")
    now = fixer.grid.mean(state["precipitation"] - after["precipitation"]).numpy()
    assert abs(rain - now).max() < 1e-18


def test_without_a_ledger_nothing_is_kept():
    _, before, after = case()
    fixer = Fixer(grid_of(), levels_of(), ledger=False)
    fixer(before, after, STEP)
    assert len(fixer.ledger) == 0


def test_the_figure_shows_budgets_a_map_and_profiles():
    fixer, start, _ = case(2)
    rolled(fixer, start, 3)
    figure = ledger_figure(fixer.ledger.to_xarray(), "surface_pressure")
    titles = [axes.get_title() for axes in figure.axes[:6]]
    assert titles[:3] == ["dry air", "water", "energy"]
    assert titles[3] == "surface pressure, added up"
    drift, left = (line.get_ydata() for line in figure.axes[0].lines)
    assert max(abs(left)) < 1e-9 * max(abs(drift))
    with pytest.raises(InputError, match="`ledger` must be"):
        ledger_figure({})
