"""Areas as arithmetic of what a file holds, and messages that name the arithmetic to give."""

import dask.array as da
import netCDF4
import numpy as np
import pytest
import xarray as xr

from probconserv.cli.main import main
from probconserv.errors import InputError
from probconserv.files import FileLaw, cell_measure, check, check_file, enforce_file, totals

NY, NX = 3, 4
RNG = np.random.default_rng(0)
E1, E2 = RNG.uniform(1e4, 2e4, (2, NY, NX))
LAT, LON = np.meshgrid(np.linspace(40, 41, NY), np.linspace(-20, -18, NX), indexing="ij")


def model(dims, lat="nav_lat", lon="nav_lon", **variables):
    """A field `u` on two times and curvilinear cells without corners, as a model writes it."""
    angles = {lat: (dims, LAT, {"units": "degrees_north"})}
    angles |= {lon: (dims, LON, {"units": "degrees_east"})}
    time = ("time", [0.0, 1.0], {"units": "days since 2000-01-01"})
    values = np.arange(2.0 * NY * NX).reshape(2, NY, NX) % (NY * NX + 1)
    field = xr.Dataset({"u": (("time", *dims), values, {"units": "kg m-2"})}, {"time": time})
    return field.assign_coords(angles).assign(variables).copy(deep=True)


def nemo(unit="m", **more):
    own = {"units": unit} if unit else {}
    return model(("y", "x"), e1t=(("y", "x"), E1, own), e2t=(("y", "x"), E2, own), **more)


ROMS = ("eta_rho", "xi_rho")


def roms(unit="meter-1", e1=E1):
    own = {"units": unit}
    return model(ROMS, "lat_rho", "lon_rho", pm=(ROMS, 1 / e1, own), pn=(ROMS, 1 / E2, own))


WRF = ("south_north", "west_east")
FACTOR = np.linspace(0.9, 1.1, NX)


def wrf(projection=1, **more):
    names = ["MAPFAC_M", "MAPFAC_MX", "MAPFAC_MY"]
    by = np.broadcast_to(FACTOR, (2, NY, NX))
    factors = {name: (("time", *WRF), by, {"units": ""}) for name in names}
    attrs = {"DX": np.float32(9000), "DY": np.float32(3000), "MAP_PROJ": np.int32(projection)}
    return model(WRF, "XLAT", "XLONG", **factors, **more).assign_attrs(attrs)


CASES = {
    "e1t*e2t": (nemo, E1 * E2),
    " ( e1t ) * 'e2t' ": (nemo, E1 * E2),
    "1/(pm*pn)": (roms, E1 * E2),
    "pm**-1 / pn": (roms, E1 * E2),
    "DX*DY/MAPFAC_M**2": (wrf, 9000 * 3000 / FACTOR**2),
    "DX*DY/(MAPFAC_MX*MAPFAC_MY)": (wrf, 9000 * 3000 / FACTOR**2),
    "0.5e1*e1t*e2t - -2*e1t**2 + e2t**2": (nemo, 5 * E1 * E2 + 2 * E1**2 + E2**2),
    "(e1t**4)**.5*e2t/e1t": (nemo, E1 * E2),
}


@pytest.mark.parametrize("text", CASES)
def test_areas_are_calculated_and_their_unit_too(text):
    make, areas = CASES[text]
    dataset = make()
    over = dataset.u.dims[1:]
    found = totals(dataset, FileLaw("u", over, measure=text))
    np.testing.assert_allclose(found, (dataset.u.values * areas).sum((1, 2)), rtol=1e-12)
    assert found.units in ("kg", "kg m-2 meter2")
    assert f"weights: {text}, calculated" in str(check(dataset, FileLaw("u", over, measure=text)))


