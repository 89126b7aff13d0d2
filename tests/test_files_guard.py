"""A guard for fields without standard deviations: factors, signs, moves of more than the field."""

import json

import numpy as np
import pytest
import xarray as xr
from commands import called

from probconserv import ImplausibleWarning
from probconserv.errors import ImplausibleError, InfeasibleError, InputError
from probconserv.files import FileLaw, check, enforce, enforce_file

SPACE = ("lat", "lon")
HOURS = 6
TIMES = np.datetime64("2000-01-01", "ns") + np.arange(9) * np.timedelta64(HOURS * 3600, "s")
GRID = {"time": TIMES, "lat": np.arange(-75.0, 90, 30), "lon": np.arange(15.0, 360, 30)}
FLUX = {"units": "kg m-2 s-1", "cell_methods": "time: mean"}


def field(mean=25.0, spread=12.0, drift=0.0, noise=0.0, units="kg m-2", seed=0):
    """A field with that spread over the points, and totals that drift by so much."""
    rng = np.random.default_rng(seed)
    shape = (len(GRID["lat"]), len(GRID["lon"]))
    pattern = rng.normal(size=shape)
    course = drift * np.linspace(0, 1, len(TIMES)) + noise * rng.normal(size=len(TIMES))
    u = mean + spread * pattern + course[:, None, None]
    return xr.Dataset({"u": (("time", *SPACE), u, {"units": units})}, GRID)


def budget(noise=0.0, seed=1):
    """Vapour u that follows evaporation e less rain p, of 3 mm a day, up to a noise in mm."""
    rng = np.random.default_rng(seed)
    d = field(noise=noise)
    rain = rng.gamma(2.0, 1.5 / 86400, (len(TIMES), 1, 1)) * np.ones(d.u.shape)
    damp = rng.gamma(8.0, 0.375 / 86400, (len(TIMES), 1, 1)) * np.ones(d.u.shape)
    bounds = np.stack([TIMES - np.timedelta64(HOURS * 3600, "s"), TIMES], 1)
    gained = np.cumsum((damp - rain) * HOURS * 3600, 0)
    d["u"] = d.u + (gained - gained[0])
    d.u.attrs["units"] = "kg m-2"
    d["p"], d["e"] = (("time", *SPACE), rain, FLUX), (("time", *SPACE), damp, FLUX)
    d["time_bnds"] = (("time", "n"), bounds)
    d.time.attrs["bounds"] = "time_bnds"
    d.time.encoding["units"] = "hours since 2000-01-01"
    return d


def said(dataset, **law):
    return " ".join(check(dataset, FileLaw("u", SPACE, **law)).warnings)


@pytest.mark.parametrize("how", ["uniform", "proportional"])
def test_a_total_in_other_units_is_implausible_without_std(tmp_path, how):
    d = field()
    right = float(d.probconserv.totals(FileLaw("u", SPACE))[0])
    d.to_netcdf(tmp_path / "in.nc")
    words = ["enforce", tmp_path / "in.nc", "--mean", "u", "--over", "lat", "lon"]
    words += ["--total", f"{right / 1e12}", "--how", how, "-o", tmp_path / "out.nc"]
    strict = called(*words, "--strict")
    assert (strict.returncode, (tmp_path / "out.nc").exists()) == (3, False)
    done = called(*words)
    assert (done.returncode, (tmp_path / "out.nc").exists()) == (3, True)
    told = "about 1/1e+12 of what the field says, check its units (Gt and kg)"
    assert told in done.stdout


def test_python_warns_and_refuses_as_it_does_with_std(tmp_path):
    d = field()
    now = check(d, FileLaw("u", SPACE, average=0.0)).budgets[0].before
    law = FileLaw("u", SPACE, average=100 * float(now[0]))
    with pytest.warns(ImplausibleWarning, match="average is about 100 times what the field says"):
        out = d.probconserv.enforce(law, how="uniform")
    assert not out.probconserv.report["plausible"]
    assert out.probconserv.report["laws"][0]["answer"] == "does not agree"
    d.to_netcdf(tmp_path / "in.nc")
    with pytest.raises(ImplausibleError, match="`strict`"):
        enforce_file(tmp_path / "in.nc", tmp_path / "o.nc", law, how="uniform", strict=True)
    with pytest.raises(ImplausibleError, match="`strict`"):
        enforce(d.chunk(time=2), law, how="proportional", strict=True)


def test_a_move_beyond_the_standard_deviation_of_the_field_is_implausible():
    d = field(mean=288.0, spread=20.0, units="K")
    sizes = (np.cos(np.deg2rad(d.lat)) * xr.ones_like(d.u)).values  # nearly the areas
    std = np.sqrt(np.cov(d.u.values.ravel(), aweights=sizes.ravel(), ddof=0))
    now = check(d, FileLaw("u", SPACE, average=0.0)).budgets[0].before.values[0]
    assert not said(d, average=now + 0.95 * std)
    assert "9 of 9 averages move the field by more" in said(d, average=now + 1.05 * std)


