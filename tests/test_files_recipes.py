"""Dry air, moisture and energy: laws made of standard names, against NumPy."""

import numpy as np
import pytest
import torch
import xarray as xr
from air import AREA, CLOUDS, CP, GRID, LAT, LON, A, B, G, L, air, mass, on_pressure_levels
from commands import called

from probconserv.errors import InputError
from probconserv.files import (
    FileLaw,
    check,
    dry_air,
    energy,
    enforce,
    enforce_file,
    moisture,
    totals,
)
from probconserv.weather import Fixer, Grid, Levels

# totals far off the start make the figures easy to check
pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")


@pytest.mark.parametrize("lazy", [False, True])
def test_moisture_stays_that_of_the_start_and_clouds_stay_as_they_are(lazy):
    dataset = air(**CLOUDS)
    new = enforce(dataset.chunk(time=2, lat=2) if lazy else dataset, moisture, std={"q": 1e-3})
    water = ((new.q + new.clw + new.cli).values * mass(dataset.ps)).sum((1, 2, 3))
    before = ((dataset.q + dataset.clw + dataset.cli).values * mass(dataset.ps)).sum((1, 2, 3))
    np.testing.assert_allclose(water, before[0], rtol=1e-12)
    for name in ("clw", "cli", "ps"):
        xr.testing.assert_equal(new[name].compute(), dataset[name])


def test_evaporation_and_precipitation_change_the_total_of_moisture():
    fluxes = {
        "evspsbl": (1e-5, 4e-5, "kg m-2 s-1", "water_evapotranspiration_flux", GRID),
        "pr": (1e-5, 4e-5, "kg m-2 s-1", "precipitation_flux", GRID),
    }
    dataset = air(**fluxes)
    new = enforce(dataset, moisture, std=1e-3)
    net = ((dataset.evspsbl - dataset.pr).values * AREA).sum((1, 2))
    gained = np.r_[0, np.cumsum((net[1:] + net[:-1]) / 2)] * 86400
    water = (new.q.values * mass(dataset.ps)).sum((1, 2, 3))
    start = (dataset.q.values * mass(dataset.ps)).sum((1, 2, 3))[0]
    np.testing.assert_allclose(water, start + gained, rtol=1e-12)
    remarks = new.probconserv.report["laws"][0]["remarks"]
    assert "fluxes: + evspsbl - pr" in remarks
    alone = check(dataset.drop_vars("evspsbl"), moisture)
    assert "no fluxes counted, for want of water_evapotranspiration_flux" in str(alone)


def test_missing_fluxes_are_an_error_that_names_the_variable():
    fluxes = {
        "e": (1e-5, 4e-5, "kg m-2 s-1", "water_evapotranspiration_flux", GRID),
        "pr": (1e-5, 4e-5, "kg m-2 s-1", "precipitation_flux", GRID),
    }
    dataset = air(**fluxes)
    dataset.pr[1, 2, 3] = np.nan
    with pytest.raises(InputError, match="'pr' has missing values"):
        moisture(dataset)


@pytest.mark.parametrize("unit", ["Pa", "hPa"])
@pytest.mark.parametrize("lazy", [False, True])
def test_dry_air_stays_that_of_the_start_by_moving_the_surface_pressure(unit, lazy):
    dataset = air(**CLOUDS)
    by = {"Pa": 1.0, "hPa": 100.0}[unit]
    dataset["ps"] = (dataset.ps / by).assign_attrs(dataset.ps.attrs, units=unit)
    dry = 1 - (dataset.q + dataset.clw + dataset.cli).values
    new = enforce(dataset.chunk(time=1, lev=2) if lazy else dataset, dry_air, std=100.0 / by)
    has = (dry * mass(new.ps * by)).sum((1, 2, 3))
    start = (dry * mass(dataset.ps * by)).sum((1, 2, 3))[0]
    np.testing.assert_allclose(has, start, rtol=1e-13)
    assert abs(new.ps - dataset.ps).max() > 100 / by
    before = totals(dataset, dry_air(dataset))
    np.testing.assert_allclose(before[0], start, rtol=1e-13)
    assert before.units == "kg"


