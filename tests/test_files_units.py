"""Units of what a law is given: compared, converted and said in the report."""

import cf_units
import numpy as np
import pytest
import xarray as xr

from probconserv.cli.main import main
from probconserv.errors import InputError
from probconserv.files import (
    FileLaw,
    cell_measure,
    check,
    check_file,
    enforce,
    enforce_file,
    moisture,
    totals,
)
from probconserv.files import _attributes as units

pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")

AREA = np.array([[2.0, 3.0, 1.0], [4.0, 1.0, 5.0]])
DAYS = np.array(["2000-01-01", "2000-01-02", "2000-01-04", "2000-01-05"], "datetime64[ns]")
GRID = ("time", "y", "x")


def made(unit, **others):
    """4 times on 2 x 3 cells of unequal area; others are totals as (value, unit) and the like."""
    u = 5 + np.random.default_rng(0).normal(0, 1, (4, 2, 3))
    fields = {"u": (GRID, u, {"units": unit}), "a": (("y", "x"), AREA, {"units": "m2"})}
    for name, (value, its) in others.items():
        dims = GRID[3 - np.ndim(value) :]
        fields[name] = (dims, value, {} if its is None else {"units": its})
    return xr.Dataset(fields, {"time": DAYS})


def law(**given):
    return FileLaw("u", ("y", "x"), **{"measure": "a", "total": 100.0} | given)


def sums(dataset):
    return (dataset["u"].values * AREA).sum((1, 2))


def remarks(dataset, *laws, **how):
    return [
        remark for budget in check(dataset, *laws, **how).budgets for remark in of_units(budget)
    ]


def of_units(budget):
    """The remarks that are not about time or noise."""
    others = ("time: ", "total known", "average known")
    return [r for r in budget.remarks if not r.startswith(others) and "cell_methods" not in r]


@pytest.mark.parametrize(
    ("unit", "total", "want"),
    [("kg m-2", "Gt", 1e12), ("kg m-2", "kg", 1), ("hPa", "N", 0.01), ("Pa", "hPa m2", 100),
     ("%", "m2", 100), ("g kg-1", "m2", 1000), ("W/m2", "MW", 1e6), ("kg/m^2", "kg", 1),
     ("kg m^-2", "g", 1e-3), ("kg.m-2", "t", 1e3), ("m s**-1", "m3 day-1", 1 / 86400),
     ("percent", "% m2", 1), ("mb", "Pa m2", 0.01), ("DU", "DU m2", 1), ("kgC m-2", "PgC", 1e12),
     ("kg C m-2", "tC", 1e3), ("gCO2/m2", "MtCO2", 1e12), ("psu", "psu m2", 1), ("-", "m2", 1),
     ("0-1", "km2", 1e6), ("bananas", "m2 bananas", 1), ("degC", "m2 degC", 1), ("1", "ha", 1e4),
     ("J/(m2 K)", "J K-1", 1), ("kg m⁻²", "kg", 1), ("kg m -2", "kg", 1), ("$W m^{-2}$", "W", 1),
     ("[-]", "m2", 1), ("m of water", "(m of water) m2", 1)],
)  # fmt: skip
def test_a_total_is_converted_to_the_unit_of_the_sum(unit, total, want):
    budget = check(made(unit, T=(7.0, total)), law(total="T")).budgets[0]
    np.testing.assert_allclose(budget.total, 7.0 * want, rtol=1e-13)
    assert (f"times {want:.10g}" in " ".join(budget.remarks)) == (want != 1)


@pytest.mark.parametrize(
    ("unit", "want"),
    [("kg m-2", "kg"), ("DU", "DU m2"), ("hPa", "hPa m2"), ("K", "K m2"), ("W/m^2", "W"),
     ("m s**-1", "m3 s-1"), ("kgC m-2", "kgC"), ("1", "m2"), ("10^6 kg", "10^6 kg m2")],
)  # fmt: skip
def test_the_unit_of_the_sum_reads_as_the_user_wrote_it(unit, want):
    assert check(made(unit), law()).budgets[0].unit == want
    assert totals(made(unit), law()).attrs["units"] == want