def test_a_flux_with_the_wrong_sign_is_named():
    d = budget()
    assert not said(d, inflow="e", outflow="p")
    assert "inflow p fits the field with the other sign" in said(d, inflow=("e", "p"))
    assert "outflow e fits the field with the other sign" in said(d, outflow=("e", "p"))
    both = "the sum of inflow p and outflow e fits the field with the other sign"
    assert both in said(d, inflow="p", outflow="e")


@pytest.mark.parametrize(
    ("factor", "units"), [(3600, "hours and seconds"), (1000, "kg and g"), (1e-3, "kg and g")]
)
def test_a_flux_in_other_units_is_named_with_them(factor, units):
    d = budget()
    d["p"] = (d.p * factor).assign_attrs(FLUX)
    words = f"about {factor:g} times" if factor > 1 else "about 1/1000 of"
    assert f"outflow p is {words} what the field says, check its units ({units}" in said(
        d, inflow="e", outflow="p"
    )


def test_fluxes_that_bring_many_times_what_the_field_gains_are_implausible():
    d = budget().assign(u=field(noise=0.02).u)
    text = said(d.isel(time=slice(4)), outflow="p")
    assert "what outflow p bring" in text
    assert "check units and signs" in text


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_right_fluxes_and_noisy_fields_raise_no_alarm(noise, seed):
    d = budget(noise, seed)
    for law in ({"inflow": "e", "outflow": "p"}, {"total": "initial"}):
        assert not said(d, **law)
        assert not said(d.isel(time=slice(2)), **law)


@pytest.mark.parametrize(
    ("made", "law"),
    [
        ({"drift": 0.5}, {}),
        ({"mean": 288.0, "spread": 20.0, "noise": 0.2, "units": "K"}, {"average": 286.0}),
        ({"mean": -1.0, "spread": 15.0, "units": "degC"}, {"average": 4.0}),
        ({"mean": 0.0, "spread": 1.0, "noise": 0.01}, {"average": 0.0}),  # anomalies
        ({"mean": 98500.0, "spread": 9000.0, "noise": 30.0, "units": "Pa"}, {"average": 98600.0}),
        ({"mean": 405.0, "spread": 1.0}, {"average": 408.0}),  # well mixed
    ],
    ids=["drift", "temperature", "celsius", "anomalies", "pressure", "mixed"],
)
def test_small_corrections_raise_no_alarm(made, law):
    d = field(**made)
    d["land"] = (SPACE, np.where(np.arange(12) < 4, 1, 2) * np.ones((6, 1), int))
    assert not said(d, **law)
    assert not said(d, regions="land", **law)
    assert not said(d.isel(time=0, drop=True), **law, **({} if law else {"total": 1.2e16}))


def test_rain_that_is_nearly_0_somewhere_may_be_scaled():
    rain = np.random.default_rng(2).gamma(0.1, 30.0, (9, 6, 12))
    d = field().assign(u=(("time", *SPACE), rain, {"units": "mm d-1"}))
    now = d.u.mean(SPACE)
    now.attrs = d.u.attrs
    assert not said(d, average=0.5 * now, measure=1.0)
    assert not said(d, average=1.9 * now, measure=1.0)
    assert "about 1/24 of what the field says" in said(d, average=now / 24, measure=1.0)
    assert "is 0, that of the field is not" in said(d, average=0.0 * now, measure=1.0)
    assert "has another sign than that of the field" in said(d, average=-now, measure=1.0)


def test_fields_that_say_nothing_of_their_spread_are_not_judged_by_it():
    d = field(spread=0.0)
    assert not said(d, average=40.0)
    assert "100 times" in said(d, average=2500.0)


def test_with_std_or_members_it_is_these_that_say_what_is_plausible():
    d, law = field(), FileLaw("u", SPACE, average=60.0)
    assert check(d, law, std=40.0).plausible
    assert not check(d, law).plausible
    assert check(d, law, std=40.0).budgets[0].own is None


def test_lazy_data_and_many_files_are_judged_alike(tmp_path):
    d = budget()
    wanted = said(d, inflow=("e", "p"))
    assert said(d.chunk(time=2, lat=3), inflow=("e", "p")) == wanted
    for number in range(3):
        d.isel(time=slice(3 * number, 3 * number + 3)).to_netcdf(tmp_path / f"run_{number}.nc")
    law = FileLaw("u", SPACE, inflow=("e", "p"))
    with pytest.warns(ImplausibleWarning, match="inflow p fits the field with the other sign"):
        enforce_file(f"{tmp_path}/run_*.nc", tmp_path / "out.nc", law, how="uniform")


