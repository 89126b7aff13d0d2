"""Values that stay within bounds while totals hold, against a general optimiser."""

import numpy as np
import pytest
import xarray as xr
from scipy.optimize import minimize
from seeds import generator

import probconserv as pc
from probconserv.errors import InfeasibleError, InputError
from probconserv.files import FileLaw, check, enforce, enforce_file

pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")

LAW = FileLaw("u", "x", total="b", measure="g")
WAYS = [{"std": "s"}, {"how": "uniform"}, {"how": "proportional"}, {"std": 0.7}]


def made(seed=0, dtype="float64"):
    """Rain: many small values, some that are negative already, and totals that are smaller."""
    rng = np.random.default_rng(seed)
    u = rng.gamma(0.5, 1.0, (3, 12)) - 0.05
    u[1, 4] = np.nan
    g = rng.uniform(1, 2, 12)
    return xr.Dataset(
        {
            "u": (("time", "x"), u.astype(dtype)),
            "s": (("time", "x"), rng.uniform(0.2, 1.0, (3, 12))),
            "g": ("x", g),
            "b": ("time", 0.6 * np.nansum(u * g, 1)),
            "basin": ("x", np.repeat([0, 1], 6)),
        },
        {"time": np.array(["2001-01-01", "2001-01-02", "2001-01-03"], "datetime64[ns]")},
    )


def variance(d, how):
    """Up to a factor for each time."""
    if "std" in how:
        return d.s.values**2 if how["std"] == "s" else np.ones((3, 1)) / d.g.values
    size = abs(d.u.values) if how["how"] == "proportional" else np.ones((3, 12))
    return size / d.g.values


