import numpy as np
import pytest
import torch
import xarray as xr
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from seeds import generator

import probconserv as pc
from probconserv import figures
from probconserv.experiments.paper import METHODS
from probconserv.figures._fields import OTHERS, PAPER
from probconserv.files import FileLaw, check, enforce_file

X, T = np.linspace(0, 1, 7), np.linspace(0, 2, 5)
TRUTH = np.linspace(1.0, 0.4, 7)


def fields(*shape):
    rng = torch.Generator().manual_seed(0)
    return {
        name: pc.Diagonal(torch.rand(*shape, generator=rng, dtype=torch.float64), 0.04)
        for name in ("ANP", "mine", "ProbConserv-ANP", "another")
    }


def test_each_method_has_a_panel_with_its_mean_and_three_standard_deviations():
    given = fields(1, 7)
    figure = figures.profiles_figure(X, given, TRUTH)
    assert [axes.get_title() for axes in figure.axes] == list(given)
    for axes, field in zip(figure.axes, given.values(), strict=True):
        truth, mean = axes.lines
        np.testing.assert_allclose(truth.get_ydata(), TRUTH)
        np.testing.assert_allclose(mean.get_ydata(), field.mean[0])
        reach = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert reach.max() == pytest.approx(float(field.mean.max()) + 0.6)
        assert reach.min() == pytest.approx(float(field.mean.min()) - 0.6)


def test_errors_are_less_the_truth():
    given = fields(7)
    figure = figures.errors_figure(X, given, TRUTH)
    for axes, field in zip(figure.axes, given.values(), strict=True):
        error = field.mean.numpy() - TRUTH
        np.testing.assert_allclose(axes.lines[1].get_ydata(), error)
        reach = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert reach.max() == pytest.approx(error.max() + 0.6)
        assert reach.min() == pytest.approx(error.min() - 0.6)


def test_mass_is_the_integral_of_the_mean():
    given, total = fields(5, 7), np.linspace(0.3, 0.5, 5)
    left, right = figures.mass_figure(T, given, pc.integral(X, total)).axes
    for line, off, field in zip(left.lines[:4], right.lines, given.values(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), np.trapezoid(field.mean, X))
        np.testing.assert_allclose(off.get_ydata(), np.trapezoid(field.mean, X) - total)
    np.testing.assert_allclose(left.lines[4].get_ydata(), total)


def test_a_constant_total_is_drawn_at_every_time():
    left, _ = figures.mass_figure(T, fields(5, 7), pc.integral(X, 0.5)).axes
    np.testing.assert_allclose(left.lines[4].get_ydata(), np.full(5, 0.5))


def test_scores_over_time_and_against_precision():
    axes = figures.scores_figure(T, {"ANP": T + 1, "mine": T + 2}, "CRPS").axes[0]
    np.testing.assert_allclose(axes.lines[1].get_ydata(), T + 2)
    assert (axes.get_ylabel(), axes.get_yscale()) == ("CRPS", "log")
    precision, mean = np.array([1.0, 10.0, np.inf]), np.array([3.0, 2.0, 1.5])
    figure = figures.precision_figure(
        precision, {"LL": (mean, mean / 10), "MSE": (mean, mean / 10)}
    )
    for axes, scale in zip(figure.axes, ("linear", "log"), strict=True):
        np.testing.assert_allclose(axes.lines[0].get_ydata(), mean[:2])
        np.testing.assert_allclose(axes.lines[1].get_ydata(), [1.5, 1.5])
        reach = axes.collections[0].get_paths()[0].vertices[:, 1]
        np.testing.assert_allclose([reach.min(), reach.max()], [1.8, 3.3])
        assert axes.get_yscale() == scale


def test_scores_below_zero_are_drawn_too():
    (axes,) = figures.scores_figure(T, {"ANP": T - 1}, "LL").axes
    assert axes.get_yscale() == "linear"
    score = np.array([-3.0, -2.0, -1.0])
    figure = figures.precision_figure([1.0, 10.0, np.inf], {"LL": (score, score * 0)})
    assert list(figure.axes[0].lines[1].get_ydata()) == [-1, -1]


def test_the_picture_reaches_as_far_as_the_bands_of_half_the_points():
    wide = {"wide": pc.Diagonal(TRUTH, 4.0)}
    assert figures.errors_figure(X, wide, TRUTH).axes[0].get_ylim() == pytest.approx((-7.8, 7.8))
    flat = figures.profiles_figure(X, {"flat": pc.Diagonal(np.ones(7), 0.0)}, np.ones(7))
    assert flat.axes[0].get_ylim() == pytest.approx((0, 2))