def test_a_rate_without_units_is_refused_and_assume_units_says_them(tmp_path):
    d = budget()
    d.p.attrs.pop("units")
    text = r"`outflow p` has no units, .*per second, or per day.*`assume_units=\{'p': 'kg m-2 s-1'"
    with pytest.raises(InputError, match=text):
        said(d, inflow="e", outflow="p")
    assert not said(d, inflow="e", outflow="p", assume_units={"p": FLUX["units"]})
    d.to_netcdf(tmp_path / "in.nc")
    words = ["check", tmp_path / "in.nc", "--mean", "u", "--over", "lat", "lon", "--outflow", "p"]
    refused = called(*words, "--inflow", "e")
    assert refused.returncode == 2
    assert "`--assume-units p='kg m-2 s-1'`" in refused.stderr
    done = called(*words, "--inflow", "e", "--assume-units", "p=kg m-2 s-1")
    assert done.returncode == 0, done.stdout


def test_a_rate_that_is_a_number_or_an_array_needs_units_too():
    d = field()
    for rate, name in ((1.0, "inflow"), (xr.DataArray(np.ones(9), dims="time", name="q"), "q")):
        with pytest.raises(InputError, match=f"has no units.*'{name}'"):
            said(d, inflow=rate)
        total = [
            check(d, FileLaw("u", SPACE, inflow=rate, assume_units={name: unit})).budgets[0].total
            for unit in ("kg s-1", "t h-1")
        ]
        gain = [float(each[-1] - each[0]) for each in total]
        np.testing.assert_allclose(gain, [48 * 3600, 48 * 1000], rtol=1e-6)


def test_a_rate_for_a_field_without_units_is_read_per_its_own_time():
    d = field(mean=5.0, spread=1.0, units="")
    rate = xr.DataArray(np.ones(9), dims="time", name="q", attrs={"units": "thing h-1"})
    found = check(d, FileLaw("u", SPACE, total=0.0, inflow=rate, measure=1.0)).budgets[0]
    np.testing.assert_allclose(found.total, np.arange(9) * HOURS)
    assert any("inflow q converted to per second: times 0.000277" in r for r in found.remarks)
    with pytest.raises(InputError, match=r"`inflow q` is in 'kg', which is not per time: no rate"):
        said(d, inflow=rate.assign_attrs(units="kg"), measure=1.0)


def test_rates_need_no_units_where_times_have_none():
    d = field(units="").assign_coords(time=np.arange(9))
    total = check(d, FileLaw("u", SPACE, total=0.0, inflow=2.0, measure=1.0)).budgets[0].total
    np.testing.assert_allclose(total, 2.0 * np.arange(9))


def test_the_verdict_and_the_json_say_how_far_the_totals_move_the_field(tmp_path):
    d = field(drift=1.2)
    d.to_netcdf(tmp_path / "in.nc")
    words = ["check", tmp_path / "in.nc", "--mean", "u", "--over", "lat", "lon", "--format", "json"]
    law = json.loads(called(*words).stdout)["laws"][0]
    assert law["answer"] is None
    assert law["verdict"].startswith("no `std` or members; the totals move the field by at most 0.")


def notes(dataset, law, **how):
    return " ".join(enforce(dataset, law, **how).probconserv.report["notes"])


def test_notes_do_not_recommend_what_was_just_used():
    d = xr.Dataset({"u": ("x", [0.1, 2.0, 3.0])})
    law = FileLaw("u", "x", total=4.5, measure=1.0)
    assert "`minimum=0` holds them, `how='proportional'` keeps signs" in notes(
        d, law, how="uniform"
    )
    again = notes(d, law, how="uniform", minimum=-1.0)
    assert ("minimum" in again, "proportional" in again) == (False, True)
    signed = FileLaw({"u": xr.DataArray([1.0, 1.0, -1.0], dims="x")}, "x", total=-9.0, measure=1.0)
    with pytest.warns(ImplausibleWarning):
        turned = notes(d, signed, how="proportional")
    assert ("minimum" in turned, "proportional" in turned) == (True, False)


def test_ways_out_of_a_total_that_cannot_be_met_are_not_what_was_used():
    d = xr.Dataset({"u": ("x", [0.0, 0.0])})
    law = FileLaw("u", "x", total=1.0, measure=1.0)
    with pytest.raises(InfeasibleError, match=r"`how` 'proportional' .* Ways out: `how` 'uniform'"):
        enforce(d, law, how="proportional")
    with pytest.raises(InfeasibleError, match=r"Ways out: more spread, `noise`\.$"):
        enforce(d, law, std=0.0)
    for how, ends in (
        ({"how": "uniform"}, r"another total\."),
        ({"std": 1.0}, r"total, `noise`\."),
    ):
        with pytest.raises(InfeasibleError, match=f"`minimum` and `maximum`.* {ends}"):
            enforce(d, law, minimum=-0.1, maximum=0.1, **how)
