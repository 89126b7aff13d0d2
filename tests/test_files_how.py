"""The named ways to spread a correction, against plain NumPy."""

import numpy as np
import pytest
import xarray as xr

from probconserv.errors import InfeasibleError, InputError
from probconserv.files import FileLaw, check, enforce, enforce_file

pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")

SPACE = ("lat", "lon")
WHOLE, CUT = {"time": 1}, {"lat": 2}


def made(seed=0):
    rng = np.random.default_rng(seed)
    grid, shape = ("time", *SPACE), (3, 6, 4)
    u = rng.normal(3, 2, shape)
    u[1, 2, 3] = np.nan
    return xr.Dataset(
        {"u": (grid, u), "basin": ("lat", [0, 0, 1, 1, 2, 2]), "sea": ("lon", [1, 1, 1, 0])},
        {"time": [0.0, 1.0, 2.0], "lat": np.arange(-75.0, 90, 30), "lon": np.arange(0.0, 360, 90)},
    )


def area(d):
    edges = np.sin(np.deg2rad(np.arange(-90, 91, 30)))
    return xr.DataArray(np.diff(edges), {"lat": d.lat}, "lat") * 2 * np.pi * 6371229.0**2 / 4


def total(d, u):
    return (u * area(d)).sum(SPACE)


def shift(d, **how):
    return enforce(d, FileLaw("u", SPACE), **how).u - d.u


def test_uniform_moves_every_point_of_a_time_by_the_same_amount():
    d = made()
    mean = total(d, d.u) / total(d, d.u.notnull())
    per_cell = total(d, d.u)[0] / total(d, d.u.notnull()) - mean
    xr.testing.assert_allclose(shift(d, how="uniform"), per_cell.where(d.u.notnull()))


def test_proportional_multiplies_every_value_by_the_same_factor():
    d = made()
    d["u"] = abs(d.u)
    out = enforce(d, FileLaw("u", SPACE), how="proportional").u
    xr.testing.assert_allclose(out, d.u * (total(d, d.u)[0] / total(d, d.u)))


def test_proportional_moves_values_of_both_signs_one_way():
    d = xr.Dataset({"u": ("x", [-2.0, 0.0, 1.0, 5.0])})
    out = enforce(d, FileLaw("u", "x", total=4.8, measure=1.0), how="proportional")
    np.testing.assert_allclose(out.u, [-1.8, 0.0, 1.1, 5.5])
    down = enforce(-d, FileLaw("u", "x", total=-4.8, measure=1.0), how="proportional")
    np.testing.assert_allclose(down.u, [1.8, 0.0, -1.1, -5.5])


@pytest.mark.parametrize("how", ["uniform", "proportional"])
@pytest.mark.parametrize("chunks", [WHOLE, CUT])
def test_files_in_blocks_are_moved_as_in_memory(tmp_path, how, chunks):
    d = made()
    law = FileLaw("u", SPACE, regions="basin", where="sea")
    d.to_netcdf(tmp_path / "in.nc")
    enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", law, how=how, chunks=chunks)
    here = enforce(d, law, how=how)
    with xr.open_dataset(tmp_path / "out.nc") as out:
        np.testing.assert_allclose(out.u, here.u, rtol=1e-12)
    assert check(here, law).closes(1e-14)
    np.testing.assert_array_equal(here.u[..., 3], d.u[..., 3])


def test_uniform_moves_each_region_by_an_amount_of_its_own():
    d = made()
    moved = enforce(d, FileLaw("u", SPACE, regions="basin"), how="uniform").u - d.u
    for rows in (slice(0, 2), slice(2, 4), slice(4, 6)):
        assert np.ptp(moved[2, rows].values) < 1e-13


def test_the_least_uniform_move_for_two_laws_is_that_of_the_area_norm():
    d = made().isel(time=[0], lon=[0]).fillna(1.0)
    g = np.stack([area(d).values, [1.0, 2, 3, 4, 5, 6]])
    b = g @ d.u.values.ravel() + [1e12, 0.5]
    laws = [
        FileLaw("u", SPACE, total=b[0], measure=(area(d) * xr.ones_like(d.lon)).rename("m")),
        FileLaw({"u": xr.DataArray(g[1], dims="lat")}, SPACE, total=b[1], measure=1.0),
    ]
    out = enforce(d, *laws, how="uniform").u - d.u
    along = np.linalg.lstsq(g / np.sqrt(g[0]), [1e12, 0.5], rcond=None)[0] / np.sqrt(g[0])
    np.testing.assert_allclose(out.values.ravel(), along, rtol=1e-9)


