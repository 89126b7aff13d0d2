"""Each problem's own facts, from the paper and from other routes than the code's."""

from dataclasses import dataclass

import mpmath
import numpy as np
import pytest
import torch
from seeds import made
from torch.autograd import gradcheck, gradgradcheck

import probconserv as pc
from probconserv import problems
from probconserv.data import draw
from probconserv.problems import (
    PROBLEMS,
    Advection,
    Burgers,
    ClosedForm,
    Diffusion,
    GeneralStefan,
    Parameter,
    PorousMedium,
    Stefan,
    SuperSlow,
    VariableCoefficient,
    find,
    parametric,
)
from probconserv.training import train

T = torch.linspace(0, 1, 11, dtype=torch.float64)


def test_names_ranges_and_domains_are_the_papers():
    facts = {
        "diffusion": ("k", (1, 5), (0, 2 * np.pi), (0, 1), "easy"),
        "pme": ("m", (0.99, 6), (0, 1), (0, 1), "medium"),
        "stefan": ("u_star", (0.55, 0.7), (0, 1), (0, 0.1), "hard"),
        "advection": ("beta", (1, 5), (0, 1), (0, 1), "medium"),
        "burgers": ("a", (1, 4), (-1, 1), (0, 1), "hard"),
    }
    for name, expected in facts.items():
        cls = PROBLEMS[name]
        told = cls.parameter, cls.train_range, cls.domain, cls.time_range, cls.difficulty
        assert told == expected


def test_an_unknown_name_is_refused_with_the_nearest_one():
    assert find("burgers") is Burgers
    with pytest.raises(ValueError, match=r"must be one of .*pme.*Did you mean 'stefan'"):
        find("stephan")


def test_diffusion_is_what_the_fourier_series_says():
    x = torch.arange(64, dtype=torch.float64) * (2 * torch.pi / 64)
    waves = torch.fft.fft(x.sin())
    n = torch.fft.fftfreq(64, 1 / 64, dtype=torch.float64)
    for k, t in ((1.0, 0.3), (5.0, 1.0)):
        series = torch.fft.ifft(waves * (-k * n**2 * t).exp()).real
        torch.testing.assert_close(Diffusion(k).solution(t, x), series, rtol=0, atol=1e-14)
    assert (Diffusion(3.0).total(T) == 0).all()
    assert Diffusion(3.0).front(T).isnan().all()


@pytest.mark.parametrize("m", [0.99, 1.0, 3.0, 6.0])
def test_the_porous_medium_total_is_the_papers(m):
    expected = m ** (1 + 1 / m) / (m + 1) * T ** (1 + 1 / m)
    torch.testing.assert_close(PorousMedium(m).total(T), expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(PorousMedium(m).boundary(T)[0], (m * T) ** (1 / m))
    assert PorousMedium(m).front(0.25) == 0.25
    assert PorousMedium(m).front(torch.tensor([0.0, 1.5])).isnan().all()
    late = torch.tensor([1.5, 1e3, 1e12], dtype=torch.float64)  # the wave is nearly flat
    middle = PorousMedium(m).solution(late, 0.5)
    torch.testing.assert_close(PorousMedium(m).total(late)[1:], middle[1:], rtol=1e-6, atol=0)


def test_no_diffusion_where_a_prediction_is_negative():
    u = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64)
    one = torch.ones_like(u)
    for m in (0.99, 1.0, 2.5):
        residual = PorousMedium(m).residual(u, one, one, one)
        assert (residual[:2] == 1).all()
        assert residual[2] == pytest.approx(1 - 0.5**m - m * 0.5 ** (m - 1))


