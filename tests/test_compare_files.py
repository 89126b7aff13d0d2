"""`files.compare` and `probconserv compare`: does a law help, on forecasts whose truth is known."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from commands import called
from scipy.stats import norm, t

from probconserv import figures, files
from probconserv.diagnostics import Comparison
from probconserv.errors import InputError
from probconserv.files import FileLaw

GRID = ("init", "lead_time", "lat", "lon")
LAT, LON = np.arange(-75.0, 90, 30), np.arange(0.0, 360, 45)
INIT = np.datetime64("2020-01-01", "ns") + np.arange(12) * np.timedelta64(5, "D")
LEAD = np.arange(4) * np.timedelta64(6, "h").astype("timedelta64[ns]")
AREA = np.diff(np.sin(np.deg2rad(np.arange(-90.0, 91, 30))))[:, None] * np.ones((6, 8))
SIZE = 6371229**2 * np.pi / 4  # of a column of cells that AREA is a share of
CELL = SIZE * AREA
LAW = FileLaw("u", ("lat", "lon"))
ASKED = ("--mean", "u", "--over", "lat", "lon", "--functions", "init")


def dataset(**values):
    coords = {"init": INIT, "lead_time": LEAD, "lat": LAT, "lon": LON}
    units = {"units": "kg m-2"}
    return xr.Dataset({name: (GRID[-x.ndim :], x, units) for name, x in values.items()}, coords)


@pytest.fixture(scope="module")
def world():
    """12 forecasts of 4 lead times that lose mass, and the truth, which keeps it."""
    rng, lead = np.random.default_rng(5), np.arange(4.0)[:, None, None]
    steps = rng.normal(0, 0.3, (12, 4, 6, 8)) * (lead > 0)
    steps -= (steps * AREA).sum((2, 3), keepdims=True) / AREA.sum()
    truth = 5 + rng.normal(size=(12, 1, 6, 8)) + steps.cumsum(1)
    lost = 0.4 * rng.random((12, 1, 1, 1)) * lead
    std = 0.05 + (0.2 + 0.1 * rng.random((12, 4, 6, 8))) * lead
    forecast = truth - lost + std * rng.normal(size=truth.shape) * (lead > 0)
    return dataset(u=forecast, u_std=std), dataset(u=truth)


@pytest.fixture
def stored(world, tmp_path):
    """The same as files."""
    for name, each in zip(("forecast", "analysis"), world, strict=True):
        each.to_netcdf(tmp_path / f"{name}.nc")
    return tmp_path / "forecast.nc", tmp_path / "analysis.nc"


def average(x, there=1.0):
    return (x * AREA * there).sum((-2, -1)) / (AREA * there * np.ones_like(x)).sum((-2, -1))


def crps(z):
    """Of a standard normal at z, as an integral."""
    nodes, weights = np.polynomial.legendre.leggauss(80)
    left, right = (z[..., None] + 12) / 2, (12 - z[..., None]) / 2
    below = norm.cdf(left * (nodes + 1) - 12) ** 2
    above = norm.sf(12 - right * (nodes + 1)) ** 2
    return (left * below * weights + right * above * weights).sum(-1)


def close(found, wanted, tolerance=1e-9):
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=1e-12)


def test_scores_are_those_of_fields_moved_by_hand_with_areas_as_weights(world):
    forecast, truth = world
    found = files.compare(forecast, truth, LAW, functions="init", std="u_std")
    assert found.ways == ("no law", "variance", "uniform", "proportional")
    u, std, true = (np.array(x) for x in (forecast["u"], forecast["u_std"], truth["u"]))
    short = ((u[:, :1] - u) * AREA).sum((2, 3), keepdims=True)
    rows = AREA * std**2
    alone = (AREA * rows).sum((2, 3), keepdims=True)
    ways = {"no law": (u, std), "uniform": (u + short / AREA.sum(), std)}
    ways["variance"] = u + rows * short / alone, std * np.sqrt(1 - AREA * rows / alone)
    for way, (mean, own) in ways.items():
        scores, z = found.scores[way], (true - mean) / own
        close(scores["RMSE"], np.sqrt(average((mean - true) ** 2)))
        close(scores["CRPS"], average(own * crps(z)))
        close(scores["LL"], average(norm.logpdf(true, mean, own)))
        close(scores["coverage_90"], average(abs(z) < norm.ppf(0.95)))
        move, error = mean - u, true - u
        both = [(CELL * x).sum((2, 3)) for x in (move * error, move**2, error**2)]
        np.testing.assert_allclose(found.moves[way], both, rtol=1e-8, atol=1e-6)
    close(found.scores["no law"]["CE u"], abs(short[..., 0, 0]) * SIZE, 1e-6)
    assert max(x["CE u"].max() for way, x in found.scores.items() if way != "no law") < 10


def test_a_law_that_gives_back_what_was_lost_helps_and_a_wrong_total_harms(world):
    forecast, truth = world
    right = files.compare(forecast, truth, LAW, functions="init", std="u_std")
    assert {right.difference(way).answer for way in right.ways[1:]} == {"helps"}
    law = FileLaw("u", ("lat", "lon"), average=6.0)
    wrong = files.compare(forecast, truth, law, functions="init", how="uniform")
    assert wrong.difference("uniform").answer == "harms"
    assert right.times == tuple(f"lead_time {6 * i} h" for i in range(4))
    assert right.functions[:2] == ("init 2020-01-01", "init 2020-01-06")
    assert list(right.difference("uniform", by="time")) == list(right.times)


def test_missing_values_and_masks_are_left_out(world):
    forecast, truth = (each.copy(deep=True) for each in world)
    land = np.arange(48).reshape(6, 8) % 5 == 0
    forecast["u"].values[..., land], truth["u"].values[:, 2, 1, 3] = np.nan, np.nan
    forecast["sea"] = ("lat", "lon"), np.arange(48).reshape(6, 8) % 7 > 0
    law = FileLaw("u", ("lat", "lon"), where="sea")
    found = files.compare(forecast, truth, law, functions="init", how="uniform")
    away = np.array(forecast["u"] - truth["u"])
    there = np.isfinite(away) * forecast["sea"].values
    close(found.scores["no law"]["CRPS"], average(abs(np.nan_to_num(away)), there))
    lost = truth.copy(deep=True)
    lost["u"].values[3] = np.nan
    one = files.compare(world[0], lost, LAW, functions="init", how="uniform")
    assert one.difference("uniform").count == 11


def test_members_have_the_fair_crps_and_t_intervals(world):
    truth = world[1]
    rng = np.random.default_rng(6)
    members = truth["u"].values - 0.3 + rng.normal(0, 0.4, (5, 12, 4, 6, 8))
    forecast = dataset(u=members[0])
    forecast["u"] = ("member", *GRID), members, {"units": "kg m-2"}
    forecast["mass"] = GRID[:2], (truth["u"].values * CELL).sum((2, 3))
    law = FileLaw("u", ("lat", "lon"), total="mass")
    found = files.compare(forecast, truth, law, functions="init", member="member")
    assert found.ways == ("no law", "members", "uniform", "proportional")
    off = abs(members - truth["u"].values).mean(0)
    pairs = [abs(members[i] - members[j]) for i in range(5) for j in range(i)]
    close(found.scores["no law"]["CRPS"], average(off - np.mean(pairs, 0) / 2))
    half = t.ppf(0.95, 4) * members.std(0, ddof=1) * np.sqrt(1.2)
    inside = abs(members.mean(0) - truth["u"].values) < half
    close(found.scores["no law"]["coverage_90"], average(inside))
    assert {found.difference(way).answer for way in found.ways[1:]} == {"helps"}
    lazy = forecast.chunk({"member": 2, "init": 5, "lat": 4}), truth.chunk({"lon": 3})
    again = files.compare(*lazy, law, functions="init", member="member")
    for way, scores in found.scores.items():
        close(again.scores[way]["CRPS"], scores["CRPS"])


def test_the_truth_may_have_one_axis_of_dates_and_another_order(world, stored, tmp_path):
    forecast, truth = world
    known = files.compare(forecast, truth, LAW, functions="init", std="u_std")
    times = (INIT[:, None] + LEAD).ravel()
    values = truth["u"].values.reshape(48, 6, 8)[::-1, ::-1] * 1000
    analysis = xr.Dataset(
        {"mass": (("time", "lat", "lon"), values, {"units": "g m-2"})},
        {"time": times[::-1], "lat": LAT[::-1], "lon": LON},
    )
    analysis.to_netcdf(tmp_path / "dates.nc")
    way = {"functions": "init", "std": "u_std", "chunks": {"init": 5, "lat": 2}, "workers": 1}
    found = files.compare_file(stored[0], f"{tmp_path}/dates.nc:mass", LAW, **way)
    for name in ("CRPS", "LL", "RMSE"):
        close(found.scores["variance"][name], known.scores["variance"][name], 1e-6)
    assert any("converted from g m-2" in text for text in found.remarks)


def test_one_series_counts_each_time_and_says_what_that_means(world):
    run, truth = (x.isel(lead_time=2, drop=True).rename(init="time") for x in world)
    found = files.compare(run, truth, LAW, functions="time", how="uniform")
    assert found.scores["uniform"]["CRPS"].shape == (12, 1)
    assert "neighbouring entries of time are not independent" in found.verdict
    blocks = files.compare(run, truth, LAW, functions="time", how="uniform", block=5)
    assert blocks.functions == ("time 2020-01-01", "time 2020-01-26", "time 2020-02-20")
    each = found.scores["uniform"]["CRPS"][:, 0]
    close(blocks.scores["uniform"]["CRPS"][:, 0], [x.mean() for x in np.split(each, [5, 10])])
    assert "independent" not in blocks.verdict


def test_laws_of_several_variables_have_scores_of_each_and_of_all(world):
    forecast, truth = (each.assign(v=2 * each["u"] + 1) for each in world)
    laws = LAW, FileLaw({"u": 1.0, "v": 0.5}, ("lat", "lon"), name="energy")
    std = {"u": "u_std", "v": 0.3}
    found = files.compare(forecast, truth, *laws, functions="init", std=std)
    assert {"RMSE", "u: LL", "v: CRPS", "CE u", "CE energy"} < set(found.names)
    assert "v: LL" not in found.names  # one number says how points move, no more
    close(found.scores["no law"]["RMSE"].mean(), 1.0)
    assert found.difference("variance").answer == "helps"


def test_a_way_that_cannot_be_is_named_and_noise_needs_a_spread(world):
    forecast, truth = world
    flat = forecast.assign(u=0 * forecast["u"])
    law = FileLaw("u", ("lat", "lon"), average=5.0)
    found = files.compare(flat, truth, law, functions="init")
    assert found.ways == ("no law", "uniform")
    assert "multiplies values, and all are 0" in found.failed["proportional"]
    noisy = FileLaw("u", ("lat", "lon"), noise=1e12)
    ways = files.compare(forecast, truth, noisy, functions="init", std="u_std").ways
    assert ways == ("no law", "variance")


def twice(data, dim, i):
    """The data with an entry twice."""
    return data.isel({dim: sorted([*range(data.sizes[dim]), i])})


@pytest.mark.parametrize("form", [float, int, np.float32])
def test_numbers_that_stand_twice_in_the_truth_are_refused(world, form):
    forecast, truth = (x.assign_coords(lead_time=6 * np.arange(4).astype(form)) for x in world)
    for x in (forecast, truth):
        x["lead_time"].attrs["units"] = "hours"
    with pytest.raises(InputError, match="`truth` has 6 hours twice along lead_time"):
        files.compare(forecast, twice(truth, "lead_time", 1), LAW, functions="init")


def test_times_that_differ_have_names_that_differ(world):
    ticks = 1e7 + np.array([0.0, 1, 2, 3])
    run, truth = (x.rename(lead_time="st").assign_coords(st=ticks) for x in world)
    found = files.compare(run, truth, LAW, functions="init", by="st", how="uniform")
    assert found.times == tuple(f"st {10**7 + i}" for i in range(4))
    assert len(found.difference("uniform", by="time")) == 4
    odd = [0, 0, 1, 2]  # the same in both files: taken one by one
    run, truth = (x.rename(lead_time="st").assign_coords(st=odd) for x in world)
    found = files.compare(run, truth, LAW, functions="init", by="st", how="uniform")
    assert found.times == ("st 0, number 0", "st 0, number 1", "st 1, number 2", "st 2, number 3")


def test_a_variable_without_truth_is_named(world):
    forecast, truth = (each.assign(v=2 * each["u"] + 1) for each in world)
    laws = LAW, FileLaw("v", ("lat", "lon"))
    truth["v"] *= np.nan
    with pytest.raises(InputError, match="`truth` of `v` has no number where"):
        files.compare(forecast, truth, *laws, functions="init", how="uniform")


def test_LL_is_unknown_where_a_law_leaves_no_spread_and_is_not_averaged_away(world):
    forecast, truth = (each.copy(deep=True) for each in world)
    forecast["u"].values[3, 2].flat[1:] = np.nan  # the law says what the only point is
    asked = {"functions": "init", "std": "u_std", "how": "variance"}
    for block, row in ((1, 3), (2, 1)):
        found = files.compare(forecast, truth, LAW, block=block, **asked)
        before, after = (found.scores[way]["LL"] for way in ("no law", "variance"))
        assert np.isfinite(before).all()
        assert [*np.argwhere(np.isnan(after))[0]] == [row, 2]
        assert np.isnan(after).sum() == 1
        assert np.isfinite(found.scores["variance"]["CRPS"]).all()


@pytest.mark.parametrize(
    ("change", "asked", "rule"),
    [
        (lambda x: x.rename(u="w"), {}, "`truth`: no variable 'u' here. There are: w"),
        (lambda x: x.assign_coords(lat=LAT + 1), {}, "`truth` has no -75 along lat, which `u` has"),
        (lambda x: x.assign_coords(lon=LON - 180), {}, "Longitudes may count from elsewhere"),
        (lambda x: x.isel(init=slice(3, 12)), {}, "has no 2020-01-01 along init, which `u`"),
        (lambda x: x.isel(lead_time=0, drop=True), {}, "along init, which a forecast of `u` needs"),
        (lambda x: x.isel(lat=0, drop=True), {}, "`truth` of `u` has no dimension 'lat'"),
        (lambda x: x["u"].values, {}, "`truth` must be a dataset or an array; got ndarray"),
        (lambda x: x.assign(u=x["u"].assign_attrs(units="K")), {}, "is in 'K'"),
        (lambda x: x, {"functions": "intt"}, "Did you mean 'init'"),
        (lambda x: x, {"functions": None}, "must name the dimension that counts forecasts"),
        (lambda x: x, {"functions": "lat"}, "which no law sums over; got 'lat'"),
        (lambda x: x, {"by": "lon"}, "`by` must be one of lead_time"),
        (lambda x: x, {"block": 12}, "'init' makes one function, of which nothing"),
        (lambda x: x, {"how": "unform"}, "Did you mean 'uniform'"),
        (lambda x: x, {"how": []}, "`how` names no way: give some of uniform, proportional"),
        (lambda x: x, {"stdd": "u_std"}, "`compare` has no option 'stdd'. Did you mean 'std'?"),
        (lambda x: x, {"function": "init"}, "no option 'function'. Did you mean 'functions'?"),
        (lambda x: twice(x, "lead_time", 1), {}, "`truth` has 6 h twice along lead_time. Drop one"),
        (lambda x: twice(x, "lat", 2), {}, "`truth` has -15 twice along lat. Drop one"),
        (lambda x: twice(x, "init", 0), {}, "`truth` has 2020-01-01 twice along init. Drop one"),
        (lambda x: x * np.nan, {}, "`truth` of `u` has no number where the forecasts have one"),
        (lambda x: x, {"how": "variance"}, "it needs `std`"),
    ],
)
def test_what_is_wrong_is_said(world, change, asked, rule):
    forecast, truth = world
    with pytest.raises(InputError) as refused:
        files.compare(forecast, change(truth), LAW, **{"functions": "init", **asked})
    assert rule in str(refused.value)


def test_the_command_prints_a_table_and_a_verdict_and_keeps_both(stored, tmp_path):
    kept, picture = tmp_path / "found.json", tmp_path / "gain.png"
    law = (*ASKED, "--std", "u_std", "--by", "lead_time")
    written = ("-o", kept, "--plot", picture)
    done = called("compare", stored[0], "--truth", stored[1], *law, *written)
    assert done.returncode == 0, done.stderr
    assert "`variance` helps: CRPS is" in done.stdout
    assert "of 12 functions" in done.stdout
    assert "lead_time 18 hours" in done.stdout
    assert max(map(len, done.stdout.split("`variance`")[0].splitlines())) <= 80
    assert picture.stat().st_size > 10_000
    again = Comparison.load(kept)
    direct = files.compare_file(*stored, LAW, functions="init", std="u_std")
    assert again.verdict == direct.verdict
    assert again.times == direct.times
    (first, *_) = json.loads(kept.read_text())["differences"]
    assert (first["way"], first["score"], first["answer"]) == ("variance", "RMSE", "helps")


def test_the_command_exits_with_1_where_no_way_helps(stored):
    law = (*ASKED, "--average", "6", "--how", "uniform")
    done = called("compare", stored[0], "--truth", stored[1], *law)
    assert done.returncode == 1
    assert "`uniform` harms: CRPS is" in done.stdout
    assert "`uniform` loses most at init 2020-" in done.stdout


def test_the_command_exits_with_2_where_nothing_can_be_said(stored, tmp_path):
    asked = ("compare", stored[0], "--truth", stored[1], *ASKED)
    few = called(*asked, "--block", "5", "-o", tmp_path / "few.json")
    assert (few.returncode, "3 functions say nothing" in few.stdout) == (2, True)
    assert "too few forecasts to say whether a law helps: 3 have a CRPS." in few.stderr
    assert Comparison.load(tmp_path / "few.json").functions
    none = called(*asked, "--noise", "1e12")
    assert (none.returncode, "no way is left to try" in none.stderr) == (2, True)
    (0 * xr.load_dataset(stored[0])).to_netcdf(tmp_path / "flat.nc")
    drawn = ("--average", "5", "--how", "proportional", "--plot", tmp_path / "a.png")
    failed = called("compare", tmp_path / "flat.nc", *asked[2:], *drawn)
    assert (failed.returncode, "every way failed" in failed.stderr) == (2, True)
    assert "`proportional` failed: " in failed.stdout
    assert not (tmp_path / "a.png").exists()


def test_the_command_exits_with_2_where_there_is_no_truth(stored, tmp_path):
    (np.nan * xr.load_dataset(stored[1])).to_netcdf(tmp_path / "lost.nc")
    lost = called("compare", stored[0], "--truth", tmp_path / "lost.nc", *ASKED)
    assert (lost.returncode, lost.stdout) == (2, "")
    assert "`--truth` of `u` has no number where the forecasts have one" in lost.stderr


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ((), "give `--mean` and `--over`"),
        (ASKED[:-2], "`--functions` must name the dimension"),
        ((*ASKED, "-o", "forecast.nc"), "`--out` forecast.nc must end in .json"),
        ((*ASKED, "-o", "nowhere/a.json"), "there is no folder nowhere"),
        ((*ASKED, "--plot", "a.nc"), "`--plot` a.nc must end in"),
        ((*ASKED, "--score", "coverage_90"), "`--score` must be CRPS, RMSE, LL"),
        ((*ASKED, "--how", "none"), "`--how` must be one of uniform, proportional"),
        ((*ASKED, "--how"), "`--how` names no way: give some of uniform, proportional"),
        ((*ASKED, "--block", "0"), "`--block` must be a positive whole number"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(stored, words, rule):
    done = called("compare", stored[0], "--truth", stored[1], *words)
    assert done.returncode == 2
    assert rule in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_figure_has_each_gain_with_its_interval(world):
    found = files.compare(*world, LAW, functions="init", std="u_std")
    (axes,) = figures.comparison_figure(found, "RMSE").axes
    ticks = [label.get_text() for label in axes.get_yticklabels()]
    assert ticks == ["variance", "uniform", "proportional"]
    for way, lines in zip(found.ways[1:], axes.collections, strict=True):
        one = found.difference(way, "RMSE")
        ((low, _), (high, _)) = lines.get_segments()[0]
        close((low, high), 100 * np.array(one.interval) / one.base)
        assert one.interval[0] < one.gain < one.interval[1]
    (axes,) = figures.comparison_figure(found, "LL", by="time").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0 h", "6 h", "12 h", "18 h"]
    gains = [one.gain for one in found.difference("variance", "LL", by="time").values()]
    assert any(np.allclose(line.get_ydata(), gains) for line in axes.lines if len(line.get_ydata()))
    with pytest.raises(InputError, match="`score` must be one of"):
        figures.comparison_figure(found, "coverage_90")
    with pytest.raises(InputError, match="`comparison` must be of ways"):
        figures.comparison_figure("found")


def test_LL_of_a_variable_is_drawn_and_printed_in_its_own_unit(world, tmp_path):
    both = [each.assign(ALL=2 * each["u"] + 1, ALL_std=0.3 + 0 * each["u"]) for each in world]
    laws = LAW, FileLaw("ALL", ("lat", "lon"))
    std = {"u": "u_std", "ALL": "ALL_std"}
    found = files.compare(*both, *laws, functions="init", std=std, how="variance")
    for score, unit in (("u: LL", ""), ("ALL: LL", ""), ("u: CRPS", " (%)"), ("CE ALL", " (%)")):
        (axes,) = figures.comparison_figure(found, score).axes
        assert axes.get_xlabel() == f"gain in {score} over no law{unit}"
    with pytest.raises(InputError, match="`score` must be one of"):
        figures.comparison_figure(found, "u: coverage_90")
    for x, name in zip(both, ("a.nc", "b.nc"), strict=True):
        x.to_netcdf(tmp_path / name)
    toml = '[[law]]\nvariables = "ALL"\nover = ["lat", "lon"]\nname = "coverage LL"\n'
    (tmp_path / "laws.toml").write_text(toml)
    words = ("--functions", "init", "--how", "uniform", "--laws", tmp_path / "laws.toml")
    files_ = (tmp_path / "a.nc", "--truth", tmp_path / "b.nc")
    done = called("compare", *files_, *words, "--score", "CE coverage LL")
    assert "CE coverage LL is 100.0% lower" in done.stdout
    assert re.search(r"uniform +100\.0 ± [0-9.]+ %", done.stdout)


def test_the_page_shows_what_the_command_prints(stored, tmp_path, monkeypatch):
    page = (Path(__file__).parents[1] / "docs" / "howto" / "netcdf.md").read_text()
    command = re.search(r"^probconserv (compare .*)$", page, re.MULTILINE)[1]
    shown = re.search(r"```text\n(12 functions.*?)```", page, re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    printed = called(*command.split()).stdout
    assert but_rounding(printed) == but_rounding(shown)


def but_rounding(text):
    """The lines, without what is left of totals of 1e14, which hangs on the last digits."""
    ways = r"^((?:variance|uniform|proportional) [^±]*?)\s+\S+$"
    return [re.sub(ways, r"\1", line.rstrip()) for line in text.splitlines()]
