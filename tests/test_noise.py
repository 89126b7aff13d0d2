import numpy as np
import pytest
import torch
from oracle import field_of, grid, normal, uniform
from seeds import generator

import probconserv as pc
from probconserv import problems

X = torch.linspace(-1, 2, 31, dtype=torch.float64)
RULES = ["left", "right", "trapezoid", "simpson"]


def steps(places, x=X, jump=0.7):
    """Profiles from `jump` to 0 at each place, and their exact integrals."""
    return jump * (x <= places[:, None]).double(), jump * (places - x[0])


def rms(values):
    return float(values.square().mean().sqrt())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cell", [3, 4, 12])
def test_a_step_has_the_error_of_a_place_uniform_in_its_cell(rule, cell):
    u, exact = steps(torch.linspace(X[cell], X[cell + 1], 2001, dtype=torch.float64)[:-1])
    off = pc.integral(X, exact, rule).residual(u)
    assert float(pc.diagnostics.quadrature_noise((u[0], 0.0), X, rule)) == pytest.approx(
        rms(off), rel=2e-3
    )


def test_on_any_grid_the_trapezoid_errs_by_the_jump_times_the_cell(rng):
    x = grid(9, rng)
    for cell in range(8):
        u, exact = steps(torch.linspace(x[cell], x[cell + 1], 2001, dtype=torch.float64)[:-1], x)
        noise = pc.diagnostics.quadrature_noise((u[0], 0.0), x)
        assert float(noise) == pytest.approx(rms(pc.integral(x, exact).residual(u)), rel=2e-3)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("spread", [0.1, 0.3])
def test_a_step_of_unknown_place_counts_once_however_many_cells_it_may_be_in(rule, spread, rng):
    u, exact = steps(0.4 + spread * normal(3000, rng=rng))
    prior = pc.Diagonal(u.mean(0), u.var(0))
    off = pc.integral(X, exact, rule).residual(u)
    assert float(pc.diagnostics.quadrature_noise(prior, X, rule)) == pytest.approx(
        rms(off), rel=0.15
    )


@pytest.mark.parametrize("centre", [0.5, 0.3])
@pytest.mark.parametrize("width", [0.1, 0.4, 0.6, 0.8])
def test_a_front_that_may_be_anywhere_in_most_of_the_domain_counts_in_full(width, centre):
    """Half of the points or more show its spread: the median of all took it for no jump."""
    x = torch.linspace(0, 1, 101, dtype=torch.float64)
    u, exact = steps(centre + width * (torch.arange(0.5, 4000).double() / 4000 - 0.5), x, 1.0)
    off = pc.integral(x, exact.clamp(0, 1)).residual(u)
    noise = float(pc.diagnostics.quadrature_noise((u.mean(0), u.var(0)), x))
    assert noise == pytest.approx(rms(off), rel=0.05)
    beside = float(pc.diagnostics.quadrature_noise((u.mean(0), u.var(0) + 0.01), x))
    assert noise / 1.15 < beside < noise  # part of the spread is of something else


def test_two_steps_add_their_variances():
    one, other = steps(torch.tensor([-0.35, 1.25], dtype=torch.float64))[0]
    both = pc.diagnostics.quadrature_noise(pc.Diagonal(one + 2 * other, 0.0), X)
    assert float(both) == pytest.approx(0.7 * 0.1 * (5 / 12) ** 0.5)


@pytest.mark.parametrize("rule", ["trapezoid", "simpson"])
def test_smooth_profiles_have_next_to_no_noise(rule):
    u = torch.stack([X, X.sin(), (-(X**2)).exp()])
    known, unsure = (
        pc.diagnostics.quadrature_noise(pc.Diagonal(u, s), X, rule) for s in (0.0, 0.3)
    )
    step = pc.diagnostics.quadrature_noise(pc.Diagonal(steps(X[:1] + 1.01)[0], 0.0), X, rule)
    assert known.max() < step / 20
    assert unsure.max() < step / 20  # the same spread everywhere is no jump
    uneven = torch.cat([X[:15], X[15:] * 3])
    assert pc.diagnostics.quadrature_noise(pc.Diagonal(2 * uneven, 0.0), uneven).max() < 1e-12


@pytest.mark.parametrize("rule", ["left", "right"])
def test_one_sided_rules_have_the_bias_of_a_slope(rule):
    x = torch.linspace(0, 1, 8, dtype=torch.float64)
    u = 3 - 2 * x
    off = pc.integral(x, 2.0, rule).residual(u)
    assert float(pc.diagnostics.quadrature_noise((u, 0.0), x, rule)) == pytest.approx(
        float(off.abs())
    )


def test_cell_averages_integrate_exactly(rng):
    prior = field_of("diagonal", (4, 7), rng)
    assert pc.diagnostics.quadrature_noise(prior, grid(8, rng), "cell").tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("kind", ["diagonal", "low rank few 2", "dense 1", "mixture", "given"])
def test_every_field_counts_by_its_mean_and_its_variance(kind, rng):
    x = grid(7, rng)
    if kind == "mixture":
        field = pc.Mixture(field_of("diagonal", (3, 4, 7), rng))
    elif kind == "given":
        field = pc.condition(field_of("diagonal", (4, 7), rng), pc.integral(x, 0.3))
    else:
        field = field_of(kind, (4, 7), rng)
    noise = pc.diagnostics.quadrature_noise(field, x)
    torch.testing.assert_close(
        noise, pc.diagnostics.quadrature_noise((field.mean, field.variance), x)
    )
    assert noise.shape == (4,)


