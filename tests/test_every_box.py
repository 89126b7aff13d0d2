"""What must hold for every problem in more dimensions. A new file in `problems/` is tested too."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.integrate import cubature
from torch.func import jvp

from probconserv.data import draw
from probconserv.problems import BOXES, PROBLEMS, Barenblatt, Drift, LinearFlow


def maker(cls, **constants):
    def make(value=cls.example[0]):
        return cls(**{cls.parameter: value}, **constants)

    return make


MAKERS = {name: maker(cls) for name, cls in BOXES.items()}
MAKERS |= {f"barenblatt, dims={d}": maker(Barenblatt, dims=d) for d in (1, 3)}
MAKERS["barenblatt, through the walls"] = maker(Barenblatt, mass=4.0, radius=0.7)
MAKERS["drift, wide"] = maker(Drift, width=0.35, velocity_x=-3.0)
MAKERS["linear_flow, strain"] = maker(LinearFlow, rotation=0.0, shear=0.0, strain=1.2, y0=0.1)
MAKERS["linear_flow, shear alone"] = maker(LinearFlow, rotation=0.0, shear=-2.0, y0=0.2)
every_box = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def random_case(make, rng, n=200):
    """n parameters, times and places; the first times are the ends of the range."""
    low, high = make().train_range
    numbers = torch.rand(2 + make().dims, n, generator=rng, dtype=torch.float64)
    numbers[1, :2] = torch.tensor([0.0, 1.0])
    problem = make(low + (high - low) * numbers[0])
    left, right = problem.domain
    return problem, numbers[1] * problem.time_range[1], list(left + (right - left) * numbers[2:])


def uneven(problem, *cells):
    """Edges from wall to wall, unevenly spaced, one of them near the middle."""
    low, high = problem.domain
    lines = [torch.linspace(0, 1, n + 1, dtype=torch.float64) for n in cells]
    return [low + (high - low) * (s + 0.03 * (2 * torch.pi * s).sin()) for s in lines]


def along(axis, dims, x):
    return x.reshape([-1 if i == axis else 1 for i in range(dims)])


def derivative(function, at):
    return jvp(function, (at,), (torch.ones_like(at),))[1]


def slope(problem, t, places, axis):
    def moved(x):
        return problem.solution(t, *places[:axis], x, *places[axis + 1 :])

    return derivative(moved, places[axis])


def away_from_front(problem, t, places):
    if not isinstance(problem, Barenblatt):
        return torch.ones_like(t, dtype=torch.bool)
    r = sum(x**2 for x in places).sqrt()
    return ((r / problem.front(t) - 1).abs() > 1e-3) & (r > 1e-3)


@every_box
def test_it_says_what_it_is(make):
    problem = make()
    low, high = problem.train_range
    assert low <= problem.example[0] <= high
    assert 0 <= problem.example[1] <= problem.time_range[1]
    assert getattr(problem, problem.parameter) == problem.example[0]
    assert BOXES[problem.name] is type(problem)
    assert problem.name not in PROBLEMS


@every_box
def test_the_equation_holds_where_the_solution_is_smooth(make, rng):
    problem, t, places = random_case(make, rng)
    keep = away_from_front(problem, t, places)
    problem, t, places = problem[keep], t[keep], [x[keep] for x in places]
    u_t = derivative(lambda t: problem.solution(t, *places), t)
    residual = u_t.clone()
    for axis, x in enumerate(places):

        def through(x, axis=axis):
            return problem.flux_at(t, *places[:axis], x, *places[axis + 1 :])[axis]

        residual += derivative(through, x)
    assert (residual.abs() <= 1e-9 * (1 + u_t.abs())).all()
    assert u_t.abs().max() > 0.1


@every_box
def test_the_flux_is_that_of_the_law(make, rng):
    problem, t, places = random_case(make, rng)
    keep = away_from_front(problem, t, places)
    problem, t, places = problem[keep], t[keep], [x[keep] for x in places]
    u, flux = problem.solution(t, *places), problem.flux_at(t, *places)
    for axis in range(problem.dims):
        u_x = slope(problem, t, places, axis)
        if isinstance(problem, Barenblatt):
            expected = -problem.m * u ** (problem.m - 1) * u_x
        elif isinstance(problem, Drift):
            velocity = (problem.velocity_x, problem.velocity_y)[axis]
            expected = velocity * u - problem.k * u_x
        else:
            x, y = places
            velocity = (
                problem.strain * x + (problem.shear - problem.rotation) * y,
                problem.rotation * x - problem.strain * y,
            )[axis]
            expected = velocity * u - problem.k * u_x
        torch.testing.assert_close(flux[axis], expected, rtol=1e-9, atol=1e-11)


def integrated(function, low, high, rtol):
    found = cubature(
        lambda x: function(*torch.from_numpy(x).T).numpy(), low, high, rtol=rtol, atol=1e-9
    )
    assert found.status == "converged"
    return found.estimate


@every_box
def test_the_total_is_the_integral_of_the_solution(make, rng):
    problem = make()
    rtol = 10.0 ** (-6 + problem.dims if isinstance(problem, Barenblatt) else -8)
    low, high = problem.domain
    middle = (low + high) / 2
    for t in (0.37 * problem.time_range[1], 2 * problem.time_range[1]):
        area = 0.0
        for corner in itertools.product([low, middle], repeat=problem.dims):
            upper = [a + middle - low for a in corner]
            area += integrated(partial(problem.solution, t), corner, upper, rtol)
        assert float(problem.total(t)) == pytest.approx(area, rel=3 * rtol, abs=1e-8)


@every_box
def test_the_total_changes_by_what_passes_the_walls(make, rng):
    problem, t, _ = random_case(make, rng, n=8)
    slope = derivative(problem.total, t)
    torch.testing.assert_close(slope, problem.inflow(t), rtol=1e-9, atol=1e-9)


def test_what_leaves_through_the_walls_is_not_little():
    assert MAKERS["barenblatt, through the walls"]().inflow(0.1) < -1
    assert MAKERS["linear_flow, strain"]().inflow(1.0) < -0.3


@every_box
def test_every_cell_changes_by_what_passes_its_faces(make):
    """volume (u_next - u) + dt (sum of areas times fluxes) = 0, for three parameters at once."""
    low, high = make().train_range
    problem = make(torch.tensor([low, (low + high) / 2, high], dtype=torch.float64))
    dims = problem.dims
    edges = uneven(problem, *[(40,), (13, 9), (4, 3, 5)][dims - 1])
    t = torch.tensor([0.0, 0.01, 0.4, 0.5, 1.3], dtype=torch.float64) * problem.time_range[1]
    u, fluxes = problem.cell_averages(t, *edges), problem.interval_fluxes(t, *edges)
    sizes = [len(e) - 1 for e in edges]
    assert u.shape == (3, 5, *sizes)
    widths = [along(i, dims, e.diff()) for i, e in enumerate(edges)]
    volume, dt = math.prod(widths), t.diff().reshape(-1, *[1] * dims)
    change, terms = volume * u.diff(dim=1), (volume * u).abs().amax()
    for axis, flux in enumerate(fluxes):
        faces = [n + (i == axis and not problem.periodic) for i, n in enumerate(sizes)]
        assert flux.shape == (3, 4, *faces)
        if problem.periodic:
            flux = torch.cat([flux, flux.narrow(axis - dims, 0, 1)], axis - dims)
        through = dt * flux * math.prod(w for i, w in enumerate(widths) if i != axis)
        change = change + through.diff(dim=axis - dims)
        terms = torch.maximum(terms, through.abs().amax())
    assert float(change.abs().amax() / terms) < 1e-12


@every_box
def test_the_cells_make_up_the_total(make):
    problem = make()
    edges = uneven(problem, *[9, 7, 3][: problem.dims])
    t = torch.tensor([0.0, 0.5, 1.0, 2.0], dtype=torch.float64) * problem.time_range[1]
    held = problem.cell_averages(t, *edges)
    for e in reversed(edges):
        held = (held * e.diff()).sum(-1) if held.ndim > 1 else held
    torch.testing.assert_close(held, problem.total(t), rtol=1e-12, atol=1e-12)
    assert (problem.cell_averages(t, *edges) >= 0).all()


@every_box
def test_small_cells_and_faces_are_points(make):
    problem, t = make(), 0.6 * make().time_range[1]
    low, high = problem.domain
    at = [low + (high - low) * s for s in (0.52, 0.57, 0.46)[: problem.dims]]
    if problem.periodic:
        edges = [torch.linspace(low, high, 401, dtype=torch.float64)] * 2
        where = [int((x - low) / (high - low) * 400) for x in at]
    else:
        edges = [torch.tensor([x, x + 0.04], dtype=torch.float64) for x in at]
        where = [0] * problem.dims
    middle = [float(e[i : i + 2].mean()) for e, i in zip(edges, where, strict=True)]
    u = problem.cell_averages([t], *edges)[(0, *where)]
    assert float(u) == pytest.approx(float(problem.solution(t, *middle)), rel=2e-2)
    for axis, flux in enumerate(problem.face_fluxes([t], *edges)):
        place = [float(edges[i][where[i]]) if i == axis else x for i, x in enumerate(middle)]
        expected = float(problem.flux_at(t, *place)[axis])
        assert float(flux[(0, *where)]) == pytest.approx(expected, rel=2e-2, abs=1e-3)


@every_box
def test_interval_fluxes_are_the_mean_of_face_fluxes_in_time(make):
    problem = make()
    edges = uneven(problem, *[6, 3, 2][: problem.dims])
    t = torch.tensor([0.1, 0.45], dtype=torch.float64) * problem.time_range[1]
    fluxes = problem.interval_fluxes(t, *edges)
    fine = torch.linspace(*t.tolist(), 101, dtype=torch.float64)
    for mean, flux in zip(fluxes, problem.face_fluxes(fine, *edges), strict=True):
        weights = torch.full((101,), 2.0, dtype=torch.float64)  # Simpson's
        weights[1::2], weights[0], weights[-1] = 4.0, 1.0, 1.0
        expected = torch.tensordot(weights / 300, flux, 1)
        scale = float(expected.abs().max())  # the front makes kinks in time
        torch.testing.assert_close(mean[0], expected, rtol=0, atol=1e-4 * scale)


@every_box
def test_it_starts_from_the_initial_condition(make, rng):
    problem, _, places = random_case(make, rng, n=30)
    torch.testing.assert_close(problem.initial(*places), problem.solution(0.0, *places))
    assert problem[:, None].initial(*(x[:3] for x in places)).shape == (30, 3)


@every_box
def test_parameters_in_a_batch_are_the_parameters_one_by_one(make, rng):
    problem, t, places = random_case(make, rng, n=6)
    problem = problem[torch.arange(6).reshape(2, 3)]
    times = torch.tensor([0.2, 0.9], dtype=torch.float64) * problem.time_range[1]
    edges = uneven(problem, *[5, 4, 3][: problem.dims])
    whole = [problem.cell_averages(times, *edges), *problem.face_fluxes(times, *edges)]
    whole += problem.interval_fluxes(times, *edges)
    one = problem[1, 2]
    alone = [one.cell_averages(times, *edges), *one.face_fluxes(times, *edges)]
    alone += one.interval_fluxes(times, *edges)
    for a, b in zip(whole, alone, strict=True):
        assert a.shape == (2, 3, *b.shape)
        torch.testing.assert_close(a[1, 2], b, rtol=1e-11, atol=1e-11)
    assert problem.total(t.reshape(2, 3)).shape == (2, 3)
    assert problem[..., None].inflow(times).shape == (2, 3, 2)
    assert problem.solution(t[:, None, None], *(x[:, None, None] for x in places)).shape == (
        6,
        2,
        3,
    )


@every_box
def test_float32_and_numbers_follow_each_other(make, rng):
    problem, t, places = random_case(make, rng, n=50)
    single = problem.to(torch.float32)
    assert type(single) is type(problem)
    assert single.dims == problem.dims
    u = single.solution(t.float(), *(x.float() for x in places))
    assert u.dtype == single.total(t.float()).dtype == single.inflow(t.float()).dtype
    assert u.dtype == torch.float32
    keep = away_from_front(problem, t, places)
    expected = problem.solution(t, *places)
    torch.testing.assert_close(u[keep].double(), expected[keep], atol=1e-3, rtol=1e-3)
    edges = [e.float() for e in uneven(problem, *[5, 4, 3][: problem.dims])]
    averages = make().cell_averages(np.float32([0.01, 0.05]), *edges)
    assert averages.dtype == torch.float32
    wide = make().cell_averages([0.01, 0.05], *(e.double() for e in edges))
    torch.testing.assert_close(averages.double(), wide, atol=1e-5, rtol=1e-5)
    for flux in make().face_fluxes(np.float32([0.01, 0.05]), *edges):
        assert flux.dtype == torch.float32


@every_box
def test_bad_input_is_refused(make):
    problem = make()
    low, high = problem.domain
    inside, edges = [low] * problem.dims, uneven(problem, *[4] * problem.dims)
    with pytest.raises(ValueError, match=r"`t` must be >= 0; its smallest value is -0.1"):
        problem.solution(-0.1, *inside)
    for axis, name in enumerate("xyz"[: problem.dims]):
        for x in (low - 0.01, high + 0.01):
            with pytest.raises(ValueError, match=f"`{name}` must lie inside the domain of"):
                problem.solution(0.1, *inside[:axis], x, *inside[axis + 1 :])
        back = [e.flip(0) if i == axis else e for i, e in enumerate(edges)]
        with pytest.raises(ValueError, match=f"`{name}` must increase strictly"):
            problem.cell_averages([0.1], *back)
    with pytest.raises(ValueError, match=r"needs `x`.* after `t` here; got 4"):
        problem.solution(0.1, 0.0, 0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="`t` must be one axis of at least 2 points"):
        problem.interval_fluxes([0.1], *edges)
    with pytest.raises(ValueError, match="`t` must be one axis of at least 1"):
        problem.cell_averages(0.1, *edges)
    with pytest.raises(ValueError, match="`t` must be finite"):
        problem.total(float("nan"))
    with pytest.raises(ValueError, match=f"`{problem.parameter}` must be > "):
        make(problem.allowed[0] - 1.0)
    with pytest.raises(ValueError, match="`mass` must be > 0; got -1"):
        type(problem)(problem.example[0], mass=-1.0)
    with pytest.raises(ValueError, match="`problem` must be a problem with a closed form"):
        draw(problem, "train", n=2)


@every_box
def test_shapes_that_do_not_broadcast_are_refused(make):
    problem, places = make(), [torch.zeros(3, dtype=torch.float64)] * make().dims
    two = make(getattr(problem, problem.parameter).expand(2))
    for ask in (problem.solution, problem.flux_at):
        with pytest.raises(ValueError, match=r"`t` \(2,\), `x` \(3,\).* must broadcast"):
            ask([0.1, 0.2], *places)
    for ask in (two.total, two.inflow):
        with pytest.raises(ValueError, match=r"`t` \(3,\) and the parameters \(2,\) must"):
            ask([0.1, 0.2, 0.3])
