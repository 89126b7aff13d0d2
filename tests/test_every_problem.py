"""What must hold for every problem with a closed form. A new file in `problems/` is tested too."""

import math
from functools import partial

import pytest
import torch
from blocks import DOCS, PYTHON
from scipy.integrate import cubature
from torch.func import jvp

from probconserv.problems import PROBLEMS, ClosedForm, Diffusive, Stefan

FAMILIES = [cls for cls in PROBLEMS.values() if issubclass(cls, ClosedForm)]


def maker(cls, **constants):
    """The problem for values of its parameter, or for the value of its example."""

    def make(value=cls.example[0]):
        return cls(**{cls.parameter: value}, **constants)

    return make


MAKERS = {cls.name: maker(cls) for cls in FAMILIES}
MAKERS["stefan, both phases"] = maker(Stefan, k_min=0.3)
MAKERS["stefan, slow melt"] = maker(Stefan, k_min=0.001, k_max=2.0)
*EQUATIONS, _ = PYTHON.findall((DOCS / "howto" / "equation.md").read_text())
names: dict = {"__name__": "docs"}
exec("\n".join(EQUATIONS), names)
MAKERS |= {f"{name} of the docs": maker(names[name]) for name in ("Carried", "Shock", "Wave")}

every_problem = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def scaled(numbers, ends):
    return ends[0] + (ends[1] - ends[0]) * numbers


def random_case(make, rng, n=400, beyond=1.5):
    """n parameters and times, the latter `beyond` the time range; the corners are among them."""
    cls = type(make())
    numbers = torch.rand(3, n, generator=rng, dtype=torch.float64)
    numbers[0, :4] = torch.tensor([0.0, 1.0, 0.0, 1.0])
    numbers[1, :4] = torch.tensor([0.0, 0.0, 1.0, 1.0])
    problem = make(scaled(numbers[0], cls.train_range))
    t = beyond * scaled(numbers[1], cls.time_range)
    return problem, t, scaled(numbers[2], cls.domain)


def derivative(function, at):
    return jvp(function, (at,), (torch.ones_like(at),))[1]


def slopes(problem, t, x):
    """u, u_t, u_x, u_xx by forward differentiation."""
    u_x = lambda x: derivative(lambda x: problem.solution(t, x), x)  # noqa: E731
    u_t = derivative(lambda t: problem.solution(t, x), t)
    return problem.solution(t, x), u_t, u_x(x), derivative(u_x, x)


def waves(problem, u):
    return derivative(lambda u: problem.flux(u, torch.zeros_like(u)), u)


@every_problem
def test_it_says_what_it_is(make):
    problem = make()
    assert problem.difficulty in ("easy", "medium", "hard")
    assert problem.train_range[0] < problem.train_range[1]
    assert problem.domain[0] < problem.domain[1]
    assert problem.time_range[0] == 0 < problem.time_range[1]
    assert problem.title
    assert problem.equation
    low, high = problem.train_range
    assert low <= problem.example[0] <= high
    assert 0 <= problem.example[1] <= problem.time_range[1]
    assert getattr(problem, problem.parameter) == problem.example[0]


def integrated(function, edges):
    """Over the parts between the edges, all at once: one by one the Stefan problem takes long."""
    low, wide = edges[:-1], edges.diff()

    def parts(s):
        x = low + wide * torch.from_numpy(s)  # (points, parts)
        return (wide * function(x.flatten()).reshape(x.shape)).numpy()

    found = cubature(parts, [0.0], [1.0], rtol=1e-9, atol=1e-10)
    assert found.status == "converged"
    return found.estimate.sum()


@every_problem
def test_the_total_is_the_integral_of_the_solution(make, rng):
    problems, times, _ = random_case(make, rng, n=8)
    totals = problems.total(times)
    low, high = problems.domain
    for i, t in enumerate(times):
        problem = problems[i]
        near = [0.0, 1e-4, 1e-3, 1e-2, 1e-1]  # a layer ahead of the front can be this thin
        points = [float(problem.front(t)) + sign * d for d in near for sign in (-1, 1)]
        points += torch.linspace(low, high, 14)[1:-1].tolist()  # kinks and feet elsewhere
        points = sorted({low, high, *(x for x in points if low < x < high)})
        edges = torch.tensor(points, dtype=torch.float64)
        area = float(integrated(partial(problem.solution, t), edges))
        assert float(totals[i]) == pytest.approx(area, rel=1e-7, abs=1e-7)