def test_a_batch_is_its_functions_one_by_one_and_stays_as_it_was(rng):
    mean, variance, x = normal(2, 3, 4, 7, rng=rng), uniform(2, 3, 4, 7, rng=rng), grid(7, rng)
    copies = mean.clone(), variance.clone(), x.clone()
    noise = pc.diagnostics.quadrature_noise((mean, variance), x, "simpson")
    for i in np.ndindex(2, 3, 4):
        one = pc.diagnostics.quadrature_noise((mean[i], variance[i]), x, "simpson")
        torch.testing.assert_close(noise[i], one)
    for given, copy in zip((mean, variance, x), copies, strict=True):
        assert torch.equal(given, copy)


def test_gradients(rng):
    mean, variance, x = normal(2, 7, rng=rng), uniform(2, 7, rng=rng), grid(7, rng)
    inputs = [t.requires_grad_() for t in (mean, variance)]
    assert torch.autograd.gradcheck(
        lambda *u: pc.diagnostics.quadrature_noise(u, x, "left"), inputs
    )
    flat = torch.zeros(3, 7, dtype=torch.float64, requires_grad=True)
    pc.diagnostics.quadrature_noise(pc.Diagonal(flat, flat.detach()), x).sum().backward()
    assert flat.grad.isfinite().all()


def test_it_is_noise_for_the_law_of_the_same_coordinates(rng):
    for dtype in (torch.float32, torch.float64):
        x = grid(7, rng).to(dtype)
        prior = pc.Diagonal(normal(4, 7, rng=rng).float(), 0.1)
        noise = pc.diagnostics.quadrature_noise(prior, x)
        law = pc.integral(x, 0.3, noise=noise)
        assert noise.dtype == dtype
        assert law.residual(pc.condition(prior, law)).abs().max() > 0
    assert pc.diagnostics.quadrature_noise(([1.0, 0.0], 0.0), [0.0, 1.0]).shape == ()


def test_it_fits_the_true_errors_of_a_trained_network():
    """On the two sides: a front that the network does not know well, and no front at all."""
    scores = {}
    for problem in (problems.Stefan, problems.Diffusion):
        functions = pc.data.draw(problem, "validation", 3, (10, 10))
        t, x = problem.grid(12, 201)
        parts = pc.models.load(problem.name).predict(
            tuple(functions.context), (t, x), samples=4, generator=generator()
        )
        truth, total = functions.problem.on_grid(t, x), functions.problem[:, None].total(t)
        off = pc.integral(x, total).residual(truth)[:, 1:]
        noise = pc.diagnostics.quadrature_noise(pc.Mixture(parts), x)[:, 1:]
        scores[problem] = rms(off / noise), rms(noise / x.diff()[0])
    assert 0.6 < scores[problems.Stefan][0] < 1.5
    assert scores[problems.Diffusion][1] < scores[problems.Stefan][1] / 10


def test_learned_noise_is_the_root_mean_square_over_solutions(rng):
    x, u, b = grid(7, rng), normal(5, 2, 4, 7, rng=rng), normal(5, 2, 4, rng=rng)
    got = pc.diagnostics.learned_noise(u, pc.integral(x, b))
    want = np.sqrt(np.mean((np.trapezoid(u, x) - b.numpy()) ** 2, axis=0))
    np.testing.assert_allclose(got, want)
    later = pc.integral(x, b[..., 1:], times=slice(1, None))
    np.testing.assert_allclose(pc.diagnostics.learned_noise(u, later), want[..., 1:])
    ends = pc.diagnostics.learned_noise(u, pc.boundary(left=0.5))
    np.testing.assert_allclose(ends[..., 0], ((u[..., 0] - 0.5) ** 2).mean(0).sqrt())


def test_learned_noise_of_a_law_that_holds_is_0():
    u = torch.ones(3, 2, 5, dtype=torch.float64)
    assert pc.diagnostics.learned_noise(u, pc.weighted_sum([1.0] * 5, 5.0)).tolist() == [0, 0]


def test_what_is_no_grid_of_the_prior_and_no_set_of_solutions_is_refused():
    u = torch.ones(4, 7, dtype=torch.float64)
    law = pc.integral(X[:7], 0.0)
    for call, message in (
        (
            lambda: pc.diagnostics.quadrature_noise((u, 0.0), X),
            r"`x` is a grid of 31 .* shape \(4, 7\)",
        ),
        (
            lambda: pc.diagnostics.quadrature_noise((u, 0.0), X[:7], "cell"),
            "With rule='cell' x are edges",
        ),
        (
            lambda: pc.diagnostics.quadrature_noise((u, 0.0), X[:7], "trapez"),
            "Did you mean 'trapezoid'?",
        ),
        (lambda: pc.diagnostics.quadrature_noise((u, 0.0), -X[:7]), "`x` must increase strictly"),
        (lambda: pc.diagnostics.quadrature_noise((u, 0.0), X[:7] * np.nan), "`x` must be finite"),
        (lambda: pc.diagnostics.quadrature_noise((u, 0.0), X[:7].to("meta")), "`x` is on meta but"),
        (
            lambda: pc.diagnostics.quadrature_noise({}, X),
            "`prediction` of type dict is not a field",
        ),
        (
            lambda: pc.diagnostics.learned_noise(u[:1], law),
            r"`solutions` must have at least two .* \(1, 7\)",
        ),
        (
            lambda: pc.diagnostics.learned_noise(u[0], law),
            r"at least two solutions on axis 0 .* \(7,\)",
        ),
        (lambda: pc.diagnostics.learned_noise(u * np.nan, law), "`solutions` must be finite"),
        (lambda: pc.diagnostics.learned_noise(u, 0.0), "`law` must be a law .* got float"),
        (lambda: pc.diagnostics.learned_noise(u[:, :5], law), r"`integral`.* end in \(7,\)"),
    ):
        with pytest.raises(pc.errors.InputError, match=message):
            call()