@pytest.mark.parametrize("correlation", [0.0, 0.4, 1.0])
def test_one_number_for_std_moves_all_points_alike(correlation):
    d = made()
    moved = shift(d, std=0.7, correlation=correlation)
    xr.testing.assert_allclose(moved, shift(d, how="uniform"), atol=1e-12)


def test_one_number_for_std_is_that_of_a_cell_of_mean_size():
    d, noise = made().isel(time=[0]), 1e13
    law = FileLaw("u", SPACE, total=0.0, noise=noise)
    prior = 0.7**2 * float(area(d).mean()) * float(total(d, d.u[0].notnull()))
    gain = prior / (prior + noise**2)
    out = enforce(d, law, std=0.7)
    np.testing.assert_allclose(total(d, out.u), (1 - gain) * total(d, d.u), rtol=1e-12)


def test_without_uncertainty_the_verdict_compares_the_move_with_the_field_itself():
    d = made()
    for how in ("uniform", "proportional"):
        report = enforce(d, FileLaw("u", SPACE), how=how).probconserv.report
        assert (
            "no `std` or members; the totals move the field by at most"
            in report["laws"][0]["verdict"]
        )
        assert report["method"].startswith(f"{how}, the same")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "`how`: uniform, .*proportional, .*variance, .*members, "),
        ({"how": "unifrom"}, "Did you mean 'uniform'"),
        ({"how": "variance"}, "`how` 'variance' .* needs `std`"),
        ({"how": "members"}, "`how` 'members' .* needs `member`"),
        ({"how": "uniform", "std": 1.0}, "`how` 'uniform' takes no `std`"),
        ({"how": "proportional", "member": "lat"}, "'proportional' takes no `member`"),
        ({"how": "uniform", "correlation": 0.5}, "`correlation` is for `std`"),
        ({"minimum": 2.0, "maximum": 1.0, "std": 1.0}, "`minimum` must be below `maximum`"),
    ],
)
def test_ways_that_do_not_fit_are_refused(given, text):
    with pytest.raises(InputError, match=text):
        enforce(made(), FileLaw("u", SPACE), **given)


def test_a_field_of_zeros_has_no_proportion():
    d = xr.Dataset({"u": ("x", np.zeros(4))})
    with pytest.raises(InfeasibleError, match="'proportional' multiplies values, and all are 0"):
        enforce(d, FileLaw("u", "x", total=1.0, measure=1.0), how="proportional")


def test_noise_needs_an_uncertainty_beside_it():
    with pytest.raises(InputError, match=r"`noise` of u .* `how` 'uniform' knows no spread"):
        enforce(made(), FileLaw("u", SPACE, noise=1.0), how="uniform")


@pytest.fixture
def dry_at_first():
    """Nothing counts at the first level."""
    rng, grid = np.random.default_rng(0), ("level", "y", "x")
    sea = np.ones((3, 4, 5))
    sea[0] = 0
    plane = {"a": rng.random((4, 5)) + 0.5, "basin": rng.integers(1, 3, (4, 5))}
    made = {"u": (grid, rng.normal(5, 1, (3, 4, 5))), "sea": (grid, sea)}
    return xr.Dataset(made | {name: (grid[1:], each) for name, each in plane.items()})


def test_ways_do_not_depend_on_the_first_level(dry_at_first):
    d, given = dry_at_first, {"measure": "a", "where": "sea", "average": 4.5}
    law, each = (
        FileLaw("u", ("y", "x"), **given),
        FileLaw("u", ("y", "x"), regions="basin", **given),
    )
    wet = slice(1, None)
    share = (enforce(d, law, how="proportional").u / d.u)[wet]
    np.testing.assert_allclose(share, share.mean(("y", "x")).values[:, None, None] + 0 * share)
    move = (enforce(d, law, how="uniform").u - d.u)[wet]
    np.testing.assert_allclose(move, move.mean(("y", "x")).values[:, None, None] + 0 * move)
    move = (enforce(d, each, how="uniform").u - d.u)[wet]
    for basin in (1, 2):
        own = move.where(d.basin == basin)
        np.testing.assert_allclose(own.min(("y", "x")), own.max(("y", "x")))
    assert not check(d, law).closes()


def test_a_law_that_counts_nothing_is_refused(dry_at_first):
    d = dry_at_first.assign(sea=0 * dry_at_first.sea)
    law = FileLaw("u", ("y", "x"), measure="a", where="sea", total=0.0)
    with pytest.raises(InputError, match="no point of u counts"):
        enforce(d, law, how="uniform")
