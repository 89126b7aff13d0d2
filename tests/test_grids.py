"""Functions on a grid, from arrays, datasets, files and equations."""

import numpy as np
import pytest
import torch

from probconserv.data import Grids, Shuffled
from probconserv.errors import InputError
from probconserv.problems import Stefan

T, X = np.linspace(0, 1, 4), np.linspace(0, 2, 7)


def grids(n=10):
    speeds = np.linspace(1, 2, n)[:, None]
    u = np.sin(speeds[:, :, None] * T[:, None] + X)
    return Grids(speeds, u, {"t": T, "x": X}, np.trapezoid(u, X))


def test_parts_share_no_function_and_lose_none():
    parts = grids().split(0.7, 0.2, 0.1, seed=3)
    assert [len(part) for part in parts] == [7, 2, 1]
    together = torch.cat([part.inputs for part in parts]).flatten()
    assert torch.equal(together.sort().values, grids().inputs.flatten())
    again, other = (grids().split(0.7, seed=seed)[0].inputs for seed in (3, 4))
    assert torch.equal(again, parts[0].inputs)
    assert not torch.equal(other, again)


def test_functions_keep_their_inputs_and_totals_when_indexed_and_moved():
    some = grids()[torch.tensor([4, 1])].to(torch.float32)
    assert some.targets.dtype == some.coordinates["x"].dtype == torch.float32
    for row, i in enumerate((4, 1)):
        torch.testing.assert_close(some.targets[row].double(), grids().targets[i])
        torch.testing.assert_close(some.totals[row].double(), grids().totals[i])
    assert len(grids()[3]) == len(grids()[np.int64(3)]) == 1


def test_batches_of_grids_visit_every_function_once_an_epoch():
    batches = Shuffled(grids(), n=5, seed=1)
    epoch = torch.cat([batches(step).inputs for step in (2, 3)]).flatten()
    assert torch.equal(epoch.sort().values, grids().inputs.flatten())


def test_solutions_of_an_equation_come_with_their_totals():
    t, x = Stefan.grid(times=3, points=2001)
    found = Grids.of_problem(Stefan([0.6, 0.7]), t, x)
    torch.testing.assert_close(found.totals, torch.trapezoid(found.targets, x), atol=1e-3, rtol=0)
    assert torch.equal(found.targets[1], Stefan(0.7).on_grid(t, x))
    drawn = Grids.of_problem(Stefan, t, x, n=50)
    low, high = Stefan.train_range
    assert drawn.inputs.min() >= low
    assert drawn.inputs.max() <= high
    with pytest.raises(InputError, match="`n` must say how many parameters of Stefan"):
        Grids.of_problem(Stefan, t, x)


def dataset():
    xarray = pytest.importorskip("xarray")
    u = np.random.default_rng(0).normal(size=(7, 5, 4))  # (x, sample, t)
    values = {
        "u": (("x", "sample", "t"), u),
        "start": (("sample", "x"), u[:, :, 0].T),
        "speed": ("sample", np.arange(5.0)),
        "mass": (("t", "sample"), np.trapezoid(u, X, axis=0).T),
    }
    return xarray.Dataset(values, {"t": T, "x": X}), u


def test_variables_of_a_dataset_are_read_by_name():
    data, u = dataset()
    found = Grids.from_xarray(data, ["start", "speed"], "u")
    assert list(found.coordinates) == ["t", "x"]  # time first
    assert found.inputs.shape == (5, 2, 1, 7)
    np.testing.assert_array_equal(found.targets, u.transpose(1, 2, 0))
    np.testing.assert_array_equal(found.inputs[:, 0, 0], u[:, :, 0].T)
    assert Grids.from_xarray(data, "speed", "u").inputs.shape == (5, 1)


def test_a_falling_axis_is_turned_round_with_all_that_is_on_it():
    data, _ = dataset()
    options = {"inputs": ["start", "speed"], "targets": "u", "totals": "mass"}
    found, same = (
        Grids.from_xarray(d, **options) for d in (data.isel(x=slice(None, None, -1)), data)
    )
    for name in ("inputs", "targets", "totals"):
        assert torch.equal(getattr(found, name), getattr(same, name))
    assert torch.equal(found.axes[1], same.axes[1])


