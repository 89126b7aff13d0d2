"""Packed integers keep the totals of disjoint rows to half a quantum of a cell."""

import numpy as np
import pytest
import xarray as xr

from probconserv.errors import InputError
from probconserv.files import FileLaw, enforce_file

pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")

PACKED = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}
LAW = FileLaw("u", ("lat", "lon"), total="b", measure="area")


@pytest.fixture
def field(tmp_path):
    """Temperatures in hundredths, some missing, with totals that no rounding meets by chance."""
    rng = np.random.default_rng(2)
    u = rng.normal(288, 5, (4, 20, 30)).round(2)
    u[1, :3, :4] = np.nan
    area = np.cos(np.radians(np.linspace(-85, 85, 20)))[:, None] * np.ones(30)
    total = np.nansum(u * area, axis=(1, 2)) * (1 + 1e-4 * rng.normal(size=4))
    regions = np.arange(600).reshape(20, 30) % 7
    grid = ("lat", "lon")
    made = {"u": (("time", *grid), u), "area": (grid, area), "b": ("time", total)}
    found = xr.Dataset(made | {"basin": (grid, regions)})
    found.to_netcdf(tmp_path / "in.nc", encoding={"u": PACKED})
    return found


def seen(path):
    with xr.open_dataset(path) as out:
        return out["u"].load()


@pytest.mark.parametrize("chunks", [None, {"lat": 7, "time": 2}])
def test_each_total_is_met_to_half_a_quantum_of_a_small_cell_in_each_block(field, tmp_path, chunks):
    report = enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", LAW, std=1.0, chunks=chunks)
    new = seen(tmp_path / "out.nc")
    area = field["area"].values
    off = np.nansum(new.values * area, axis=(1, 2)) - field["b"].values
    blocks = 1 if chunks is None else 3
    assert np.abs(off).max() <= 0.5 * 0.01 * blocks * area.max()
    assert report.closes(after=True)
    assert new.encoding["dtype"] == np.int16
    assert (np.isnan(new.values) == np.isnan(field["u"].values)).all()


def test_values_are_off_by_less_than_a_quantum_and_most_by_half_of_one(field, tmp_path):
    enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", LAW, std=1.0)
    enforce_file(tmp_path / "in.nc", tmp_path / "exact.nc", LAW, std=1.0, unpack=True)
    off = np.abs(seen(tmp_path / "out.nc") - seen(tmp_path / "exact.nc")).values
    assert np.nanmax(off) < 0.0101
    assert np.nanmean(off > 0.00501) < 0.2


def test_regions_close_each(field, tmp_path):
    law = FileLaw("u", ("lat", "lon"), measure="area", regions="basin", total=0.0)
    wanted = xr.DataArray(np.full(7, 288.0 * 50), {"region": np.arange(7)}, dims="region")
    law = FileLaw("u", ("lat", "lon"), total=wanted, measure="area", regions="basin")
    enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", law, std=1.0)
    new = np.nan_to_num(seen(tmp_path / "out.nc").values * field["area"].values)
    for number in range(7):
        own = new[:, field["basin"].values == number].sum(1)
        np.testing.assert_allclose(own, 288.0 * 50, atol=0.005)


def test_the_ends_of_the_range_are_kept(tmp_path):
    u = np.full((1, 1, 8), 280 + 0.01 * 32767)
    made = {"u": (("time", "lat", "lon"), u), "area": (("lat", "lon"), np.ones((1, 8)))}
    total = xr.DataArray(u.sum() - 0.0349, name="b")
    xr.Dataset(made).assign(b=total).to_netcdf(tmp_path / "in.nc", encoding={"u": PACKED})
    enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", LAW, std=1.0)
    new = seen(tmp_path / "out.nc").values
    assert new.max() <= 280 + 0.01 * 32767 + 1e-9
    assert abs(new.sum() - float(total)) <= 0.005


def test_values_beyond_the_range_are_still_refused(field, tmp_path):
    law = FileLaw("u", ("lat", "lon"), total=600 * 700.0, measure=1.0)
    with pytest.raises(InputError, match="`u` is packed into int16"):
        enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", law, std=1.0)


@pytest.mark.parametrize("seed", range(4))
def test_rounding_leaves_alone_what_one_member_lacks(tmp_path, seed):
    rng, grid = np.random.default_rng(seed), ("member", "time", "y", "x")
    u = rng.normal(280, 1, (3, 2, 4, 5)).round(2)
    u[0, :, 1] = np.nan
    area = rng.random((4, 5)) + 0.5
    there = np.isfinite(u).all(0)
    total = float((there[0] * area).sum() * 280.05)
    made = xr.Dataset({"u": (grid, u), "area": (grid[2:], area)})
    made.to_netcdf(tmp_path / "in.nc", encoding={"u": PACKED})
    law = FileLaw("u", ("y", "x"), total=total, measure="area")
    enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", law, member="member")
    new = seen(tmp_path / "out.nc").values
    np.testing.assert_allclose(new[:, ~there], u[:, ~there], rtol=1e-12)
    off = (np.where(there, new, 0.0) * area).sum((2, 3)) - total
    assert np.abs(off).max() < 0.5 * 0.01 * area.max()