def test_energy_stays_that_of_the_start_by_moving_the_temperature():
    dataset = air(
        u=(-30, 30, "m s-1", "eastward_wind"),
        v=(-30, 30, "m s-1", "northward_wind"),
        zs=(
            ("lat", "lon"),
            np.full((3, 4), 300.0),
            {"units": "m", "standard_name": "surface_altitude"},
        ),
    )
    new = enforce(dataset, energy, std=1.0)
    rest = L * dataset.q + (dataset.u**2 + dataset.v**2) / 2 + G * 300
    has, before = (
        ((CP * T + rest).values * mass(dataset.ps)).sum((1, 2, 3)) for T in (new["T"], dataset["T"])
    )
    np.testing.assert_allclose(has, before[0], rtol=1e-13)
    report = new.probconserv.report["laws"][0]
    assert report["units"] == "J"
    assert any("cp T + L q + u^2 / 2 + v^2 / 2 + zs; cp = 1004.64" in r for r in report["remarks"])
    assert not any("not found" in remark for remark in report["remarks"])


def test_files_and_fixers_have_one_energy():
    """Cloud ice counted in the fixer only."""
    winds = {f"{x}ward_wind": (-30, 30, "m s-1", f"{x}ward_wind") for x in ("east", "north")}
    high = {"units": "m2 s-2", "standard_name": "surface_geopotential"}
    dataset = air(**CLOUDS, **winds, phis=(("lat", "lon"), np.full((3, 4), 900.0), high))
    names = {"q": "specific_humidity", "T": "temperature", "ps": "surface_pressure"}
    names |= {"clw": "cloud_liquid", "cli": "cloud_ice", "phis": "surface_geopotential"}
    names |= {name: name for name in winds}
    state = {new: torch.from_numpy(dataset[old].values) for old, new in names.items()}
    fixer = Fixer(Grid.regular(LAT, LON), Levels.hybrid(A, B), laws="energy")
    found = totals(dataset, energy(dataset))
    assert found.units == "J"
    np.testing.assert_allclose(found, fixer.totals(state)["energy"] * AREA.sum(), rtol=1e-12)


def test_files_and_fixers_have_one_dry_air_and_one_water():
    dataset = air(**CLOUDS)
    names = {"q": "specific_humidity", "T": "temperature", "ps": "surface_pressure"}
    names |= {"clw": "cloud_liquid", "cli": "cloud_ice"}
    state = {new: torch.from_numpy(dataset[old].values) for old, new in names.items()}
    fixer = Fixer(Grid.regular(LAT, LON), Levels.hybrid(A, B), laws=("dry_air", "water"))
    means = fixer.totals(state)
    for law, recipe in (("dry_air", dry_air), ("water", moisture)):
        found = totals(dataset, recipe(dataset))
        np.testing.assert_allclose(found, means[law] * AREA.sum(), rtol=1e-12)


def test_what_energy_does_not_find_is_said():
    report = str(check(air(), energy))
    assert "not found, so that it counts as 0: wind, surface geopotential" in report
    assert "moves T; held fixed: q, ps" in report
    assert "no fluxes counted, for want of toa_incoming_shortwave_flux" in report


def test_a_temperature_in_degrees_celsius_is_refused():
    dataset = air()
    dataset["T"].attrs["units"] = "degC"
    with pytest.raises(InputError, match="'T' must be in K"):
        energy(dataset)


def test_pressure_levels_are_cut_at_the_surface_pressure():
    dataset = on_pressure_levels()
    ps = dataset.ps.values[:, None]
    edges = np.array([0.0, 3e4, 7.5e4, np.inf])[:, None, None]
    dp = np.diff(np.minimum(edges, ps), axis=1)[:, ::-1]
    water = (dataset.q.values * dp / G * AREA).sum((1, 2, 3))
    np.testing.assert_allclose(totals(dataset, moisture(dataset)), water, rtol=1e-12)
    np.testing.assert_allclose(dp.sum(1), ps[:, 0])
    assert "from 0 Pa to the surface (ps), linear while" in str(check(dataset, moisture))
    new = enforce(dataset, dry_air, std=100.0)
    dp = np.diff(np.minimum(edges, new.ps.values[:, None]), axis=1)[:, ::-1]
    dry = ((1 - dataset.q.values) * dp / G * AREA).sum((1, 2, 3))
    np.testing.assert_allclose(dry, dry[0], rtol=1e-13)


def test_pressure_levels_without_surface_pressure_are_not_cut_and_dry_air_is_refused():
    dataset = on_pressure_levels().drop_vars("ps")
    dp = np.array([5e4, 4.5e4, 3e4])[:, None, None]
    water = (dataset.q.values * dp / G * AREA).sum((1, 2, 3))
    np.testing.assert_allclose(totals(dataset, moisture(dataset)), water, rtol=1e-12)
    assert "no surface pressure to cut them at" in str(check(dataset, moisture))
    with pytest.raises(InputError, match="`dry-air` moves the surface pressure"):
        dry_air(dataset)