def test_times_of_any_calendar_and_durations_are_seconds():
    data, _ = dataset()
    cftime = pytest.importorskip("cftime")
    hours = np.arange(4) * np.timedelta64(1, "h")
    days = [cftime.DatetimeNoLeap(2001, 2, 27 + i) for i in (0, 1)]
    days += [cftime.DatetimeNoLeap(2001, 3, i) for i in (1, 2)]
    for times, step in ((hours, 3600), (np.datetime64("2000-01-01") + hours, 3600), (days, 86400)):
        found = Grids.from_xarray(data.assign_coords(t=times), "speed", "u")
        assert found.axes[0].tolist() == [i * step for i in range(4)]


@pytest.mark.parametrize("name", ["a.nc", "a.zarr"])
def test_what_is_no_dataset_is_refused(name, tmp_path):
    pytest.importorskip("zarr" if name == "a.zarr" else "netCDF4")
    if name == "a.zarr":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("no dataset")
    with pytest.raises(InputError, match=r"`path` .*a\..* is no Zarr store or NetCDF file"):
        Grids.open(tmp_path / name, "k", "u")


@pytest.mark.parametrize("name", ["a.nc", "a.zarr"])
def test_a_file_is_the_dataset_in_it(name, tmp_path):
    data, u = dataset()
    pytest.importorskip("zarr" if name == "a.zarr" else "netCDF4")
    data = data.transpose("sample", "t", "x")
    if name == "a.zarr":
        data.to_zarr(tmp_path / name, consolidated=False)
    else:
        data.to_netcdf(tmp_path / name)
    found = Grids.open(tmp_path / name, "speed", ["u"], totals=["mass"])
    np.testing.assert_array_equal(found.targets, u.transpose(1, 2, 0))
    torch.testing.assert_close(found.totals, torch.trapezoid(found.targets, torch.tensor(X)))
    assert found.name == "a"


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"inputs": "speeds"}, r"`inputs` must be one of .*got 'speeds'. Did you mean 'speed'"),
        ({"sample": "member"}, "`sample` must be a dimension of u, which has .*got 'member'"),
        ({"totals": "start"}, "start has the dimension x, which is neither `sample` nor"),
        ({"targets": ["u", "start"]}, "`targets` must all be on sample, t, x; start is on"),
        ({"targets": ["u", "u"], "totals": "mass"}, "`totals` must name one variable for each of"),
        ({"targets": []}, "`targets` must name a variable or more"),
    ],
)
def test_names_that_do_not_fit_a_dataset_are_refused(arguments, rule):
    data = dataset()[0].transpose("sample", "t", "x")
    with pytest.raises(InputError, match=rule):
        Grids.from_xarray(data, **{"inputs": "speed", "targets": "u", **arguments})


def test_a_name_is_no_dataset():
    with pytest.raises(InputError, match=r"`dataset` must be an xarray.Dataset, got str"):
        Grids.from_xarray("runs.zarr", "speed", "u")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    pytest.importorskip("xarray")
    with pytest.raises(InputError, match=r"nothing.nc does not exist"):
        Grids.open(tmp_path / "nothing.nc", "a", "b")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"inputs": np.ones((3, 1))}, r"`inputs` must be \(n, channels\) or .* n = 10"),
        ({"inputs": np.ones((10, 1, 4, 6))}, "`inputs` must be"),
        ({"inputs": np.ones(10)}, r"`inputs` must be \(n, channels\) or .* got \(10,\)"),
        ({"totals": np.ones(10)}, r"`totals` must have the shape .* \(10, 4\), got \(10,\)"),
        ({"targets": np.ones((10, 4, 6))}, r"`targets` must be .* with the grid \(4, 7\)"),
        (
            {"targets": np.full((10, 4, 7), np.nan)},
            "`targets` must be finite; .* Drop these functions",
        ),
        ({"coordinates": {"t": T, "x": X[::-1]}}, r"`coordinates\[x\]` must increase strictly"),
        ({"coordinates": (T, X)}, "`coordinates` must be the axes of the grid by name"),
        ({"totals": np.ones((10, 7))}, r"`totals` must have the shape .* \(10, 4\), got"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change, rule):
    good = {"inputs": np.ones((10, 1)), "targets": np.ones((10, 4, 7))}
    with pytest.raises(InputError, match=rule):
        Grids(**{**good, "coordinates": {"t": T, "x": X}, **change})


@pytest.mark.parametrize(
    "shares", [(), (0.5, 0.6), (0.5, -0.1), (0.99, 0.01), ([0.5, 0.5],), (np.nan,)]
)
def test_shares_that_make_no_parts_are_refused(shares):
    with pytest.raises(InputError, match="`shares`"):
        grids().split(*shares)