def test_a_single_time_is_marked():
    left, right = figures.mass_figure([0.5], fields(1, 7), pc.integral(X, 0.5)).axes
    (axes,) = figures.scores_figure([0.5], {"ANP": [1.0]}).axes
    assert {axis.lines[0].get_marker() for axis in (left, right, axes)} == {"o"}


def test_a_histogram_of_fronts_holds_their_probability():
    x = torch.linspace(2, 4, 21, dtype=torch.float64)
    mean = torch.where(x < 3.1, 0.9, 0.0)
    exact = pc.diagnostics.front_position(pc.Diagonal(mean, 0.01), x)
    drawn = pc.diagnostics.front_position(
        pc.Diagonal(mean, 0.01), x, 0.45, "crossing", samples=400, generator=generator()
    )
    nowhere = pc.diagnostics.front_position(pc.Diagonal(mean + 9, 0.01), x)
    figure = figures.front_figure({"exact": exact, "drawn": drawn, "nowhere": nowhere}, true=3.1)
    heights = [axes.patches[0].get_data().values.sum() for axes in figure.axes]
    np.testing.assert_allclose(heights, [1, 1, 0], atol=0.01)
    edges = figure.axes[0].patches[0].get_data().edges
    assert edges.min() < 3.1 < edges.max()
    assert figure.axes[2].get_title() == "nowhere\nno front: 100.0 %"
    assert all(axes.lines[0].get_xdata()[0] == 3.1 for axes in figure.axes)


def test_bars_stand_on_the_points_of_a_grid():
    """Bins of another width than the grid's would show gaps that are not there."""
    x = torch.linspace(0, 1, 201, dtype=torch.float64)
    front = pc.diagnostics.front_position(pc.Diagonal(torch.where(x < 0.5, 0.2, 0.0), 0.01), x)
    (axes,) = figures.front_figure({"ANP": front}).axes
    edges = axes.patches[0].get_data().edges
    np.testing.assert_allclose(np.diff(edges), 0.005, rtol=1e-6)


def test_few_draws_between_grid_points_are_gathered_in_bins():
    x = torch.linspace(0, 1, 51, dtype=torch.float64)
    field = pc.Diagonal(1 - 1.2 * x, 1e-3)
    front = pc.diagnostics.front_position(
        field, x, 0.3, "crossing", samples=100, generator=generator()
    )
    (axes,) = figures.front_figure({"mine": front}).axes
    heights = axes.patches[0].get_data().values
    assert len(heights) == 30
    assert heights.max() > 0.03


def test_seven_methods_of_ones_own_look_different():
    names = [f"method {i}" for i in range(7)]
    left, _ = figures.mass_figure(
        T, {name: pc.Diagonal(np.ones((5, 7)), 0.0) for name in names}, pc.integral(X, 0.5)
    ).axes
    looks = {(line.get_color(), line._unscaled_dash_pattern) for line in left.lines[:7]}
    assert len({str(look) for look in looks}) == 7


def test_a_diagnosis_shows_b_beside_the_prior_and_marks_the_wrong_rows():
    mean, total = np.ones((5, 7)), np.array([1.0, 1.0, 4.0, 1.0, 1.0])
    found = pc.diagnose((mean, 0.01), pc.integral(X, total))
    figure = figures.diagnosis(found, T)
    left, right = figure.axes
    np.testing.assert_allclose(left.lines[0].get_ydata(), np.ones(5))
    np.testing.assert_allclose(left.lines[1].get_ydata(), total)
    reach = left.collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([reach.min(), reach.max()], [0.5, 1.5])
    np.testing.assert_allclose(right.lines[0].get_ydata(), [0, 0, -30, 0, 0], atol=1e-9)
    for axes in (left, right):
        marked = next(line for line in axes.lines if line.get_label() == "wrong")
        assert list(marked.get_xdata()) == [T[2]]
    assert found.verdict in figure.get_suptitle().replace("\n", " ")


def test_a_diagnosis_without_times_or_spread_is_drawn_too():
    certain = pc.diagnose((np.ones((5, 7)), 0.0), pc.integral(X, [1.0, 1.0, 4.0, 1.0, 1.0]))
    left, right = figures.diagnosis(certain).axes
    assert (left.get_xlabel(), list(left.lines[0].get_xdata())) == ("row", [0, 1, 2, 3, 4])
    assert list(right.lines[0].get_ydata()) == [0, 0, -10, 0, 0]


def drifting(levels=2):
    """A field that drifts away from its first total, on two levels, the second one faster."""
    drift = 0.1 * np.arange(5)[:, None] * np.arange(1, levels + 1)
    u = 3 + drift[..., None, None] + np.zeros((5, levels, 4, 3))
    grid = ("time", "lev", "lat", "lon")
    return xr.Dataset({"u": (grid, u, {"units": "K"})}, {"time": T, "lev": np.arange(levels) * 10})


