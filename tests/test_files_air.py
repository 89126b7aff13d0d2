"""Recipes beside the plain case: members, other levels, other files, and what cannot be found."""

import numpy as np
import pytest
import xarray as xr
from air import AREA, CLOUDS, GRID, G, air, mass, on_pressure_levels
from commands import called

from probconserv.errors import InputError
from probconserv.files import FileLaw, check, check_file, dry_air, enforce, moisture

pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")


def with_members(*names, **more):
    """Three members of the variables of these names."""
    dataset = air(**more)
    by = xr.DataArray([0.9, 1.0, 1.2], dims="member")
    many = {name: (by * dataset[name]).assign_attrs(dataset[name].attrs) for name in names}
    return dataset.assign(many)


def test_clouds_without_members_count_for_each_of_them():
    dataset = with_members("q", **CLOUDS)
    new = enforce(dataset, moisture, member="member").q.transpose("member", ...)
    water = ((new + dataset.clw + dataset.cli).values * mass(dataset.ps)).sum((2, 3, 4))
    before = ((dataset.q + dataset.clw + dataset.cli).values * mass(dataset.ps)).sum((2, 3, 4))
    np.testing.assert_allclose(water, np.repeat(before[:, :1], 3, 1), rtol=1e-12)


def test_fluxes_and_surface_pressure_without_members_count_for_each_of_them():
    fluxes = {
        "e": (1e-5, 4e-5, "kg m-2 s-1", "water_evapotranspiration_flux", GRID),
        "pr": (1e-5, 4e-5, "kg m-2 s-1", "precipitation_flux", GRID),
    }
    assert "fluxes: + e - pr" in str(check(with_members("q", **fluxes), moisture, member="member"))
    levels = on_pressure_levels()
    levels["q"] = (levels.q * xr.DataArray([1.0, 1.1], dims="member")).assign_attrs(levels.q.attrs)
    assert "to the surface (ps)" in str(check(levels, moisture, member="member"))


def test_clouds_of_members_that_humidity_has_not_are_refused():
    dataset = with_members("clw", **CLOUDS)
    with pytest.raises(InputError, match=r"`clw` has a dimension 'member', which `q` has not"):
        moisture(dataset)
    dataset = air(**CLOUDS)
    dataset["clw"] = dataset.clw.rename(lev="half")
    with pytest.raises(InputError, match=r"`clw` has a dimension 'half', which `q` has not"):
        dry_air(dataset)


def test_dry_air_of_members_with_their_own_humidity_is_refused_with_the_way_out():
    dataset = with_members("q", "ps")
    with pytest.raises(InputError, match=r"`factor of ps` changes along 'member'.*`member`"):
        enforce(dataset, dry_air, member="member")
    new = enforce(dataset, dry_air, how="uniform").ps.transpose("member", ...)
    for ps, q in zip(new, dataset.q, strict=True):
        dry = ((1 - q.values) * mass(ps)).sum((1, 2, 3))
        np.testing.assert_allclose(dry, dry[0], rtol=1e-12)


def test_a_surface_pressure_that_leaves_its_cell_is_implausible_until_it_is_done_again():
    dataset = on_pressure_levels((1000.0, 900.0, 500.0))
    edges = np.array([3e4, 7e4, 9.5e4, np.inf])[:, None, None]
    with pytest.warns(match=r"values of ps left the range .* again on the output"):
        new = enforce(dataset, dry_air, std=100.0)
    for _ in range(9):
        new = enforce(new, dry_air, std=100.0)
    assert new.probconserv.report["plausible"]
    dp = np.diff(np.minimum(edges, new.ps.values[:, None]), axis=1)[:, ::-1]
    dry = ((1 - dataset.q.values) * dp / G * AREA).sum((1, 2, 3))
    np.testing.assert_allclose(dry, dry[0], rtol=1e-12)


def test_humidity_on_levels_without_formula_terms_is_told_what_they_lack():
    dataset = air().rename(q="hus")
    dataset.lev.attrs = {}
    with pytest.raises(InputError, match=r"units of a pressure, .* 'hus'.*Copy"):
        moisture(dataset)


def test_a_file_of_laws_may_name_recipes(tmp_path):
    dataset = air()
    dataset.q.attrs["units"] = "whatever"
    dataset.to_netcdf(tmp_path / "in.nc")
    laws = tmp_path / "laws.toml"
    laws.write_text('[[law]]\nrecipe = "moisture"\nassume_units = {q = "kg kg-1"}\n')
    said = called("check", tmp_path / "in.nc", "--laws", laws)
    assert "moves q; held fixed: ps" in said.stdout, said.stderr
    assert "units of q assumed: kg kg-1" in said.stdout


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('recipe = "moistur"', "`recipe` must be one of dry-air, moisture, energy"),
        (
            'recipe = "energy"\nover = "x"',
            "the recipe energy has no 'over'; it has assume_units, time",
        ),
        ('name = "air"', "has no 'variables', and no 'recipe' either"),
    ],
)
def test_recipes_that_are_not_known_or_have_too_much_are_refused(tmp_path, table, message):
    (tmp_path / "laws.toml").write_text(f"[[law]]\n{table}\n")
    said = called("check", tmp_path / "in.nc", "--laws", tmp_path / "laws.toml")
    assert message in said.stderr
    assert said.returncode == 2


def test_a_recipe_may_name_a_variable_in_another_file(tmp_path):
    dataset = xr.Dataset({"u": ("x", [1.0, 2.0])})
    dataset.to_netcdf(tmp_path / "in.nc")
    dataset.rename(u="w").to_netcdf(tmp_path / "sizes.nc")

    def own(dataset, file="sizes.nc:w"):
        return FileLaw("u", "x", total=5.0, measure=f"{tmp_path}/{file}")

    assert check_file(tmp_path / "in.nc", own).closes()
    with pytest.raises(InputError, match=r"`measure` is .*there is no file .*mean 'sizes.nc'"):
        check_file(tmp_path / "in.nc", lambda dataset: own(dataset, "size.nc:w"))
    with pytest.raises(InputError, match=r"`measure .*sizes.nc:v`: no variable 'v' here. There"):
        check_file(tmp_path / "in.nc", lambda dataset: own(dataset, "sizes.nc:v"))
    with pytest.raises(InputError, match=r"FILE:VARIABLE is for `enforce_file`"):
        check(dataset, own(dataset))