def nearest(u, variance, g, b, low, high):
    """The point within the bounds that has the total and is nearest to u."""
    free = variance > 0
    u0, v, w = u[free], variance[free], g[free]
    rest = b - g[~free] @ np.clip(u[~free], low, high)
    found = minimize(
        lambda x: (((x - u0) ** 2) / v).sum(),
        np.clip(u0, low, high),
        jac=lambda x: 2 * (x - u0) / v,
        bounds=[(low, high)] * len(u0),
        constraints={"type": "eq", "fun": lambda x: w @ x - rest, "jac": lambda x: w},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    new = np.clip(u, low, high)
    new[free] = found.x
    return new


@pytest.mark.parametrize("seed", range(40))
def test_hard_rows_have_the_field_that_the_core_finds(seed):
    rng = np.random.default_rng(seed)
    u, s = rng.normal(0, 1, 30) * 10.0 ** rng.integers(-3, 4, 30), 10.0 ** rng.uniform(-4, 4, 30)
    g = rng.uniform(0.1, 1, 30) * np.where(rng.random(30) < 0.2, -1, 1)
    low, high = sorted(rng.normal(0, 1, 2))
    ends = np.sort(np.stack([g * low, g * high]), 0).sum(1)
    b = float(ends[0] + rng.choice([0.0, 1e-6, 0.3, 0.999, 1.0]) * (ends[1] - ends[0]))
    d = xr.Dataset({"u": ("x", u), "s": ("x", s), "g": ("x", g)})
    law = FileLaw({"u": "g"}, "x", total=b, measure=1.0)
    out = enforce(d, law, std="s", minimum=low, maximum=high).u.values
    within = pc.bounds(low=low, high=high)
    own = generator(seed)
    wanted = pc.condition((u, s**2), pc.weighted_sum(g, b), within, draws=2, generator=own).point
    assert out @ g == pytest.approx(b, abs=1e-12 * np.abs(u) @ np.abs(g))
    np.testing.assert_allclose(out, wanted, atol=1e-6 * (high - low))


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_the_field_is_the_nearest_one_within_the_bounds(how):
    d = made()
    out = enforce(d, LAW, **how, minimum=0.0, maximum=1.5).u.values
    assert (np.nanmin(out), np.nanmax(out).clip(1.5)) == (0.0, 1.5)
    for t in range(3):
        here = ~np.isnan(d.u.values[t])
        given = (x[t, here] for x in (d.u.values, variance(d, how)))
        wanted = nearest(*given, d.g.values[here], float(d.b[t]), 0.0, 1.5)
        np.testing.assert_allclose(out[t, here], wanted, atol=2e-6)
    np.testing.assert_allclose(np.nansum(out * d.g.values, 1), d.b, rtol=1e-13)


@pytest.mark.parametrize(
    ("how", "regions"),
    [
        ({"std": "s", "correlation": 0.4}, None),
        ({"std": "s"}, "basin"),
        ({"how": "proportional"}, "basin"),
    ],
    ids=str,
)
@pytest.mark.parametrize("chunks", [{"time": 1}, {"x": 4, "time": 2}], ids=str)
def test_files_in_blocks_are_held_as_in_memory(tmp_path, how, chunks, regions):
    d = made()
    total = d.b if regions is None else 0.5 * d.b
    law = FileLaw("u", "x", total=total, measure="g", regions=regions)
    d.to_netcdf(tmp_path / "in.nc")
    names = tmp_path / "in.nc", tmp_path / "out.nc"
    report = enforce_file(*names, law, **how, minimum=0.0, chunks=chunks)
    assert report.closes(1e-13, after=True)
    with xr.open_dataset(names[1]) as out:
        np.testing.assert_allclose(out.u, enforce(d, law, **how, minimum=0.0).u, atol=1e-12)
        assert float(out.u.min()) == 0.0


@pytest.mark.parametrize(
    ("chunks", "noise"), [({"time": 1}, 0.3), ({"x": 5}, 0.0), ({"x": 5}, 0.3)]
)
def test_every_member_is_held_by_itself(tmp_path, chunks, noise):
    d = xr.concat([made(seed).u for seed in range(5)], "member").to_dataset()
    d = d.assign(g=made().g, u=d.u.fillna(0.1))
    law = FileLaw("u", "x", total=6.0, measure="g", noise=noise)
    d.to_netcdf(tmp_path / "in.nc")
    names = tmp_path / "in.nc", tmp_path / "out.nc"
    enforce_file(*names, law, member="member", minimum=0.0, chunks=chunks)
    free = enforce(d, law, member="member").u
    assert float(free.min()) < 0
    with xr.open_dataset(names[1]) as out:
        assert float(out.u.min()) >= 0
        np.testing.assert_allclose((out.u * d.g).sum("x"), (free * d.g).sum("x"), rtol=1e-12)
        here = enforce(d, law, member="member", minimum=0.0).u
        np.testing.assert_allclose(out.u.transpose(*here.dims), here, atol=1e-12)


def test_a_law_of_two_variables_holds_both_within_the_bounds():
    d = made().isel(time=[0, 2])
    d["v"] = d.u[:, ::-1].copy(data=made(3).u.values[[0, 2]])
    law = FileLaw({"u": 1.0, "v": 0.5}, "x", total=4.0, measure="g")
    out = enforce(d, law, std={"u": "s", "v": 0.3}, minimum=0.0)
    assert min(float(out.u.min()), float(out.v.min())) == 0.0
    np.testing.assert_allclose(((out.u + 0.5 * out.v) * d.g).sum("x"), 4.0, rtol=1e-12)


@pytest.mark.parametrize("stored", ["float32", "packed"])
@pytest.mark.parametrize("chunks", [{"time": 1}, {"x": 5}], ids=str)
def test_a_reader_of_the_file_sees_no_value_out_of_the_bounds(tmp_path, stored, chunks):
    d = made(dtype="float32")
    if stored == "packed":
        packing = {"dtype": "int16", "scale_factor": 0.0017, "add_offset": 0.731}
        d.u.encoding = {**packing, "_FillValue": -32768}
    d.to_netcdf(tmp_path / "in.nc")
    names = tmp_path / "in.nc", tmp_path / "out.nc"
    report = enforce_file(*names, LAW, std="s", minimum=0.1, maximum=0.7, chunks=chunks)
    with xr.open_dataset(names[0]) as before, xr.open_dataset(names[1]) as after:
        u = after.u.values.astype(float)
        was = before.u.values.astype(float)
    np.testing.assert_array_equal((u >= 0.1) & (u <= 0.7), ~np.isnan(was))
    assert report.outside == {}
    assert report.outside_before == {"u": int(((was < 0.1) | (was > 0.7)).sum())}
    assert "were below 0.1 or above 0.7 and are not now" in str(report)


@pytest.mark.parametrize("chunks", [{"time": 1}, {"x": 5}], ids=str)
def test_a_total_out_of_reach_names_the_time_and_what_can_be_reached(tmp_path, chunks):
    d = made().fillna(0.2)
    d["b"] = d.b.copy(data=[5.0, 4.0, -1.0])
    d.to_netcdf(tmp_path / "in.nc")
    most = 2 * float(d.g.sum())
    text = f"of u is -1, .* bounds are from 0 to {most:.6g}.* time 2001-01-03"
    names = tmp_path / "in.nc", tmp_path / "out.nc"
    with pytest.raises(InfeasibleError, match=text):
        enforce(d, LAW, std="s", minimum=0.0, maximum=2.0)
    with pytest.raises(InfeasibleError, match=text):
        enforce_file(*names, LAW, std="s", minimum=0.0, maximum=2.0, chunks=chunks)
    assert [path.name for path in tmp_path.iterdir()] == ["in.nc"]


def test_points_that_no_law_counts_stay_and_are_told():
    d = made().fillna(0.2).assign(here=("x", np.arange(12) % 2))
    law = FileLaw("u", "x", total=2.0, measure="g", where="here")
    out = enforce(d, law, std="s", minimum=0.0)
    np.testing.assert_array_equal(out.u[:, ::2], d.u[:, ::2])
    below = int((d.u[:, ::2] < 0).sum())
    assert out.probconserv.report["outside_after"] == {"u": below}
    assert check(out, law).closes(1e-13)


def test_laws_that_share_a_variable_have_no_bounds():
    laws = [LAW, FileLaw("u", ("time", "x"), total=3.0, measure=1.0, name="all")]
    with pytest.raises(InputError, match=r"`minimum` and .* one law .* u, all share"):
        enforce(made(), *laws, std="s", minimum=0.0)


def test_a_reach_without_end_is_said_in_words():
    d = xr.Dataset({"u": ("x", [1.0, 2.0])})
    with pytest.raises(InfeasibleError, match=r"`minimum` and `maximum`.* bounds are 0 or more"):
        enforce(d, FileLaw("u", "x", total=-1.0, measure=1.0), how="uniform", minimum=0.0)
    with pytest.raises(InfeasibleError, match="bounds are 4 or less"):
        enforce(d, FileLaw("u", "x", total=5.0, measure=1.0), how="uniform", maximum=2.0)