def test_a_power_binds_before_a_sign_and_signs_of_one_kind_go_from_the_left():
    dataset = nemo("1")
    for text, want in (("-e1t**2 + 9*e1t**2", 8 * E1**2), ("e1t/2/4*e2t", E1 / 8 * E2)):
        weights = cell_measure(dataset, "u", ("y", "x"), text)
        np.testing.assert_allclose(weights, want, rtol=1e-14)
    assert (cell_measure(dataset, "u", ("y", "x"), "8-4-e1t/e1t") == 3).all()


def test_a_variable_of_the_whole_name_is_no_arithmetic():
    area = (("y", "x"), np.full((NY, NX), 7.0), {"units": "m2"})
    weights = cell_measure(nemo(**{"e1t*e2t": area}), "u", ("y", "x"), "e1t*e2t")
    assert (weights == 7).all()
    assert weights.description == "the variable e1t*e2t"


@pytest.mark.parametrize("name", ["cell-width", "cell width", "cell.width", "größe"])
def test_names_with_other_signs_stand_in_quotes(name):
    dataset = nemo(**{name: (("y", "x"), E1)})
    quoted = name if name in ("cell.width", "größe") else f"'{name}'"
    weights = cell_measure(dataset, "u", ("y", "x"), f"{quoted}*e2t")
    np.testing.assert_allclose(weights, E1 * E2, rtol=1e-15)


def test_the_unit_stays_unknown_where_a_name_has_none():
    weights = cell_measure(nemo(unit=None), "u", ("y", "x"), "e1t*e2t")
    assert "units" not in weights.attrs
    assert "its unit is not known: e1t, e2t without `units`" in weights.description
    law = FileLaw("u", ("y", "x"), measure="e1t*e2t", assume_units={"e1t": "km", "e2t": "km"})
    assert check(nemo(unit=None), law).budgets[0].unit == "kg m-2 km2"


def test_attributes_have_no_unit_but_those_of_wrf():
    dataset = wrf()
    said = "DX*DY, calculated, for every cell with DX in m and DY in m as in WRF"
    assert cell_measure(dataset, "u", WRF, "DX*DY").description == said
    del dataset.attrs["MAP_PROJ"]
    weights = cell_measure(dataset, "u", WRF, "DX*DY/MAPFAC_M**2")
    assert "units" not in weights.attrs
    assert "DX, DY, MAPFAC_M without `units`" in weights.description


def test_only_like_units_are_added():
    dataset = nemo()
    dataset.e2t.attrs["units"] = "km"
    weights = cell_measure(dataset, "u", ("y", "x"), "(e1t + e2t)*e1t")
    np.testing.assert_allclose(weights, (E1 + 1000 * E2) * E1, rtol=1e-14)
    for text in ("e1t + e2t**2", "e1t - 1"):
        with pytest.raises(InputError, match=r"`measure` is in .* is in 'm', another quantity"):
            cell_measure(dataset, "u", ("y", "x"), text)