@every_problem
def test_the_equation_holds_where_the_solution_is_smooth(make, rng):
    problem, t, x = random_case(make, rng)
    away = ~((x - problem.front(t)).abs() < 1e-3) & (t > 1e-3 * problem.time_range[1])
    assert away.sum() > 300
    problem, t, x = problem[away], t[away], x[away]
    u, u_t, u_x, u_xx = slopes(problem, t, x)
    residual = problem.residual(u, u_t, u_x, u_xx)
    assert (residual.abs() <= 1e-9 * (1 + u_t.abs())).all()
    wrong = problem.residual(u, u_t + 1, u_x, u_xx)
    torch.testing.assert_close(wrong - residual, torch.ones_like(u))


@every_problem
def test_the_residual_is_the_divergence_of_the_flux(make, rng):
    """On any smooth u, here one that solves nothing."""
    problem, t, x = random_case(make, rng)
    u_of = lambda x: 0.8 + 0.05 * (3 * x + t).sin()  # noqa: E731, Stefan: never across u_star
    flux_of = lambda x: problem.flux(u_of(x), derivative(u_of, x))  # noqa: E731
    u_t = 0.05 * (3 * x + t).cos()
    u_x, u_xx = 3 * u_t, -9 * (u_of(x) - 0.8)
    expected = u_t + derivative(flux_of, x)
    torch.testing.assert_close(problem.residual(u_of(x), u_t, u_x, u_xx), expected)


@every_problem
def test_the_total_changes_by_what_passes_the_ends(make, rng):
    problem, t, _ = random_case(make, rng)
    problem, t = problem[t > 0], t[t > 0]
    net = problem.inflow(t) - problem.outflow(t)
    torch.testing.assert_close(derivative(problem.total, t), net, rtol=1e-9, atol=1e-9)


@every_problem
def test_what_passes_the_ends_is_the_flux_there(make, rng):
    problem, t, _ = random_case(make, rng)
    problem, t = problem[t > 0.01], t[t > 0.01]
    for end, expected in zip(problem.domain, (problem.inflow(t), problem.outflow(t)), strict=True):
        x = torch.full_like(t, end)
        u, _, u_x, _ = slopes(problem, t, x)
        torch.testing.assert_close(problem.flux(u, u_x), expected, rtol=1e-9, atol=1e-9)