def test_every_known_unit_means_what_udunits_says():
    for text in ("kg m-2 s-1", "J/(kg K)", "m2 s**-2", "W per m2", "1e-3 kg", "10^6 km^2", "/s",
                 "mol/m3/day", "(m/s) s", "hPa day-1", "kg/(m^2*s)", "kg m-2/ (3 s)"):  # fmt: skip
        theirs = cf_units.Unit(text.replace("/s", "1/s") if text == "/s" else text)
        for ours in (text, units.product(text), units.product(units.product(text, "m2"), "m-2")):
            found = units.conversion("total", ours, theirs.definition, "that")
            assert found.factor == pytest.approx(1.0, rel=1e-14), (text, ours)


@pytest.mark.parametrize(
    ("unit", "total", "hint"),
    [("K", "degC m2", "zeros differ"), ("degC", "K m2", "zeros differ"),
     ("degC", "degF m2", "zeros differ"), ("deg C", "K m2", "zeros differ"),
     ("kg m-2", "kg m-2", "a mean .*`average`"), ("kg m-2", "m3", "1 mm of water is"),
     ("kgC m-2", "kg", "does not know 'of C'.*assume_units"), ("kg m-2", "KG", "know 'KG'"),
     ("kg m-2", "bananas", "assume_units.*'T'.*--assume-units T"), ("K", "C", "another quantity"),
     ("DU", "kg", "another quantity"), ("day as %Y%m%d.%f", "s", "assume_units"),
     ("dBZ", "m2", "dBZ"), ("s m-2", "s-1", "another quantity"),
     ("K", "days since 2000-01-01", "another quantity")],
)  # fmt: skip
def test_a_total_that_no_factor_converts_is_refused(unit, total, hint):
    with pytest.raises(InputError, match=f"`total T` is in .*{hint}"):
        check(made(unit, T=(7.0, total)), law(total="T"))


def test_heat_of_temperatures_in_celsius_may_be_stated_in_joules():
    d = made("degC", c=(np.full((2, 3), 4e6), "J m-2 K-1"), T=(5e8, "J"))
    budget = check(d, FileLaw({"u": "c"}, ("y", "x"), total="T", measure="a")).budgets[0]
    np.testing.assert_allclose(budget.total, 5e8)
    assert not of_units(budget)


def test_the_noise_of_a_total_is_a_difference():
    d = made("degC", T=(100.0, "degC m2"), n=(0.5, "K km2"))
    budget = check(d, law(total="T", noise="n")).budgets[0]
    np.testing.assert_allclose(budget.noise, 0.5e6)
    assert of_units(budget) == ["noise n converted from K km2 to degC m2: times 1000000"]


@pytest.mark.parametrize(
    ("unit", "rate", "per_second"),
    [("kg m-2", "kg m-2 s-1", 1), ("kg m-2", "kg m-2 day-1", 1 / 86400), ("J m-2", "W/m2", 1),
     ("hPa", "Pa hour-1", 0.01 / 3600), ("degC", "K s-1", 1), ("K", "degC day-1", 1 / 86400),
     ("g kg-1", "kg kg-1 s-1", 1000), ("PgC", "GtC min-1", 1 / 60)],
)  # fmt: skip
def test_rates_on_the_grid_are_converted(unit, rate, per_second):
    values = np.arange(24.0).reshape(4, 2, 3)
    budget = check(made(unit, e=(values, rate)), law(inflow="e")).budgets[0]
    seconds = np.array([0, 1, 3, 4]) * 86400.0
    net = (values * AREA).sum((1, 2))
    steps = np.diff(seconds) * (net[1:] + net[:-1]) / 2
    want = 100 + np.concatenate([[0], np.cumsum(steps)]) * per_second
    np.testing.assert_allclose(budget.total, want, rtol=1e-12)
    assert bool(of_units(budget)) == (per_second != 1)


@pytest.mark.parametrize("rate", ["mm day-1", "m2", "K s-1", "kg s-1"])
def test_rates_of_another_quantity_are_refused(rate):
    d = made("kg m-2", e=(np.ones((4, 2, 3)), rate))
    with pytest.raises(InputError, match=r"`outflow e` is in .* in 'kg m-2 s-1', another"):
        check(d, law(outflow="e"))