WRONG = {
    "e1t*": "`measure` 'e1t[*]' cannot be read. Arithmetic has numbers, names",
    "-e1t e2t": "cannot be read at .*e2t'",
    "2e1t*e2t": "'2e1t[*]e2t' cannot be read at",
    "(e1t*e2t": "cannot be read",
    "e1t*e2t)": r"cannot be read at '\)'",
    "e1t**e2t": "cannot be read at 'e2t'",
    "e1t**99": "cannot be read at '99'.*from -9 to 9",
    "e1t**2**3": r"cannot be read at '2\*\*3'",
    "e1t//e2t": "cannot be read at 'e1t//e2t'",
    "+e1t*e2t": "cannot be read at '[+]e1t'",
    "e1t*True": "cannot be read at 'True'",
    "e1t*e2t # m": "cannot be read at '# m'",
    "f'{e1t}'*e2t": "cannot be read at",
    "abs(e1t)": r"cannot be read at 'abs\(e1t\)'",
    "e1t.__class__*2": "no variable or global attribute 'e1t.__class__' here. There are: u",
    "e1t*e2t[0]": r"cannot be read at 'e2t\[0\]'",
    "e1t*e3t": "no variable or global attribute 'e3t' here. Did you mean 'e[12]t'",
    "e1t*TITLE": "no variable or global attribute 'TITLE' here",
    "e1t*name": "'name' holds <U1, not numbers",
    "1+1": "'1[+]1' names nothing of the file",
    "(" * 198 + "e1t*(2+" + ")" * 190: "cannot be read",
    "e1t" + "+e1t" * 100: "must have 400 signs at most, got 403",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_arithmetic_is_refused_with_the_rule(text):
    dataset = nemo(name=("x", list("abcd"))).assign_attrs(TITLE="a model")
    with pytest.raises(InputError, match=WRONG[text]) as error:
        cell_measure(dataset, "u", ("y", "x"), text)
    assert "`measure`" in str(error.value)


def test_long_rows_of_signs_are_read():
    minus = cell_measure(nemo(), "u", ("y", "x"), "-" * 300 + "e1t*e2t")
    np.testing.assert_allclose(minus, E1 * E2, rtol=1e-15)


NO_AREA = {
    "1/(pm*pn)": r"got inf at eta_rho number 1, xi_rho number 2: 1/\(pm\*pn\), calculated, maybe a",
    "pm/pm": r"got inf at eta_rho number 1, xi_rho number 2.* division by 0",
    "pn - 2*pn": r"finite and not negative, got -.* at eta_rho number .*: pn - 2",
    "(pm - pn)**0.5": "finite and not negative, got inf",
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("text", NO_AREA)
def test_what_no_cell_can_have_is_refused_with_its_place(text, lazy, monkeypatch):
    e1 = E1.copy()
    e1[1, 2] = np.inf
    dataset = roms(e1=e1)
    if lazy:
        monkeypatch.setattr("probconserv.files._weights.SMALL", 0)
        dataset = dataset.chunk(eta_rho=1)
    with pytest.raises(InputError, match=f"`measure` must be .*{NO_AREA[text]}"):
        cell_measure(dataset, "u", ROMS, text).compute()


def test_cells_without_a_size_do_not_count():
    dataset = nemo()
    dataset.e1t[0, :2] = np.nan
    weights = cell_measure(dataset, "u", ("y", "x"), "e1t**0*e2t")
    assert (weights[0, :2] == 0).all()
    assert "(missing in 2 cells with values of u)" in weights.description


def test_large_arrays_stay_lazy(monkeypatch):
    monkeypatch.setattr("probconserv.files._weights.SMALL", 0)
    wide = da.ones((2, 9), chunks=(1, 9))
    dataset = xr.Dataset({"u": (("y", "x"), wide), "e1t": (("y", "x"), wide)}, attrs={"DX": 2.0})
    weights = cell_measure(dataset, "u", ("y", "x"), "DX*e1t")
    assert weights.chunks == ((1, 1), (9,))
    assert (weights.compute() == 2).all()


def mesh_mask(path):
    """A grid in a file of its own with a time of one entry, as NEMO writes it, without units."""
    sizes = {"e1t": (("t", "y", "x"), E1[None]), "e2t": (("t", "y", "x"), E2[None])}
    xr.Dataset(sizes, attrs={"area": 3.0}).to_netcdf(path, unlimited_dims="t")


@pytest.mark.parametrize("text", ["e1t*e2t", "(e1t*e2t)/(1/1)"])
def test_the_grid_may_lie_in_a_file_of_its_own(tmp_path, text):
    nemo().drop_vars(["e1t", "e2t"]).to_netcdf(tmp_path / "u.nc")
    mesh_mask(tmp_path / "mesh_mask.nc")
    law = FileLaw("u", ("y", "x"), measure=f"{tmp_path}/mesh_mask.nc:{text}")
    report = enforce_file(tmp_path / "u.nc", tmp_path / "new.nc", law, how="uniform")
    assert f"{text}, calculated in mesh_mask.nc; its unit is not known" in str(report)
    with xr.open_dataset(tmp_path / "new.nc") as new:
        sums = (new.u * E1 * E2).sum(("y", "x"))
        assert sums[1].item() == pytest.approx(sums[0].item(), rel=1e-12)
    wrong = FileLaw("u", ("y", "x"), measure=f"{tmp_path}/mesh_mask.nc:e1*e2t")
    with pytest.raises(InputError, match=r"attribute 'e1' in mesh_mask.nc\. Did you mean 'e1t'"):
        check_file(tmp_path / "u.nc", wrong)


def test_one_time_of_the_grid_is_taken_for_all_and_said():
    grid = xr.DataArray((E1 * E2)[None], dims=("time", "y", "x"))
    weights = cell_measure(nemo(), "u", ("y", "x"), grid)
    assert weights.dims == ("y", "x")
    assert weights.description == "the array given; its one time taken for all"
    with pytest.raises(InputError, match="`measure` has 1 entries along 'x', `u` has 4"):
        cell_measure(nemo(), "u", ("y", "x"), grid[0, :, :1])


def test_the_mask_of_a_grid_may_have_a_time_of_one_entry():
    sea = np.arange(NY * NX).reshape(1, NY, NX) % 3
    dataset = nemo(tmaskutil=(("t", "y", "x"), sea))
    law = FileLaw("u", ("y", "x"), measure="e1t*e2t", where="tmaskutil")
    want = (dataset.u.values * E1 * E2 * (sea > 0)).sum((1, 2))
    np.testing.assert_allclose(totals(dataset, law), want, rtol=1e-12)


def test_groups_have_the_attributes_of_those_around(tmp_path):
    path = tmp_path / "groups.nc"
    wrf().to_netcdf(path, group="run/day")
    with netCDF4.Dataset(path, "a") as file:
        file.DX, file.MAP_PROJ, file["run"].DY = 9000.0, 1, 10.0
        for name in ("DX", "DY", "MAP_PROJ"):
            file["run/day"].delncattr(name)
    law = FileLaw("u", WRF, measure="DX*DY/MAPFAC_M**2")
    (budget,) = check_file(path, law, group="run/day").budgets
    want = (wrf().u.values * 9e4 / FACTOR**2).sum((1, 2))
    np.testing.assert_allclose(budget.before, want, rtol=1e-12)
    for measure in ("run/day/MAPFAC_M", "run/day/DX*DY/MAPFAC_M**2"):
        there = FileLaw("u", WRF, measure=f"{path}:{measure}")
        assert check_file(path, there, group="run/day").budgets


def test_the_name_of_a_file_alone_is_no_arithmetic():
    with pytest.raises(InputError, match=r"`measure`: no variable 'a-b/c.nc' here. FILE:VARIABLE"):
        cell_measure(nemo(), "u", ("y", "x"), "a-b/c.nc")


def options(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(("check", *map(str, words)))
    out, error = capsys.readouterr()
    return end.value.code, out + error


def test_arithmetic_is_taken_from_the_command_line_and_from_toml(tmp_path, capsys):
    roms().to_netcdf(tmp_path / "u.nc")
    (tmp_path / "laws.toml").write_text(
        '[[law]]\nvariables = "u"\nover = ["eta_rho", "xi_rho"]\nmeasure = "1/(pm*pn)"\n'
    )
    given = ["--mean", "u", "--over", *ROMS, "--measure", "1/(pm*pn)"]
    for words in (given, ["--laws", tmp_path / "laws.toml"]):
        status, said = options(capsys, tmp_path / "u.nc", *words)
        assert status == 1
        assert "weights: 1/(pm*pn), calculated\n" in said


def at_depths(dim, dataset):
    return dataset.assign(u=dataset.u.expand_dims({dim: [1.0, 2.0]}))


AREA = (("y", "x"), E1 * E2, {"units": "m2"})
PLAIN = model(("y", "x"))
U_POINTS = nemo().rename(e1t="e1u", e2t="e2u")
PROPOSED = {
    "e1t*e2t": nemo(),
    "e1u*e2u": at_depths("depthu", U_POINTS.assign(e1t=AREA, e2t=AREA)),
    "1/(pm*pn)": roms(),
    "DX*DY/MAPFAC_M**2": wrf(),
    "DX*DY/(MAPFAC_MX*MAPFAC_MY)": wrf(6),
    "area": PLAIN.assign(area=AREA),
    "areacello": PLAIN.assign(areacello=AREA),
    "TAREA": PLAIN.assign(TAREA=AREA, UAREA=AREA).rename(nav_lat="TLAT", nav_lon="TLONG"),
    "UAREA": PLAIN.assign(TAREA=AREA, UAREA=AREA).rename(nav_lat="ULAT", nav_lon="ULONG"),
    "dxt*dyt": PLAIN.assign(dxt=AREA, dyt=AREA),
    "mesh_mask.nc:e1t*e2t": PLAIN,
    "mesh_mask.nc:e1u*e2u": at_depths("depthu", PLAIN),
    "roms_grd.nc:1/(pm*pn)": roms().drop_vars("pm"),
    "wrfinput.nc:DX*DY/MAPFAC_M**2": model(WRF, "XLAT", "XLONG"),
}


@pytest.mark.parametrize("text", PROPOSED)
def test_the_message_names_the_arithmetic_that_the_file_allows(text):
    dataset = PROPOSED[text]
    over = dataset.u.dims[-2:]
    with pytest.raises(InputError, match="have no bounds") as error:
        cell_measure(dataset, "u", over)
    assert f"`measure={text!r}`" in str(error.value)
    assert "cdo" not in str(error.value)
    if ".nc" not in text:
        assert cell_measure(dataset, "u", over, text).sum() > 0


def test_both_kinds_of_points_are_named_where_the_file_does_not_tell():
    dataset = nemo().assign(e1u=AREA, e2u=AREA)
    with pytest.raises(InputError, match=r"e1t\*e2t'` at T points or `measure='e1u\*e2u'` at U p"):
        cell_measure(dataset, "u", ("y", "x"))
    told = dataset.assign_attrs(description="ocean U grid variables")
    with pytest.raises(InputError, match=r"Give `measure='e1u\*e2u'`, which the file has"):
        cell_measure(told, "u", ("y", "x"))


def test_the_areas_that_cell_measures_name_are_asked_for():
    dataset = model(("y", "x"))
    dataset.u.attrs["cell_measures"] = "area: areacello"
    with pytest.raises(InputError, match=r"give `measure='areacello.nc:areacello'`, with the path"):
        cell_measure(dataset, "u", ("y", "x"))


def test_points_between_those_of_roms_are_no_cells_of_pm_and_pn():
    dataset = roms().rename(u="rho").assign(model(("eta_u", "xi_u"), "lat_u", "lon_u")[["u"]])
    with pytest.raises(InputError, match=r"pm and pn at rho points alone: average them .* 'u'"):
        cell_measure(dataset, "u", ("eta_u", "xi_u"))


def test_levels_are_weighed_by_volumes_or_masses_of_the_file():
    deep = at_depths("deptht", nemo())
    deep["e3t"] = deep.u * 0 + 5
    layers = wrf()
    layers["u"] = layers.u.expand_dims(bottom_top=2)
    shape = {"MU": WRF, "MUB": WRF, "DNW": ("bottom_top",)}
    ones = xr.ones_like(layers.u)
    layers = layers.assign(
        {
            name: ones.isel({d: 0 for d in ones.dims if d not in dims})
            for name, dims in shape.items()
        }
    )
    found = [("(MU+MUB)*-DNW*DX*DY/MAPFAC_M**2", layers, ("bottom_top", *WRF))]
    found += [("e1t*e2t*e3t", deep, ("deptht", "y", "x"))]
    for text, dataset, over in found:
        with pytest.raises(InputError) as error:
            cell_measure(dataset, "u", over)
        assert f"Give `measure={text!r}`, which the file has" in str(error.value)