@pytest.mark.parametrize("k_min", [0.0, 1e-310, 1e-18, 1e-9, 1e-4, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("u_star", [1e-9, 0.05, 0.55, 0.6, 0.7, 0.999])
def test_the_stefan_front_solves_its_equation_to_rounding(u_star, k_min):
    """Flux behind = flux ahead + u_star times the front's speed, in 50 digits."""
    with mpmath.workdps(50):
        u, k = mpmath.mpf(u_star), mpmath.mpf(k_min)

        def imbalance(y):
            behind = (1 - u) / mpmath.erf(y) * mpmath.exp(-y * y)
            root = mpmath.sqrt(k)
            if k < 1e-30:  # the layer ahead is too thin to matter
                return mpmath.log(behind / (u * y * mpmath.sqrt(mpmath.pi)))
            return mpmath.log(behind / (u * root)) + mpmath.log(
                mpmath.erfc(y / root) * mpmath.exp((y / root) ** 2)
            )

        y = mpmath.findroot(imbalance, (mpmath.mpf("1e-9"), 26), solver="anderson", tol=1e-40)
    front = Stefan(u_star, k_min=k_min).front(0.001 / max(1.0, float(y)) ** 2)
    expected = 2 * float(y) * (0.001 / max(1.0, float(y)) ** 2) ** 0.5
    assert float(front) == pytest.approx(expected, rel=2e-14)


def test_stefan_is_the_papers():
    """alpha from its equation, c_1 from alpha, b = 2 c_1 sqrt(t / pi); 0.2351 at u* = 0.6."""
    problem, t = Stefan(0.6), torch.tensor([0.01, 0.05, 0.1], dtype=torch.float64)
    assert problem.front(0.05) == pytest.approx(0.2351, abs=5e-5)
    half = problem.front(t) / (2 * t.sqrt())
    balance = 0.6 * half.erf() * half * (half**2).exp()
    torch.testing.assert_close(balance, torch.full_like(t, 0.4 / np.sqrt(np.pi)))
    c_1 = 0.4 / half.erf()
    torch.testing.assert_close(problem.total(t), 2 * c_1 * (t / np.pi).sqrt())
    assert problem.solution(0.05, problem.front(0.05)) == pytest.approx(0.6)


def test_a_little_conduction_ahead_of_the_stefan_front_changes_little():
    x = torch.linspace(0, 1, 101, dtype=torch.float64)
    sharp, soft = Stefan(0.6), Stefan(0.6, k_min=1e-10)
    torch.testing.assert_close(soft.solution(0.05, x), sharp.solution(0.05, x), rtol=0, atol=1e-8)
    torch.testing.assert_close(soft.total(T), sharp.total(T), rtol=0, atol=1e-8)
    one_phase = Stefan(0.6, k_min=1.0)
    torch.testing.assert_close(one_phase.solution(0.05, x), (x / (2 * 0.05**0.5)).erfc())


def test_stefan_fills_the_domain_in_the_end():
    for t in (1e3, 1e10, 1e30):
        assert Stefan(0.6).total(t) == pytest.approx(1, abs=0.02)
        assert Stefan(0.6).front(t).isnan()
    assert Stefan(0.6).total(1e30) == pytest.approx(1, abs=1e-15)
    assert Stefan(0.6, k_min=0.3).outflow(0.0) == 0
    assert Stefan(0.6).inflow(0.0) == torch.inf


def test_conductivities_hold_at_the_critical_value():
    u = torch.tensor([0.6, 0.59], dtype=torch.float64)
    for problem in (Stefan(0.6, k_min=0.2), GeneralStefan(0.6, k_min=0.2)):
        assert problem.conductivity(u, u).tolist() == [1.0, 0.2]
        assert problem.boundary(0.1)[0] == 1
    x = torch.tensor([0.49, 0.5], dtype=torch.float64)
    assert VariableCoefficient(0.3).conductivity(u, x).tolist() == [1.0, 0.3]
    assert [float(end) for end in SuperSlow(1.2).boundary(0.5)] == [1.2, 0.0]
    assert SuperSlow(1.0).conductivity(torch.tensor([0.5, -1.0]), x).tolist() == pytest.approx(
        [np.exp(-2), 0.0]
    )


def test_stefan_loses_what_seeps_out():
    problem = Stefan(0.6, k_min=0.5)
    assert problem.outflow(0.1) > 0.01
    fed = 2 * 0.1 * problem.inflow(0.1)  # the integral of c / sqrt(t)
    t = torch.linspace(1e-6, 0.1, 4001, dtype=torch.float64)
    seeped = torch.trapezoid(problem.outflow(t), t)
    assert problem.total(0.1) == pytest.approx(float(fed - seeped), abs=1e-8)


def test_the_advection_step_leaves_and_the_total_stops():
    beta = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    leaves = 1 / (2 * beta)
    problem = Advection(beta)
    assert (problem.total(leaves) == 1).all()
    assert (problem.front(leaves) == 1).all()
    assert problem.front(leaves + 1e-9).isnan().all()
    assert (problem.total(leaves + 1) == 1).all()
    assert (problem.solution(leaves + 1e-9, 1.0) == 1).all()
    assert (problem.total(leaves / 2) == 0.75).all()
    assert (problem.front(torch.zeros_like(beta)) == 0.5).all()


def test_burgers_is_finite_when_it_breaks():
    for a in (1.0, 2.0, 3.0, 3.7, 4.0):
        problem, x = Burgers(a), torch.linspace(-1, 1, 9, dtype=torch.float64)
        for t in (1 / a, np.nextafter(1 / a, 0), np.nextafter(1 / a, 1)):
            u = problem.solution(float(t), x)
            assert u.isfinite().all()
            assert (u[x < 0] == a).all()
            assert (u[x > 0] == 0).all()
    assert Burgers(2.0).solution(0.5, 0.0) == 2  # at the shock the left state holds
    assert Burgers(2.0).front(0.5) == 0
    assert Burgers(2.0).front(0.499).isnan()


def test_the_burgers_shock_leaves_and_the_total_stops():
    problem = Burgers(torch.tensor([3.0, 4.0], dtype=torch.float64))
    leaves = 3 / problem.a
    assert (problem.total(leaves) == 2 * problem.a).all()
    assert (problem.total(leaves + 1) == 2 * problem.a).all()
    assert (problem.front(leaves) == 1).all()
    assert problem.front(leaves + 1e-9).isnan().all()
    assert (problem.solution(leaves, 1.0) == problem.a).all()
    assert (problem.boundary(leaves)[1] == problem.a).all()


def test_parameters_times_and_places_broadcast():
    beta = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)[:, None, None]
    x = torch.linspace(0, 1, 5, dtype=torch.float64)
    u = Advection(beta).solution(T[:, None], x)
    assert u.shape == (3, 11, 5)
    torch.testing.assert_close(u[1], Advection(2.0).on_grid(T, x), rtol=0, atol=0)
    batch = Advection(beta[:, 0, 0]).on_grid(T.expand(3, -1), x)
    torch.testing.assert_close(batch, u, rtol=0, atol=0)
    u_star, k_min = torch.tensor([[0.5, 0.6], [0.0, 0.3]], dtype=torch.float64)
    mixed = Stefan(u_star, k_min=k_min)
    for i, k_min in enumerate((0.0, 0.3)):
        alone = Stefan(float(mixed.u_star[i]), k_min=k_min)
        torch.testing.assert_close(mixed[:, None].total(T)[i], alone.total(T), rtol=0, atol=0)


def test_the_residual_takes_each_function_with_its_own_parameter(rng):
    """Square on purpose: n functions at n points must not meet each other's parameters."""
    beta = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    u, u_t, u_x, u_xx = torch.randn(4, 3, 3, generator=rng, dtype=torch.float64)
    residual = Advection(beta)[:, None].residual(u, u_t, u_x, u_xx)
    for i in range(3):
        alone = Advection(float(beta[i])).residual(u[i], u_t[i], u_x[i], u_xx[i])
        torch.testing.assert_close(residual[i], alone, rtol=0, atol=0)


def test_solutions_can_be_differentiated_in_their_parameters():
    t = torch.tensor([0.02, 0.05], dtype=torch.float64)
    value = torch.tensor([0.58, 0.66], dtype=torch.float64, requires_grad=True)
    soft = torch.tensor([0.2, 0.4], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda u, k: Stefan(u, k_min=k).solution(t, 0.1), (value, soft))
    assert gradcheck(lambda u: Stefan(u).total(t), value)
    assert gradcheck(lambda m: PorousMedium(m).total(t), value)
    assert made(gradgradcheck, lambda u, k: Stefan(u, k_min=k).front(t), (value, soft))
    for k_min in (1e-18, 1e-6, 1e-4):  # at u* = 0.6, t = 0.05, the limit of a thin layer is 1.164
        k = torch.tensor(k_min, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(Stefan(0.6, k_min=k).front(0.05), k, create_graph=True)
        (curvature,) = torch.autograd.grad(slope, k)
        assert float(curvature) == pytest.approx(1.163, abs=0.003)
    assert made(gradgradcheck, lambda u: Stefan(u).solution(t, 0.1), value)
    for k_min in (0.0, 1e-12, 1e-16):  # the layer ahead is thin, its derivative is not wild
        (slope,) = torch.autograd.grad(Stefan(value, k_min=k_min).front(t).sum(), value)
        (sharp,) = torch.autograd.grad(Stefan(value).front(t).sum(), value)
        torch.testing.assert_close(slope, sharp, rtol=1e-6, atol=0)


def test_what_would_lose_digits_is_refused_and_the_rest_converted():
    beta = torch.ones(2, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"`t` is torch.float64 but `beta` is torch.float32"):
        Advection(beta).total(torch.ones(2, dtype=torch.float64))
    whole = Advection(1.0).solution(0.5, np.arange(2))
    torch.testing.assert_close(whole, Advection(1.0).solution(0.5, np.arange(2.0)))
    with pytest.raises(ValueError, match=r"must be axes of a grid.*Use `solution`"):
        Advection(1.0).on_grid(0.5, T)
    with pytest.raises(ValueError, match="`k_min` must be >= 0"):
        Stefan(0.6, k_min=-0.1)
    with pytest.raises(ValueError, match="`k_max` must be > 0; got 0"):
        Stefan(0.6, k_max=0.0)
    with pytest.raises(ValueError, match=r"strictly between 0 and 1; got 1.2"):
        Stefan(torch.tensor([0.5, 1.2], dtype=torch.float64))


def test_parameters_of_several_shapes_are_one_shape():
    u_star = torch.tensor([[0.5], [0.6], [0.65]], dtype=torch.float64)
    k_min = torch.tensor([0.0, 0.3], dtype=torch.float64)
    both = Stefan(u_star, k_min=k_min)
    assert both.shape == (3, 2)
    assert both[2].shape == (2,)
    assert both[:, 1].front(0.01)[0] == Stefan(0.5, k_min=0.3).front(0.01)
    with pytest.raises(ValueError, match=r"`k_min` of shape \(2,\) does not broadcast with"):
        Stefan(u_star[:, 0], k_min=k_min)
    with pytest.raises(ValueError, match=r"`k_min` is torch.float32 but `u_star`"):
        Stefan(u_star, k_min=k_min.float())
    with pytest.raises(TypeError):
        list(Stefan(0.6))


def test_losses_refuse_what_is_no_number():
    yes = torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="`u` must hold real numbers"):
        Diffusion(1.5).residual(yes, yes, yes, yes)
    with pytest.raises(ValueError, match="`u` must hold real numbers"):
        Diffusion(1.5).flux(yes, yes)


def test_an_equation_that_does_not_say_what_it_must_is_refused():
    class Nameless(ClosedForm):
        pass

    with pytest.raises(ValueError, match="Nameless must say its `name`"):
        problems._whole(Nameless)

    class Level(Burgers):
        difficulty = "Medium"

    with pytest.raises(ValueError, match=r"`Level.difficulty` must be one of easy, medium, hard"):
        problems._whole(Level)

    @dataclass(frozen=True, eq=False)
    class Two(Advection):
        other: object

    with pytest.raises(ValueError, match="`other` of Two must have a number as default"):
        pc.data.draw(Two, "train", n=2)


def test_rounding_below_the_domain_is_cut_off():
    assert PorousMedium(6.0).solution(0.0, torch.tensor(-9e-7)) == 0


def test_a_grid_computed_in_floating_point_is_inside_the_domain():
    steps = torch.arange(201, dtype=torch.float64) * (2 * np.pi / 200)
    assert Diffusion(1.0).solution(0.5, steps).isfinite().all()
    assert Diffusion(1.0).solution(0.5, steps.float()).isfinite().all()


def test_a_problem_states_the_law_for_step_2(rng):
    problem, (t, x) = PorousMedium(3.0), PorousMedium.grid(times=5, points=201)
    u = problem.on_grid(t, x)
    prior = pc.Diagonal(u + 0.01, torch.full_like(u, 1e-4))
    law = pc.integral(x, problem.total(t))
    assert law.residual(pc.condition(prior, law)).abs().max() < 1e-12


def test_a_new_equation_is_a_short_class():
    """Decay of a plane wave front, as a stranger would write it, without touching the library."""

    @dataclass(frozen=True, eq=False)
    class Decay(ClosedForm):
        rate: object

        name, title, equation = "decay", "Decay", "u_t + rate u_x = 0"
        parameter, train_range = "rate", (1.0, 2.0)
        domain, time_range, difficulty = (0.0, 1.0), (0.0, 1.0), "easy"

        def _solution(self, t, x):
            return (self.rate * t - x).exp()

        def _total(self, t):
            return self._solution(t, torch.zeros_like(t)) * (1 - np.exp(-1))

    problem = Decay(torch.tensor([1.0, 1.5], dtype=torch.float64))
    assert problem.on_grid(T, T).shape == (2, 11, 11)
    assert problem.front(T[:2]).isnan().all()
    functions = pc.data.draw(Decay, "train", n=4)
    assert functions.context.u.shape == (4, 100)


@parametric
class Carried(ClosedForm):
    """Half of an equation: it has what a set of functions needs, and no more."""

    beta: Parameter
    parameter, train_range = "beta", (0.5, 2.0)
    domain, time_range = (0.0, 1.0), (0.0, 1.0)

    def _solution(self, t, x):
        return (x - self.beta * t).exp()


def test_an_unfinished_equation_says_what_is_left_to_write():
    assert draw(Carried, "train", n=3).target.u.shape == (3, 100)
    with pytest.raises(NotImplementedError, match="Carried must write the method `_total`"):
        Carried(1.0).total(0.5)
    with pytest.raises(ValueError, match="Carried must say its `name`"):
        train(Carried, "nowhere")
    for fact in ("train_range", "domain", "time_range"):
        facts = {f: getattr(Carried, f) for f in ("train_range", "domain", "time_range")}
        facts.pop(fact)
        body = facts | {"__annotations__": {"beta": Parameter}, "parameter": "beta"}
        with pytest.raises(ValueError, match=f"Bare must say its `{fact}`"):
            draw(parametric(type("Bare", (ClosedForm,), body)), "train", n=3)


def test_parameters_that_are_not_declared_are_refused():
    class Plain(ClosedForm):
        beta: Parameter
        parameter, train_range = "beta", (0.5, 2.0)

    class Other(Carried):
        parameter = "k"

    for use in (lambda: Plain(1.0), lambda: draw(Plain, "train", n=3)):
        with pytest.raises(ValueError, match="Plain has parameters of its own: put @parametric"):
            use()
    for use in (lambda: Other(1.0), lambda: draw(Other, "train", n=3)):
        with pytest.raises(ValueError, match=r"`parameter` of Other must be .* beta; got 'k'"):
            use()
    with pytest.raises(ValueError, match="`points` must be a positive whole number, got -1"):
        Carried.grid(3, -1)