def test_rates_of_totals_are_converted():
    d = made("kg m-2").assign(r=("time", [1.0, 1.0, 1.0, 1.0], {"units": "t day-1"}))
    np.testing.assert_allclose(check(d, law(inflow="r")).budgets[0].total, [100, 1100, 3100, 4100])
    assert (
        "inflow r converted from t day-1 to kg s-1: times 0.0115" in remarks(d, law(inflow="r"))[0]
    )


def test_rates_of_a_field_with_a_factor_are_rates_of_their_product():
    d = made("degC", c=(np.full((2, 3), 4e6), "J m-2 K-1"), e=(np.ones((4, 2, 3)), "kW m-2"))
    heat = FileLaw({"u": "c"}, ("y", "x"), total=0.0, measure="a", inflow="e")
    np.testing.assert_allclose(check(d, heat).budgets[0].total[1], 1e3 * AREA.sum() * 86400)
    d["e"].attrs["units"] = "K s-1"
    with pytest.raises(InputError, match="another quantity"):
        check(d, heat)


def test_variables_of_one_law_are_converted_to_the_first():
    d = made("kg m-2", v=(np.full((4, 2, 3), 3.0), "g m-2"))
    both = FileLaw({"u": 1.0, "v": -1.0}, ("y", "x"), total=60.0, measure="a")
    before = check(d, both).budgets[0].before
    np.testing.assert_allclose(before, sums(d) - 3e-3 * AREA.sum())
    assert remarks(d, both) == ["v converted from g to kg: times 0.001"]
    out = enforce(d, both, std=1.0)
    after = ((out.u.values - 1e-3 * out.v.values) * AREA).sum((1, 2))
    np.testing.assert_allclose(after, 60.0)
    d["v"].attrs["units"] = "K"
    with pytest.raises(InputError, match=r"`v` is in .*another quantity"):
        check(d, both)


def test_celsius_and_kelvin_are_not_summed():
    d = made("degC", v=(np.full((4, 2, 3), 300.0), "K"))
    with pytest.raises(InputError, match="zeros differ"):
        check(d, FileLaw({"u": 1.0, "v": 1.0}, ("y", "x"), total=60.0, measure="a"))


@pytest.mark.parametrize(
    ("unit", "std", "factor"),
    [("K", "K", 1), ("K", "mK", 1e-3), ("degC", "K", 1), ("K", "degC", 1), ("K", "degF", 5 / 9),
     ("hPa", "Pa", 0.01), ("%", "1", 100), ("kg m-2", "g/m2", 1e-3), ("DU", "DU", 1)],
)  # fmt: skip
def test_std_is_converted_and_written_back_in_its_own_unit(unit, std, factor):
    s = np.random.default_rng(1).uniform(1, 2, (4, 2, 3))
    d = made(unit, s=(s, std))
    out = enforce(d, law(total=90.0), std="s")
    want = enforce(made(unit, s=(s * factor, unit)), law(total=90.0), std="s")
    np.testing.assert_allclose(out.u, want.u, rtol=1e-12)
    np.testing.assert_allclose(out.s * factor, want.s, rtol=1e-12)
    assert out.s.attrs["units"] == std
    np.testing.assert_array_equal(d.s, s)


def test_std_in_other_units_moves_points_by_its_true_variance():
    s = np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 1.0]])
    d = made("K", s=(s * 1000, "mK"))
    moved = enforce(d, law(total=90.0), std="s").u - d.u
    weights = s**2 * AREA
    want = (90 - sums(d))[:, None, None] * weights / (weights * AREA).sum()
    np.testing.assert_allclose(moved, want, rtol=1e-10)
    assert remarks(d, law(), std="s") == ["std s converted from mK to K: times 0.001"]


