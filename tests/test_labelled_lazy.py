"""Dask arrays in, dask arrays out, with the numbers of data in memory."""

import json
import pickle
from functools import cache

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

from probconserv.errors import InputError
from probconserv.files import FileLaw, check, enforce, enforce_file

# the field has points that are missing at one time only
pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")

SPACE = ("lat", "lon")
CHUNKS = [
    {"time": 1},
    {"lat": 3},
    {"lon": 2, "time": 2},
    {"lev": 1, "lat": 1, "lon": 4},
    {},
]


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def made(seed=0):
    rng = np.random.default_rng(seed)
    dims, shape = ("time", "lev", *SPACE), (3, 2, 4, 5)
    u = rng.normal(2, 1, shape)
    u[1, 0, 2, 3] = np.nan
    return xr.Dataset(
        {
            "u": (dims, u),
            "s": (dims, rng.uniform(0.2, 1.5, shape)),
            "area": (SPACE, rng.uniform(1, 2, shape[2:])),
            "basin": ("lat", [1, 0, 1, 0]),
        },
        {"time": [0.0, 1.0, 3.0]},
    )


def ensemble():
    rng = np.random.default_rng(1)
    dims, shape = ("time", "member", *SPACE), (3, 6, 4, 5)
    d = made().drop_vars(["u", "s"])
    return d.assign(u=(dims, rng.normal(2, 1, shape)))


LAWS = {
    "initial": [FileLaw("u", SPACE, measure="area")],
    "regions": [FileLaw("u", SPACE, total=9.0, measure="area", regions="basin", noise=0.3)],
    "two": [
        FileLaw("u", SPACE, total=30.0, measure="area"),
        FileLaw("u", ("lev", *SPACE), total=75.0, measure=1.0),
    ],
}


@cache
def in_memory(laws, correlation):
    return enforce(made(), *LAWS[laws], std="s", correlation=correlation)


def is_lazy(array):
    return isinstance(array.data, da.Array)


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("correlation", [0.0, 0.4])
@pytest.mark.parametrize("laws", LAWS)
def test_lazy_in_lazy_out_with_the_same_numbers(laws, correlation, chunks):
    d, here = made(), in_memory(laws, correlation)
    lazy = enforce(d.chunk(chunks), *LAWS[laws], std="s", correlation=correlation)
    for name in "us":
        assert is_lazy(lazy[name])
        assert lazy[name].chunks == d.chunk(chunks)[name].chunks
        xr.testing.assert_allclose(lazy[name].compute(), here[name], rtol=1e-10)


@pytest.mark.parametrize("chunks", [{"member": 2}, {"member": 4, "lat": 3}, {"time": 1, "lon": 2}])
@pytest.mark.parametrize("jointly", [(), ("time",)])
def test_members_may_be_cut_too(chunks, jointly):
    d = ensemble()
    law = FileLaw("u", SPACE, total=70.0, measure="area")
    here = enforce(d, law, member="member", jointly=jointly)
    lazy = enforce(d.chunk(chunks), law, member="member", jointly=jointly)
    assert is_lazy(lazy.u)
    xr.testing.assert_allclose(lazy.u.compute(), here.u, rtol=1e-10)


def test_mean_and_std_may_be_cut_differently_and_one_may_be_in_memory():
    d, (law,) = made(), LAWS["regions"]
    here = enforce(d, law, std="s")
    for mean, std in (
        (d.u.chunk(lat=3), d.s.chunk(lat=2, lon=2)),
        (d.u, d.s.chunk(time=1)),
        (d.u.chunk(time=2), d.s),
    ):
        lazy = enforce(d.assign(u=mean, s=std), law, std="s")
        for name in "us":
            xr.testing.assert_allclose(lazy[name].compute(), here[name], rtol=1e-10)


def test_weights_may_be_lazy_beside_a_field_in_memory():
    d = made()
    heat = (2 + 0 * d.s).chunk(lat=2)
    law = FileLaw({"u": heat}, SPACE, total=60.0, measure="area")
    out = enforce(d, law, std="s")
    assert not is_lazy(out.u)
    np.testing.assert_allclose((2 * out.u * out.area).sum(SPACE), 60.0, rtol=1e-12)


def counting(array, counts, name):
    """The array in blocks that say when they are computed."""

    def seen(block):
        counts[name] = counts.get(name, 0) + 1
        return block

    blocks = da.map_blocks(seen, array.data, meta=np.empty((0,) * array.ndim))
    return array.copy(data=blocks)


def test_a_call_computes_the_sums_and_nothing_else():
    d, counts = made().chunk(time=1, lat=2), {}
    d = d.assign(u=counting(d.u, counts, "u"), s=counting(d.s, counts, "s"))
    out = enforce(d, FileLaw("u", SPACE, total=30.0, measure="area"), std="s")
    assert counts == {"u": 6, "s": 6}  # three times, two bands of latitude
    out[["u", "s"]].isel(time=0).compute()
    assert counts == {"u": 8, "s": 8}


def test_the_initial_total_reads_only_the_first_time_on_top():
    d, counts = made().chunk(time=1, lat=2), {}
    d = d.assign(u=counting(d.u, counts, "u"))
    enforce(d, FileLaw("u", SPACE, measure="area"), std="s")
    assert counts["u"] == 6 + 2