def test_a_budget_is_drawn_before_and_after_with_the_change_beside_it(tmp_path):
    drifting().to_netcdf(tmp_path / "in.nc")
    law = FileLaw("u", ("lat", "lon"), measure=2.0)
    report = enforce_file(tmp_path / "in.nc", None, law, std=0.5, change=True)
    left, right, bar = figures.budget(report).axes
    before, after, _ = left.lines
    np.testing.assert_allclose(before.get_xdata(), T)
    np.testing.assert_allclose(before.get_ydata(), 0.2 * np.arange(5))  # of the worse level
    np.testing.assert_allclose(after.get_ydata(), 0, atol=1e-12)
    assert left.get_title() == "u, worst at lev 10"
    np.testing.assert_allclose(right.collections[0].get_array(), np.full((4, 3), -0.3))
    assert bar.get_ylabel() == "mean change [K]"


def test_a_budget_that_was_only_checked_has_no_after():
    report = check(drifting(1), FileLaw("u", ("lat", "lon", "lev"), measure=1.0))
    (axes,) = figures.budget(report).axes
    assert [line.get_label() for line in axes.lines] == ["now", "law"]
    with pytest.raises(pc.errors.InputError, match=r"`report` must come from `files\.check`"):
        figures.budget(None)


def cloud():
    """A plane of 3 x 2 cells over two intervals, off balance, with its law and what it gives."""
    edges = {"x (km)": [0.0, 1.0, 2.0, 4.0], "y (km)": [0.0, 0.5, 1.0]}
    law = pc.cell_budgets(pc.Mesh(x=edges["x (km)"], y=edges["y (km)"]), [0, 1, 2], ("fx", "fy"))
    rng = torch.Generator().manual_seed(0)
    shapes = {"u": (3, 3, 2), "fx": (2, 4, 2), "fy": (2, 3, 3)}
    state = pc.State(**{n: (torch.rand(s, generator=rng), 0.1) for n, s in shapes.items()})
    return edges, state, pc.condition(state, law), law


def test_maps_show_before_after_truth_the_change_and_the_imbalance_of_cells():
    edges, state, post, law = cloud()
    truth = np.linspace(-3, 3, 6).reshape(3, 2)
    figure = figures.maps_figure(edges, state, post, law, truth, interval=0, units="g")
    panels, bars = figure.axes[:6], figure.axes[6:]
    shown = [axes.collections[0] for axes in panels]
    u = [state["u"].mean[1], post["u"].mean[1]]  # the end of the first interval
    off = [law.residual(state)[0], law.residual(post)[0]]
    for mesh, values in zip(shown, [*u, truth, u[1] - u[0], *off], strict=True):
        np.testing.assert_allclose(mesh.get_array(), np.asarray(values).T, atol=1e-12)
    assert [axes.get_title().split("\n")[0] for axes in panels] == [
        *("before", "after", "truth"),
        *("after - before", "imbalance before", "imbalance after"),
    ]
    scales = [mesh.get_clim() for mesh in shown]
    assert scales[0] == scales[1] == scales[2] == (-3, 3)
    assert scales[4] == scales[5] == (-scales[4][1], scales[4][1])
    assert [bar.get_xlabel() for bar in bars] == [
        *("u (g)", "difference of u (g)", "gain less inflow (g), times cell size"),
    ]
    assert (panels[3].get_xlabel(), panels[3].get_ylabel()) == ("x (km)", "y (km)")
    np.testing.assert_allclose(shown[0].get_coordinates()[0, :, 0], edges["x (km)"])


def test_maps_put_latitude_upright_and_need_no_truth():
    _, state, post, law = cloud()
    edges = {"lat (°N)": [0.0, 1.0, 2.0, 4.0], "lon (°E)": [0.0, 0.5, 1.0]}
    panels = figures.maps_figure(edges, state, post, law).axes
    assert (panels[0].get_xlabel(), panels[0].get_ylabel()) == ("lon (°E)", "lat (°N)")
    np.testing.assert_allclose(panels[0].collections[0].get_array(), state["u"].mean[-1])
    assert not panels[2].get_visible()
    named = figures.maps_figure(edges, state, post, law, names=("raw", "mine")).axes
    titles = [axes.get_title().split("\n")[0] for axes in named]
    assert titles[:6] == ["raw", "mine", "", "mine - raw", "imbalance raw", "imbalance mine"]


