"""From file to file: the same numbers as in memory, nothing lost on the way."""

import json

import numpy as np
import pytest
import xarray as xr

from probconserv.errors import InfeasibleError, InputError
from probconserv.files import FileLaw, _read, check_file, enforce, enforce_file

# the field has points that are missing at one time only
pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")

LAW = FileLaw("u", ("lat", "lon"), total=40.0, measure="area")


@pytest.fixture
def dataset():
    """A field of 6 times on 4 x 5 cells, one point missing, with names and units."""
    rng = np.random.default_rng(3)
    u = rng.normal(2.0, 0.5, (6, 4, 5)).astype(np.float32)
    u[2:, 1, 3] = np.nan
    grid = ("time", "lat", "lon")
    found = xr.Dataset(
        {
            "u": (grid, u, {"units": "kg m-2", "long_name": "water"}),
            "s": (grid, rng.uniform(0.1, 0.4, u.shape)),
            "area": (("lat", "lon"), rng.uniform(0.5, 1.5, (4, 5)), {"units": "m2"}),
            "note": ((), 7),
        },
        {"time": np.arange(6) * 2.5, "lat": [10.0, 20.0, 30.0, 40.0], "lon": np.arange(5) * 3.0},
        {"title": "a test", "history": "made"},
    )
    found["u"].encoding = {"zlib": True, "complevel": 3, "_FillValue": np.float32(-99)}
    return found


@pytest.mark.parametrize("ending", ["nc", "zarr"])
@pytest.mark.parametrize("chunks", [None, {"time": 2, "lat": 3}])
def test_a_file_becomes_what_the_dataset_becomes(tmp_path, dataset, ending, chunks):
    source, target = tmp_path / "in.nc", tmp_path / f"out.{ending}"
    dataset.to_netcdf(source)
    before = source.read_bytes()
    report = enforce_file(source, target, LAW, std="s", chunks=chunks)
    expected = enforce(dataset, LAW, std="s")
    with xr.open_dataset(target) as found:
        for name in ("u", "s"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
            assert found[name].dtype == dataset[name].dtype
            assert found[name].attrs == dataset[name].attrs
        assert found.attrs["title"] == "a test"
        assert found.attrs["history"].startswith("made\n")
        assert int(found["note"]) == 7
        stored = json.loads(found.attrs["probconserv_report"])
        assert found["u"].encoding["_FillValue"] == np.float32(-99)
    assert source.read_bytes() == before
    assert report.closes(after=True)
    assert not report.closes()
    assert stored["laws"][0]["imbalance_after"] == report.summary()["laws"][0]["imbalance_after"]
    assert check_file(target, LAW, std="s").closes()


def test_blocks_that_hold_all_points_are_read_once_and_others_twice(tmp_path, dataset, monkeypatch):
    source = tmp_path / "in.nc"
    dataset["u"].encoding = {}
    dataset.to_netcdf(source)
    read, asked = _read._Guarded.__getitem__, []
    monkeypatch.setattr(
        _read._Guarded, "__getitem__", lambda self, at: asked.append(self.name) or read(self, at)
    )
    enforce_file(source, tmp_path / "once.nc", LAW, std="s", chunks={"time": 2})
    assert asked.count("u") == asked.count("s") == 3
    asked.clear()
    enforce_file(source, tmp_path / "twice.nc", LAW, std="s", chunks={"time": 2, "lat": 2})
    assert asked.count("u") == asked.count("s") == 2 * 3 * 2


def test_an_ensemble_conserves_in_every_member(tmp_path, dataset):
    members = np.random.default_rng(5).normal(0, 0.1, 7)
    ensemble = xr.concat([dataset[["u"]] + d for d in members], "member")
    ensemble["area"] = dataset["area"]
    ensemble.to_netcdf(tmp_path / "in.nc")
    report = enforce_file(tmp_path / "in.nc", tmp_path / "out.zarr", LAW, member="member")
    with xr.open_dataset(tmp_path / "out.zarr") as found:
        totals = (found["u"] * dataset["area"]).sum(("lat", "lon"))
        assert totals.sizes == {"member": 7, "time": 6}
        np.testing.assert_allclose(totals, 40.0, rtol=1e-6)
    assert "ensemble of 7, shrinkage 0.727 towards a correlation of 1" in str(report)


def test_packing_that_opens_the_budget_again_is_reported(tmp_path, dataset):
    dataset["u"].encoding = {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -32768}
    dataset.to_netcdf(tmp_path / "in.nc")
    report = enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", LAW, std="s")
    assert not report.closes(after=True)
    assert "u is packed into integers: rounding to it opens the budget again" in str(report)
    seen = check_file(tmp_path / "out.nc", LAW, std="s").budgets[0].before
    np.testing.assert_allclose(seen, report.budgets[0].after, rtol=1e-12)
    whole = enforce_file(tmp_path / "in.nc", tmp_path / "f.nc", LAW, std="s", unpack=True)
    assert whole.closes(after=True)
    with xr.open_dataset(tmp_path / "f.nc") as found:
        assert found["u"].encoding["dtype"].kind == "f"
        assert np.isnan(found["u"][3, 1, 3])


def test_values_that_do_not_fit_the_packed_range_are_refused(tmp_path, dataset):
    dataset["u"].encoding = {"dtype": "int8", "scale_factor": 0.04, "_FillValue": -128}
    dataset.to_netcdf(tmp_path / "in.nc")
    law = FileLaw("u", ("lat", "lon"), total=4000.0, measure="area")
    with pytest.raises(InputError, match=r"`u` is packed into int8, which holds -5.12 to 5.08"):
        enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", law, std="s")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.nc"]


@pytest.mark.parametrize("ending", ["nc", "zarr"])
def test_an_output_that_is_there_is_kept_unless_told(tmp_path, dataset, ending):
    source, target = tmp_path / "in.nc", tmp_path / f"out.{ending}"
    dataset.to_netcdf(source)
    enforce_file(source, target, LAW, std="s")
    with pytest.raises(InputError, match="overwrite"):
        enforce_file(source, target, LAW, std="s")
    other = FileLaw("u", ("lat", "lon"), total=41.0, measure="area")
    enforce_file(source, target, other, std="s", overwrite=True)
    assert check_file(target, other, std="s").closes()


def test_a_law_that_cannot_be_met_leaves_no_output(tmp_path, dataset):
    dataset["s"][3] = 0.0
    dataset.to_netcdf(tmp_path / "in.nc")
    with pytest.raises(InfeasibleError, match="1 totals cannot be met, the first of `u`"):
        enforce_file(tmp_path / "in.nc", tmp_path / "out.zarr", LAW, std="s")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.nc"]


def test_without_a_target_only_the_report_is_made(tmp_path, dataset):
    dataset.to_netcdf(tmp_path / "in.nc")
    dry = enforce_file(tmp_path / "in.nc", None, LAW, std="s", change=True)
    assert dry.closes(after=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.nc"]
    expected = (enforce(dataset, LAW, std="s")["u"] - dataset["u"]).mean("time")
    np.testing.assert_allclose(dry.change["u"], expected, atol=1e-6)
    assert dry.change["u"].attrs["units"] == "kg m-2"