def test_a_surface_pressure_that_no_level_lies_above_is_refused():
    dataset = on_pressure_levels()
    dataset["ps"] = (dataset.ps / 100).assign_attrs(dataset.ps.attrs)
    with pytest.raises(InputError, match=r"'ps' reaches .* Pa at most.*`units`"):
        moisture(dataset)


def test_places_without_surface_pressure_do_not_count_on_pressure_levels():
    dataset = on_pressure_levels()
    dataset["ps"] = dataset.ps.where(dataset.lat > 0)
    assert "24 places without ps do not count" in str(check(dataset, moisture))
    north = dataset.isel(lat=[2]).fillna(0.0)
    dp = np.diff(
        np.minimum([[[0.0]], [[3e4]], [[7.5e4]], [[np.inf]]], north.ps.values[:, None]), axis=1
    )
    water = (north.q.values[:, ::-1] * dp / G * AREA[2]).sum((1, 2, 3))
    np.testing.assert_allclose(totals(dataset, moisture(dataset)), water, rtol=1e-12)


def test_levels_of_height_are_refused():
    dataset = air(zs=(("lat", "lon"), np.zeros((3, 4)), {"units": "m"}))
    dataset["ap"].attrs["units"] = "m"
    terms = {"formula_terms": "a: ap b: b orog: zs", "bounds": ""}
    dataset.lev.attrs |= {"standard_name": "atmosphere_hybrid_height_coordinate", **terms}
    dataset["ap"], dataset["b"] = dataset.ap[::-1] * 0 + [100, 500, 900], dataset.b * 0
    dataset["ap"].attrs, dataset["b"].attrs = {"units": "m", "bounds": "za"}, {"bounds": "zb"}
    dataset["za"] = ("lev", "n"), [[0.0, 300.0], [300.0, 700.0], [700.0, 1100.0]]
    dataset["zb"] = ("lev", "n"), np.zeros((3, 2))
    with pytest.raises(InputError, match="`moisture` needs levels of pressure"):
        moisture(dataset)


def test_variables_near_the_ground_and_standard_deviations_are_not_taken_for_the_field():
    dataset = air(huss=(0, 0.02, "1", "specific_humidity", GRID))
    dataset["q_std"] = dataset.q
    assert moisture(dataset).variables == "q"
    dataset["other"] = dataset.q
    with pytest.raises(InputError, match="which is the specific_humidity: q or other"):
        moisture(dataset)


def test_names_that_models_use_stand_in_for_standard_names():
    dataset = air()
    for name in ("q", "T", "ps"):
        del dataset[name].attrs["standard_name"]
    assert moisture(dataset).variables == "q"
    assert list(energy(dataset).variables) == ["T"]
    with pytest.raises(InputError, match=r"`energy` needs .* air_temperature \(or called ta or t "):
        energy(dataset.rename(T="temp"))


def test_laws_that_move_what_others_hold_fixed_say_so():
    report = str(check(air(), moisture, dry_air))
    assert "dry air moves ps, which this law holds fixed: enforce one after the other" in report
    assert "moisture moves q, which this law holds fixed" in report
    assert "holds fixed:" not in str(check(air(), moisture))
    with pytest.raises(InputError, match=r"moves ps, which moisture .* one after the other"):
        enforce(air(), moisture, dry_air, std={"q": 1e-4, "ps": 100.0})


def test_a_law_made_by_a_recipe_can_be_read():
    said = str(moisture(air(**CLOUDS)))
    assert said.startswith("moisture: the sum of q + clw + cli over lev, lat, lon is initial")
    assert "weights: cell areas from the centres of lat and lon" in said
    assert "moves q; held fixed: clw, cli, ps" in said
    assert str(FileLaw("u", "x", total=2.0, inflow="rain", outflow=["a", "b"])) == (
        "u: the sum of u over x is 2 + rain - a - b"
    )