def test_what_cannot_be_drawn_as_maps_is_refused():
    edges, state, post, law = cloud()
    two = pc.State(u=pc.Diagonal(torch.rand(2, 3, 3, 2, generator=generator()), 1.0))
    for draw, message in (
        (lambda: figures.maps_figure(edges, state, post, 1.0), "`law` must be a law"),
        (lambda: figures.maps_figure({"x": [0, 1]}, state, post, law), "`edges` must be a dict"),
        (
            lambda: figures.maps_figure(edges, two, post, law),
            r"`before` must have one value for each of the 3 x 2 cells.*\(2, 3, 3, 2\)",
        ),
        (lambda: figures.maps_figure(edges, state, post, law, X), r"`truth` must have one value"),
        (
            lambda: figures.maps_figure(edges, state, post, law, None, 2),
            "`interval` 2 does not exist",
        ),
    ):
        with pytest.raises(pc.errors.InputError, match=message):
            draw()


def test_a_method_has_one_colour_and_one_line_everywhere():
    assert set(PAPER) == set(METHODS)
    styles = [*PAPER.values(), *OTHERS]
    assert len({colour for colour, _ in styles}) == len(styles)
    for chosen in (fields(5, 7), dict(reversed(fields(5, 7).items()))):
        left, _ = figures.mass_figure(T, chosen, pc.integral(X, 0.5)).axes
        by_name = {line.get_label(): to_hex(line.get_color()).upper() for line in left.lines}
        assert by_name["ANP"] == "#D55E00"
        assert len(set(by_name.values())) == len(by_name) == 5


@pytest.mark.parametrize("colour", [colour for colour, _ in (*PAPER.values(), *OTHERS)])
def test_a_line_has_a_contrast_of_three_to_one_on_white(colour):
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(colour)]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    assert 1.05 / (light + 0.05) >= 3


def test_the_same_figure_is_the_same_file(tmp_path):
    for ending in ("png", "svg"):
        paths = [
            figures.save(figures.profiles_figure(X, fields(7), TRUTH), tmp_path / f"{i}.{ending}")
            for i in (1, 2)
        ]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_what_cannot_be_drawn_is_refused():
    given, law = fields(7), pc.integral(X, 0.5)
    for draw, message in (
        (lambda: figures.profiles_figure(X, {}), "`fields` must be a dictionary with at least one"),
        (lambda: figures.mass_figure(T, {}, law), "`fields` must be a dictionary"),
        (lambda: figures.mass_figure(T, fields(5, 7), T), "`law` must be a law"),
        (lambda: figures.scores_figure(T, {}), "`scores` must be a dictionary"),
        (lambda: figures.front_figure({}), "`fronts` must be a dictionary"),
        (lambda: figures.precision_figure(T + 1, {}), "`scores` must be a dictionary"),
        (
            lambda: figures.precision_figure([np.inf], {"LL": ([1.0], [1.0])}),
            "finite numbers as well",
        ),
        (lambda: figures.profiles_figure(1.0, given), "`x` must be one axis"),
        (lambda: figures.profiles_figure(X[::-1].copy(), given), "`x` must increase strictly"),
        (lambda: figures.profiles_figure(X, given, TRUTH * np.nan), "`truth` must be finite"),
        (
            lambda: figures.profiles_figure(X, fields(2, 7)),
            r"`fields\['ANP'\]` must have one value",
        ),
        (lambda: figures.profiles_figure(X[:6], given), "for each of the 6 points"),
        (lambda: figures.errors_figure(X, given, TRUTH[:3]), r"`truth` .* but has shape \(3,\)"),
        (lambda: figures.mass_figure(T[:2], fields(5, 7), law), r"has shape \(5,\)"),
        (lambda: figures.scores_figure(T, {"a": X}), r"`scores\['a'\]` must have one value"),
        (lambda: figures.diagnosis(law), "`diagnosis` must come from `diagnose`; got Law"),
        (
            lambda: figures.diagnosis(pc.diagnose(pc.Diagonal(np.ones((2, 5, 7)), 1.0), law)),
            r"`diagnosis` must have one value for each of the 5 points, but has shape \(2, 5\)",
        ),
    ):
        with pytest.raises(pc.errors.InputError, match=message):
            draw()


def test_what_cannot_be_saved_as_a_picture_is_refused(tmp_path):
    for path, message in (
        (tmp_path / "name", r"`ending of path` must be one of .* png, .*; got ''"),
        (tmp_path / "name.pgn", "got 'pgn'. Did you mean 'png'"),
        (None, "`path` must be the name of a file, got NoneType"),
    ):
        with pytest.raises(pc.errors.InputError, match=message):
            figures.save(Figure(), path)
    with pytest.raises(
        pc.errors.InputError, match="`figure` must be a figure of matplotlib, got int"
    ):
        figures.save(3, tmp_path / "name.png")
    assert not list(tmp_path.iterdir())