def test_the_report_of_lazy_data_leaves_open_what_is_not_computed():
    d = made()
    out = enforce(
        d.chunk(lat=2), FileLaw("u", SPACE, total=30.0, measure="area"), std="s", minimum=0.0
    )
    report = json.loads(out.probconserv_report)
    assert report["outside_after"] is None
    assert "imbalance_after" not in report["laws"][0]
    here = json.loads(
        enforce(d, FileLaw("u", SPACE, total=30.0, measure="area"), std="s").probconserv_report
    )
    before = report["laws"][0]["imbalance_before"]
    assert before == pytest.approx(here["laws"][0]["imbalance_before"])


def test_check_of_lazy_data_is_that_of_data_in_memory():
    d = made()
    for laws in LAWS.values():
        here, lazy = (check(each, *laws, std="s") for each in (d, d.chunk(lon=2)))
        for one, other in zip(here.budgets, lazy.budgets, strict=True):
            xr.testing.assert_allclose(one.before, other.before, rtol=1e-12)
            xr.testing.assert_allclose(one.assumed, other.assumed, rtol=1e-12)
        assert [str(here).split("\n")[-1]] == [str(lazy).split("\n")[-1]]


def from_file(folder, dataset, *laws, **how):
    """What `enforce_file` makes of the dataset, and its report."""
    source, target = folder / "in.nc", folder / "out.nc"
    dataset.to_netcdf(source)
    report = enforce_file(source, target, *laws, **how)
    return xr.load_dataset(target), report


@pytest.mark.parametrize(
    ("laws", "name"),
    [*((laws, "lev") for laws in LAWS), *(("two", name) for name in ("rows", "steps", "members"))],
)
def test_the_solve_can_be_lazy_as_well(tmp_path, laws, name):
    d = made().rename(lev=name)
    laws = [
        FileLaw(
            law.variables,
            [name if dim == "lev" else dim for dim in law.dims],
            law.total,
            measure=law.measure,
            regions=law.regions,
            noise=law.noise,
        )
        for law in LAWS[laws]
    ]
    here = enforce(d, *laws, std="s", correlation=0.2)
    out, _ = from_file(tmp_path, d, *laws, std="s", correlation=0.2, chunks={"time": 1})
    np.testing.assert_allclose(out.u, here.u, rtol=1e-10)
    np.testing.assert_allclose(out.s, here.s, rtol=1e-8)


def test_the_solve_of_an_ensemble_can_be_lazy_as_well(tmp_path):
    d, law = ensemble(), FileLaw("u", SPACE, measure="area")
    out, report = from_file(tmp_path, d, law, member="member", minimum=0.5, chunks={"time": 1})
    here = enforce(d, law, member="member", minimum=0.5)
    np.testing.assert_allclose(out.u, here.u, rtol=1e-10)
    start = (d.u * d.area).sum(SPACE)[0]
    after = report.budgets[0].after.transpose("time", "member")
    np.testing.assert_allclose(after, [start] * 3, rtol=1e-12)
    told = json.loads(here.probconserv_report)
    assert (report.outside_before, report.outside) == (told["outside_before"], {})


@pytest.mark.parametrize(("chunks", "reads"), [({"time": 1}, 3), ({"lat": 2}, 4)])
def test_only_blocks_that_do_not_hold_all_points_are_read_twice(
    tmp_path, monkeypatch, chunks, reads
):
    seen, wrapper = [], xr.backends.netCDF4_.NetCDF4ArrayWrapper
    before = wrapper._getitem

    def counted(self, key):
        seen.append(self.variable_name)
        return before(self, key)

    monkeypatch.setattr(wrapper, "_getitem", counted)
    law = FileLaw("u", SPACE, total=30.0, measure="area")
    source = tmp_path / "in.nc"
    made().to_netcdf(source)
    enforce_file(source, None, law, std="s", chunks=chunks)
    assert seen.count("u") == reads


def test_what_is_wrong_with_lazy_data_is_said_at_the_call():
    d = made().chunk(lat=2)
    with pytest.raises(InputError, match="`std` is negative, infinite or missing"):
        enforce(d.assign(s=-d.s), FileLaw("u", SPACE, total=30.0, measure="area"), std="s")
    with pytest.raises(InputError, match="no point of u counts"):
        enforce(d, FileLaw("u", SPACE, total=30.0, measure="area", where=d.basin > 5), std="s")


def test_large_fields_are_worked_on_in_slabs_by_threads():
    rng = np.random.default_rng(2)
    u = rng.normal(size=(5, 300, 500)).astype(np.float32)
    d = xr.Dataset({"u": (("time", *SPACE), u), "s": (("time", *SPACE), np.abs(u) + 0.1)})
    law = FileLaw("u", SPACE, total=np.pi, measure=1.0)
    out = enforce(d, law, std="s")
    np.testing.assert_allclose(out.u.astype(float).sum(SPACE), np.pi, atol=1e-2)
    lazy = enforce(d.chunk(time=2, lat=100), law, std="s")
    np.testing.assert_allclose(lazy.u.values, out.u.values, rtol=1e-5, atol=1e-6)
    assert lazy.u.dtype == lazy.s.dtype == np.float32


@pytest.mark.parametrize("how", [{"std": "s"}, {"std": "s", "minimum": 0.0}, {"how": "uniform"}])
def test_what_is_lazy_can_be_sent_to_another_process(how):
    lazy = enforce(made().chunk(time=1, lat=2), *LAWS["initial"], **how)
    sent = pickle.loads(cloudpickle.dumps(lazy.u.data))
    np.testing.assert_array_equal(sent.compute(), lazy.u.values)