@every_problem
def test_the_front_moves_as_rankine_and_hugoniot_say(make, rng):
    """Its speed times the jump of u is the jump of the flux."""
    problem, t, _ = random_case(make, rng)
    front, speed = problem.front(t), derivative(problem.front, t)
    near = 1e-9
    inside = (front > problem.domain[0] + near) & (front < problem.domain[1] - near) & (t > 1e-3)
    if front.isnan().all():
        pytest.skip("no front")
    assert inside.sum() > 20  # of 400
    problem, t, front, speed = problem[inside], t[inside], front[inside], speed[inside]
    u, _, u_x, _ = slopes(problem, t, front - near)
    behind, flux_behind = u, problem.flux(u, u_x)
    u, _, u_x, _ = slopes(problem, t, front + near)
    jump_of_flux = flux_behind - problem.flux(u, u_x)
    if not isinstance(problem, Diffusive):  # Lax: information runs into a shock, never out of it
        for speed_of_waves, sign in ((waves(problem, behind), 1), (waves(problem, u), -1)):
            assert (sign * (speed_of_waves - speed) >= -1e-6).all()
    torch.testing.assert_close(speed * (behind - u), jump_of_flux, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(problem.solution(t, front), behind, rtol=1e-6, atol=5e-2)


@every_problem
def test_the_front_is_in_the_domain_or_not_a_number(make, rng):
    problem, t, _ = random_case(make, rng, beyond=3)
    front = problem.front(t)
    low, high = problem.domain
    assert (front.isnan() | ((front >= low) & (front <= high))).all()


@every_problem
def test_it_starts_from_the_initial_condition_and_keeps_to_the_boundary(make, rng):
    problem, t, x = random_case(make, rng)
    torch.testing.assert_close(problem.solution(0.0, x), problem.initial(x), rtol=0, atol=0)
    assert problem[:, None].initial(x[:3]).shape == (len(t), 3)
    assert [end.shape for end in problem[:, None].boundary(t[:3])] == [(len(t), 3)] * 2
    problem, t = problem[t > 0], t[t > 0]
    for end, value in zip(problem.domain, problem.boundary(t), strict=True):
        torch.testing.assert_close(problem.solution(t, end), value, rtol=1e-12, atol=1e-12)


@every_problem
def test_it_is_finite_everywhere(make, rng):
    problem, _, _ = random_case(make, rng, n=40)
    t, x = problem.grid(times=301, points=101)
    assert problem.on_grid(2 * t, x).isfinite().all()
    assert problem[:, None].total(2 * t).isfinite().all()
    assert problem[:, None].inflow(t[1:]).isfinite().all()
    assert problem[:, None].outflow(t).isfinite().all()


@every_problem
def test_grids_of_any_shape_are_the_points_one_by_one(make, rng):
    problem, _, _ = random_case(make, rng, n=6)
    problem = problem[:6].to(torch.float64)
    t, x = problem.grid(times=5, points=7)
    u = problem.on_grid(t, x)
    assert u.shape == (6, 5, 7)
    for i, j, k in ((0, 0, 0), (3, 4, 6), (5, 2, 3)):
        assert u[i, j, k] == problem[i].solution(float(t[j]), float(x[k]))
    assert problem[4].on_grid(t[:1], x).shape == (1, 7)
    assert (float(x[0]), float(x[-1])) == problem.domain  # both ends, no stretch
    assert (float(t[0]), float(t[-1])) == problem.time_range
    total = problem[:, None].total(t)
    assert total.shape == (6, 5)
    torch.testing.assert_close(total[2], problem[2].total(t))


@every_problem
def test_float32_and_numbers_follow_each_other(make, rng):
    problem, t, x = random_case(make, rng, n=50)
    single = problem.to(torch.float32)
    u = single.solution(t.float(), x.float())
    away = ~((x - problem.front(t)).abs() < 1e-2)
    assert u.dtype == single.total(t.float()).dtype == single.front(t.float()).dtype
    assert u.dtype == torch.float32
    torch.testing.assert_close(u[away].double(), problem.solution(t, x)[away], atol=1e-4, rtol=0)
    assert make().solution(t.float(), x.float()).dtype == torch.float32
    assert make().flux(u, u).dtype == make().residual(u, u, u, u).dtype == torch.float32


@every_problem
def test_bad_input_is_refused(make):
    problem = make()
    low, high = problem.domain
    with pytest.raises(ValueError, match=r"`t` must be >= 0; its smallest value is -0.1"):
        problem.solution(-0.1, low)
    for x in (low - 0.01, high + 0.01):
        with pytest.raises(ValueError, match=f"`x` must lie inside the domain of {problem.name}"):
            problem.solution(0.1, x)
    with pytest.raises(ValueError, match="`t` must be finite"):
        problem.total(float("nan"))
    if problem.allowed[0] > -math.inf:
        with pytest.raises(ValueError, match=f"`{problem.parameter}` must be .*; got "):
            make(problem.allowed[0] - 1.0)
    with pytest.raises(ValueError, match=f"`{problem.parameter}` must be finite"):
        make(float("nan"))


@every_problem
def test_shapes_that_do_not_broadcast_are_refused(make):
    problem, x = make(), torch.linspace(*make().domain, 3, dtype=torch.float64)
    words = r"must broadcast.* such as t\[:, None\] or problem\[:, None\]"
    with pytest.raises(ValueError, match=rf"`t` \(2,\), `x` \(3,\) and .* {words}"):
        problem.solution([0.1, 0.2], x)
    two = make(getattr(problem, problem.parameter).expand(2))
    for ask in (two.total, two.inflow, two.outflow, two.front, two.boundary):
        with pytest.raises(ValueError, match=rf"`t` \(3,\) and the parameters \(2,\) {words}"):
            ask([0.1, 0.2, 0.3])
    assert problem.solution([[0.1], [0.2]], x).shape == problem.on_grid([0.1, 0.2], x).shape