@pytest.mark.parametrize(
    ("unit", "std", "hint"),
    [("K", "K2", "is it a variance"), ("kg m-2", "kg2 m-4", "is it a variance"),
     ("K", "%", "unit of its variable"), ("K", "1", "unit of its variable"),
     ("K", "m2", "unit of its variable"), ("kg m-2", "mm", "1 mm of water")],
)  # fmt: skip
def test_std_of_another_quantity_is_refused(unit, std, hint):
    d = made(unit, s=(np.ones((4, 2, 3)), std))
    for given in ("s", {"u": "s"}, d.s.rename(None)):
        with pytest.raises(InputError, match=f"`std.* is in .*{hint}"):
            enforce(d, law(), std=given)


def test_a_side_without_units_is_said():
    d = made("kg m-2", T=(7.0, None), E=(7.0, ""), s=(np.ones((2, 3)), None))
    said = remarks(d, law(total="T"), std="s")
    assert said == [f"units of {each} not compared: it has none" for each in ("total T", "std s")]
    assert remarks(d, law(total="E")) == ["units of total E not compared: it has none"]
    del d.u.attrs["units"]
    d["T"].attrs["units"] = "kg"
    assert remarks(d, law(total="T")) == ["units of total T not compared: that of u has none"]
    assert not remarks(d, law(total="E"), std="s")


def test_numbers_are_in_the_unit_of_the_sum():
    assert not remarks(made("kg m-2"), law(total=5.0, noise=1.0), std=1.0)


def test_assumed_units_replace_those_of_the_file(tmp_path):
    d = made("kg C m-2", T=(7.0, "petagrams"), s=(np.ones((4, 2, 3)), "who knows"))
    asked = law(total="T", assume_units={"u": "kg m-2", "T": "Mg", "s": "g m-2"})
    budget = check(d, asked, std="s").budgets[0]
    np.testing.assert_allclose(budget.total, 7e3)
    assert "units of T assumed: Mg" in budget.remarks
    out = enforce(d, asked, std="s")
    np.testing.assert_allclose(sums(out), 7e3)
    assert [out[name].units for name in "uTs"] == ["kg C m-2", "petagrams", "who knows"]
    assert d["T"].units == "petagrams"
    d.to_netcdf(tmp_path / "in.nc")
    enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", asked, std="s")
    np.testing.assert_allclose(sums(xr.load_dataset(tmp_path / "out.nc")), 7e3)
    assert not check_file(tmp_path / "in.nc", asked).closes()


def test_assumed_units_on_the_command_line(tmp_path, capsys):
    made("mm", T=(7.0, "KG")).to_netcdf(tmp_path / "in.nc")
    given = ["check", str(tmp_path / "in.nc"), "--mean", "u", "--over", "y", "x", "--measure", "a"]
    given += ["--total", "T", "--assume-units", "T=g", "u=kg m-2"]
    with pytest.raises(SystemExit, match="1"):
        main(given)
    said = capsys.readouterr().out
    assert "units of u assumed: kg m-2" in said
    assert "total T converted from g to kg: times 0.001" in said


@pytest.mark.parametrize(
    ("given", "rule"),
    [({"nobody": "kg"}, "no variable 'nobody'"), ({"u": ""}, "one unit"), ("kg", "units by name")],
)
def test_assumed_units_that_cannot_be_used_are_refused(given, rule):
    with pytest.raises(InputError, match=f"`assume_units`.*{rule}"):
        check(made("K"), law(assume_units=given))


def test_two_laws_may_not_assume_two_units():
    with pytest.raises(InputError, match="`assume_units` of `u` must be one unit"):
        check(made("K"), law(assume_units={"u": "K"}), law(assume_units={"u": "degC"}))


@pytest.mark.parametrize("unit", ["unknown", "?"])
def test_a_unit_that_says_nothing_is_not_the_one_that_is_wanted(unit):
    levels = xr.Variable("z", [1e4, 5e4, 9e4], {"units": unit})
    d = xr.Dataset({"q": ("z", np.ones(3), {"units": "1"})}, {"z": levels})
    assert "dp" not in cell_measure(d, "q", ("z",)).description
    with pytest.raises(InputError, match=r"`moisture` needs .* units of a pressure"):
        moisture(d)
