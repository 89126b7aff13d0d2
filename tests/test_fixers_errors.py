"""What fixers refuse, with words and the step, and without a trace in fixer or state."""

import re

import pytest
import torch
import xarray as xr
from test_fixers import case
from weather import FLUXES, STEP, grid_of, levels_of, stepped

from probconserv.errors import InfeasibleError, InputError
from probconserv.weather import Fixer, Grid, Levels


def without(name):
    return lambda after: {n: x for n, x in after.items() if n != name}


def with_(name, change):
    return lambda after: after | {name: change(after[name])}


def with_nan(x):
    x = x.clone()
    x.view(-1)[17] = torch.nan
    return x


WRONG = {
    "no temperature": (without("temperature"), "'temperature', which the law of energy"),
    "no rain": (without("precipitation"), "'precipitation', which the law of water"),
    "Celsius": (with_("temperature", lambda x: x - 273.15), "'temperature'].*must be in K"),
    "15 K": (with_("temperature", lambda x: 0 * x + 15), "'temperature'].*must be in K"),
    "g/kg": (with_("specific_humidity", lambda x: 1000 * x), "'specific_humidity'].*kg/kg"),
    "hPa": (with_("surface_pressure", lambda x: x / 100), "'surface_pressure'].*in Pa"),
    "mm a day": (with_("precipitation", lambda x: 86400 * x), "'precipitation'].*kg m-2 s-1"),
    "upside down": (with_("specific_humidity", lambda x: x.flip(1)), "levels are upside down"),
    "NaN": (with_("temperature", with_nan), "'temperature'].*NaN"),
    "infinite": (with_("surface_pressure", lambda x: x + torch.inf), "'surface_pressure'].*inf"),
    "too few levels": (
        with_("temperature", lambda x: x[:, 1:]),
        r"'temperature'].*\(2, 4, 7, 12\)",
    ),
    "no batch": (with_("surface_pressure", lambda x: x[0]), "'surface_pressure'].*shape"),
    "whole numbers": (with_("temperature", lambda x: x.int()), "'temperature'].*float32"),
    "half precision": (with_("temperature", lambda x: x.bfloat16()), "'temperature'].*float32"),
    "an array": (with_("temperature", lambda x: x.numpy()), "'temperature'].*tensor"),
    "members": (lambda after: {n: x[:1] for n, x in after.items()}, "1 members and the rollout 2"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_state_is_refused_with_its_step_and_leaves_no_trace(what):
    fixer, before, after = case()
    state = fixer(before, after, STEP, FLUXES)
    kept, targets = {n: x.clone() for n, x in state.items()}, fixer.targets()
    spoil, words = WRONG[what]
    with pytest.raises(InputError, match=f"^step 2: .*{words}"):
        fixer(state, spoil(stepped(state)), STEP, FLUXES)
    assert all(bool((state[name] == x).all()) for name, x in kept.items())
    assert all(bool((fixer.targets()[law] == x).all()) for law, x in targets.items())
    assert (fixer.steps, len(fixer.ledger)) == (1, 1)


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")  # nothing evaporates
def test_what_a_step_changes_must_be_there_where_errors_are_taken_from_it():
    fixer, before, after = case()
    state = fixer(before, after, STEP)
    left = {name: x for name, x in state.items() if name != "temperature"}
    with pytest.raises(InputError, match=r"^step 2: `before\['temperature'\]` must have the shape"):
        fixer(left, after, STEP)
    fixer(left, after, STEP, std={"temperature": 1.0})


@pytest.mark.parametrize("name", ["temperature", "specific_humidity", "surface_pressure"])
def test_a_change_that_is_not_finite_is_no_error_to_go_by(name):
    fixer, before, after = case()
    state = fixer(before, after, STEP)
    state[name][..., 0, 0] = torch.nan
    with pytest.raises(InputError, match=rf"^step 2: `before\['{name}'\]` must be finite"):
        fixer(state, after, STEP)
    assert fixer.steps == 1


def test_the_state_before_is_looked_at_where_it_is_read():
    fixer, before, after = case()
    with pytest.raises(InputError, match=r"^step 1: .*before.*'temperature'.*must be in K"):
        fixer(before | {"temperature": before["temperature"] - 250}, after, STEP)


def test_both_states_count_the_same():
    fixer, before, after = case()
    ice = {"cloud_ice": torch.zeros_like(before["temperature"])}
    with pytest.raises(InputError, match=r"^step 1: .*must both have 'cloud_ice'"):
        fixer(before | ice, after, STEP)


IMPOSSIBLE = {
    "water": ({"evaporation": -2e-3}, {}),  # takes more than there is
    "energy": ({"top_energy": 100.0}, {"temperature": 0.0, "specific_humidity": 0.0}),
    "dry_air": ({}, {"surface_pressure": 0.0, "specific_humidity": 0.0}),
}


@pytest.mark.parametrize("law", IMPOSSIBLE)
def test_totals_that_cannot_be_met_are_refused_and_named(law):
    fixer, before, after = case()
    fluxes, std = IMPOSSIBLE[law]
    state = fixer(before, after, STEP)
    targets = fixer.targets()
    alone = Fixer(fixer.grid, fixer.levels, std, laws=[law])
    alone.load_state_dict(fixer.state_dict())
    if law == "energy":
        std |= {"surface_pressure": 0.0}
    with pytest.raises(InfeasibleError, match=f"^step 2: .*budget of {law} of member 0"):
        alone(state, stepped(state), STEP, fluxes, std=std)
    assert float(alone.targets()[law][0]) == float(targets[law][0])


def test_layers_of_negative_thickness_are_refused():
    levels = Levels.hybrid([0.0, 6e4, 0.0], [0.0, 0.0, 1.0])
    fixer, before, after = case(levels=levels)
    low = after | {"surface_pressure": after["surface_pressure"] - 4.5e4}
    with pytest.raises(InputError, match=r"^step 1: .*layer 1 has a negative pressure thickness"):
        fixer(before, low, STEP)


LEVELS = {
    "upside down": (([0.0, 1e4, 0.0], [1.0, 0.3, 0.0]), "upside down"),
    "not in order": (([0.0, 9e4, 0.0, 0.0], [0.0, 0.0, 0.5, 1.0]), "not in order"),
    "swapped": (([0.0, 0.5, 1.0], [0.0, 3e3, 9e4]), "share of the surface pressure"),
    "lengths": (([0.0, 0.5, 1.0], [0.0, 1.0]), "one length"),
}


@pytest.mark.parametrize("what", LEVELS)
def test_wrong_levels_are_refused(what):
    (a, b), words = LEVELS[what]
    with pytest.raises(InputError, match=words):
        Levels.hybrid(a, b)


def test_wrong_grids_are_refused():
    lon = torch.arange(4) * 90.0
    with pytest.raises(InputError, match=r"`lat` must be.*from pole to pole"):
        Grid.regular([40.0, 0.0, -40.0], lon)
    with pytest.raises(InputError, match="`lon` must go once around"):
        Grid.regular([60.0, 0.0, -60.0], lon / 4)
    with pytest.raises(InputError, match="`areas` must be >= 0"):
        Grid([1.0, -1.0])
    for shape, *axes in ((4,), lon, lon), ((4,), lon, None), ((4, 4), lon[:3], lon):
        with pytest.raises(InputError, match="`lat` and `lon` must be the two axes of the grid"):
            Grid(torch.ones(shape), *axes)


def test_pressure_levels_in_hectopascals_are_refused():
    with pytest.raises(InputError, match=r"`edges` must be in Pa.* end at 1000. Multiply hPa"):
        Levels.pressure([50.0, 300.0, 700.0, 1000.0])


ARGUMENTS = {
    "law": (lambda: Fixer(grid_of(), levels_of(), laws=["mass"]), "`laws`"),
    "no law": (lambda: Fixer(grid_of(), levels_of(), laws=None), "`laws` must be .*got None"),
    "list": (lambda: Fixer(grid_of(), levels_of(), [1.0]), "`std` must be a dictionary"),
    "targets": (lambda: Fixer(grid_of(), levels_of(), targets="first"), "`targets`"),
    "grid": (lambda: Fixer(levels_of(), grid_of()), "`grid` must be a Grid"),
    "name": (lambda: Fixer(grid_of(), levels_of(), {"humidity": 1.0}), "`std`"),
    "shape": (lambda: Fixer(grid_of(), levels_of(), {"temperature": [1.0] * 4}), "shape"),
    "sign": (lambda: Fixer(grid_of(), levels_of(), {"temperature": -1.0}), "temperature"),
}


@pytest.mark.parametrize("what", ARGUMENTS)
def test_wrong_arguments_of_a_fixer_are_refused(what):
    make, words = ARGUMENTS[what]
    with pytest.raises(InputError, match=words):
        make()


CALLS = {
    "dt": ({"dt": 0.0}, "`dt`"),
    "dt in words": ({"dt": "6h"}, "`dt`"),
    "flux": ({"fluxes": {"rain": 1.0}}, "`fluxes`"),
    "flux shape": ({"fluxes": {"evaporation": torch.zeros(3)}}, "evaporation.*shape"),
    "flux unit": ({"fluxes": {"evaporation": 3.0}}, "evaporation.*kg m-2 s-1"),
    "flux NaN": ({"fluxes": {"top_energy": torch.nan}}, "top_energy.*NaN"),
    "flux tensor": ({"fluxes": torch.zeros(3)}, "`fluxes` must be a dictionary"),
    "std": ({"std": {"surface_pressure": torch.ones(3, 7, 12)}}, "is for 3 members.* has 2"),
    "members": ({"members": 3}, "`members`"),
    "one member": ({"members": 1}, "`members`"),
}


@pytest.mark.parametrize("what", CALLS)
def test_wrong_arguments_of_a_step_are_refused(what):
    fixer, before, after = case()
    given, words = CALLS[what]
    with pytest.raises(InputError, match=f"^step 1: .*{words}"):
        fixer(before, after, **({"dt": STEP} | given))
    assert fixer.targets() == {}


def test_datasets_say_their_units_and_dimensions():
    fixer, before, _ = case(2)
    dims = {3: ("member", "lat", "lon"), 4: ("member", "level", "lat", "lon")}
    given = xr.Dataset({n: (dims[x.ndim], x.numpy()) for n, x in before.items()})
    wrong = given.copy()
    wrong["temperature"].attrs["units"] = "degC"
    with pytest.raises(InputError, match=r"`temperature` must be in K.*'degC'"):
        fixer(given, wrong, STEP)
    with pytest.raises(InputError, match="`temperature` has the dimensions"):
        fixer(given, given.isel(level=0, member=0), STEP)
    with pytest.raises(InputError, match="`temperature` must be a tensor, an array or numbers"):
        fixer(given, given.assign(temperature=given["temperature"].astype(str)), STEP)


def test_datasets_of_the_other_byte_order_are_read():
    fixer, before, after = case()
    dims = {3: ("member", "lat", "lon"), 4: ("member", "level", "lat", "lon")}
    old, new = (
        xr.Dataset({n: (dims[x.ndim], x.numpy().astype(">f8")) for n, x in state.items()})
        for state in (before, after)
    )
    fixed, expected = fixer(old, new, STEP), case()[0](before, after, STEP)
    for name in expected:
        assert (fixed[name].values == expected[name].numpy()).all()


def test_an_empty_ledger_says_so():
    with pytest.raises(InputError, match=re.escape("`ledger`: nothing is recorded yet")):
        Fixer(grid_of(), levels_of()).ledger.to_xarray()


def test_totals_name_the_state_that_they_are_given():
    with pytest.raises(InputError, match=r"`state` has no 'surface_pressure' .* it has nothing"):
        case()[0].totals({})