def test_members_with_a_surface_pressure_each_are_fields_of_their_own():
    one, two = air(), air()
    two["ps"], two["q"] = two.ps * 0.98, two.q * 1.1
    both = xr.concat([one, two], "member", data_vars="different", coords="minimal", compat="equals")
    for name in ("q", "ps", "T"):
        both[name].attrs = one[name].attrs
    with pytest.raises(InputError, match=r"`measure` changes along 'member'.*`std` or `how`"):
        enforce(both, moisture, member="member")
    new = enforce(both, moisture, std=1e-3).q.transpose("member", ...)
    for number, alone in enumerate((one, two)):
        water = (new.values[number] * mass(alone.ps)).sum((1, 2, 3))
        start = (alone.q.values * mass(alone.ps)).sum((1, 2, 3))[0]
        np.testing.assert_allclose(water, start, rtol=1e-12)


def test_what_is_fixed_counts_in_the_total_but_does_not_move():
    dataset = xr.Dataset({"u": ("x", [1.0, 2.0, np.nan]), "f": ("x", [10.0, 20.0, 40.0])})
    law = FileLaw("u", "x", total=36.0, measure=1.0, fixed="f")
    new = enforce(dataset, law, std=1.0)
    np.testing.assert_allclose(new.u, [2.5, 3.5, np.nan])
    assert totals(dataset, law).item() == 33.0
    report = check(new, law).budgets[0]
    assert (report.before.item(), report.total.item()) == (36.0, 36.0)
    dataset.u.attrs["units"], dataset.f.attrs["units"] = "kg", "m"
    with pytest.raises(InputError, match="`fixed f` is in 'm'"):
        enforce(dataset, law, std=1.0)


def test_the_command_line_takes_recipes_by_name(tmp_path):
    source, out = tmp_path / "in.nc", tmp_path / "out.nc"
    air().to_netcdf(source)
    assert called("check", source, "--law", "dry-air", "moisture", "energy").returncode == 1
    done = called("enforce", source, "--law", "moisture", "--std", "0.001", "-o", out)
    assert "moves q; held fixed: ps" in done.stdout, done.stderr
    with xr.open_dataset(out) as new:
        water = (new.q.values * mass(new.ps)).sum((1, 2, 3))
    np.testing.assert_allclose(water, water[0], rtol=1e-12)
    assert called("check", out, "--law", "moisture").returncode == 0
    wrong = called("check", source, "--law", "moist")
    assert "must be one of dry-air, moisture, energy" in wrong.stderr
    assert (
        "`--law` replaces `--mean`"
        in called("check", source, "--law", "energy", "--mean", "q").stderr
    )


def test_units_that_a_file_lacks_can_be_said(tmp_path):
    dataset = on_pressure_levels((1000, 500, 100))
    expected = totals(dataset, moisture(dataset))
    for name in ("q", "ps", "lev"):
        dataset[name].attrs = {}
    dataset.to_netcdf(tmp_path / "in.nc")
    with pytest.raises(InputError, match=r"units of a pressure.*`assume_units={'lev': 'hPa', 'q'"):
        moisture(dataset)
    given = {"q": "1", "ps": "Pa", "lev": "hPa"}
    law = moisture(dataset, assume_units=given)
    np.testing.assert_allclose(totals(dataset, law), expected, rtol=1e-14)
    words = [f"{name}={unit}" for name, unit in given.items()]
    said = called("check", tmp_path / "in.nc", "--law", "moisture", "--assume-units", *words)
    assert "units of lev assumed: hPa" in said.stdout, said.stderr


def test_files_are_weighed_block_by_block(tmp_path):
    air().to_netcdf(tmp_path / "in.nc", encoding={"q": {"chunksizes": (1, 2, 3, 4)}})
    how = {"std": 100.0, "chunks": {"time": 1, "lat": 2}}
    report = enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", dry_air, **how)
    assert report.closes(after=True)
    with xr.open_dataset(tmp_path / "out.nc") as new:
        dry = ((1 - new.q.values) * mass(new.ps)).sum((1, 2, 3))
    np.testing.assert_allclose(dry, dry[0], rtol=1e-13)


def test_gaps_in_what_is_held_fixed_are_an_error_that_says_when():
    dataset = air()
    dataset["q"][1, 0, 0, 0] = np.nan
    with pytest.raises(InputError, match=r"`fixed.* q, ps` is missing .* at time 2000-01-02"):
        check(dataset, energy)
    assert "missing values of q count as dry air" in str(check(dataset, dry_air))


def test_points_that_are_missing_at_times_are_implausible_with_clouds_too():
    dataset = air(**CLOUDS)
    for name in ("q", *CLOUDS):
        dataset[name][1, 0] = np.nan
    assert "points are missing at some times" in " ".join(check(dataset, moisture).warnings)
