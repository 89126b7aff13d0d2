import math

import numpy as np
import pytest
import torch
from curves import DOUBLE, energy, prior, randn
from scipy.optimize import minimize
from seeds import generator
from torch import Tensor

import probconserv as pc
from probconserv.conditioning.loop import linearised as _linearised
from probconserv.support.tolerances import HOLDS as LAST

MET = LAST + 64 * torch.finfo(DOUBLE).eps  # the law is read once more, and rounds once more


def closest(mean, covariance, function, value, noise=0.0):
    """The most probable point by SciPy, from the same start."""
    inverse = np.linalg.inv(covariance)

    def cost(u):
        away = u - mean
        square = away @ inverse @ away / 2
        return square + (((function(u) - value) / noise) ** 2).sum() / 2 if noise else square

    rows = [] if noise else [{"type": "eq", "fun": lambda u: function(u) - value}]
    method = "BFGS" if noise else "SLSQP"
    options = {"gtol": 1e-10} if noise else {"ftol": 1e-15, "maxiter": 1000}
    return minimize(cost, mean, constraints=rows, method=method, options=options).x


def test_the_point_is_the_most_probable_one_that_obeys():
    field = prior(7)
    post = pc.condition(
        field, pc.nonlinear(lambda u: (u.square().sum(), u.sin().sum()), [9.0, 5.0])
    )
    wanted = closest(
        field.mean.numpy(),
        np.diag(field.variance),
        lambda u: np.array([(u**2).sum(), np.sin(u).sum()]),
        np.array([9.0, 5.0]),
    )
    assert np.allclose(post.point, wanted, atol=1e-6)


def test_noise_is_weighed_against_variance():
    field = prior(5)
    post = pc.condition(field, pc.nonlinear(energy, 9.0, noise=0.3))
    wanted = closest(
        field.mean.numpy(), np.diag(field.variance), lambda u: (u**2).sum(), 9.0, noise=0.3
    )
    assert np.allclose(post.point, wanted, atol=1e-6)


@pytest.mark.parametrize("rank", [3, 12])
def test_directions_and_dense_covariances_are_used(rank):
    factor = 0.3 * randn(rank, 7)
    low = pc.LowRank(1 + 0.1 * randn(7, seed=3), factor, 0.01)
    dense = pc.Dense(low.mean, low.covariance())
    posts = [pc.condition(field, pc.nonlinear(energy, 9.0)) for field in (low, dense)]
    wanted = closest(low.mean.numpy(), low.covariance().numpy(), lambda u: (u**2).sum(), 9.0)
    for post in posts:
        assert np.allclose(post.point, wanted, atol=1e-6)
    assert torch.allclose(posts[0].variance, posts[1].variance, rtol=1e-8)


def test_a_linear_function_gives_what_the_linear_law_gives():
    field, weights = prior(3, 7), randn(2, 7, seed=5)
    value = randn(3, 2, seed=6)
    linear = pc.condition(field, pc.linear(weights, value))
    post = pc.condition(field, pc.nonlinear(lambda u: weights @ u, value, batch_dims=1))
    assert torch.allclose(post.point, linear.mean, rtol=1e-12, atol=1e-13)
    assert torch.allclose(post.variance, linear.variance, rtol=1e-10)
    assert torch.allclose(post.log_evidence, linear.log_evidence, rtol=1e-10)
    given = pc.nonlinear(lambda u: weights @ u, value, batch_dims=1)
    normals = randn(4, post.normals_per_draw, seed=7)
    draws = post.sample_with(normals)
    assert max(given.residual(draw).abs().max() for draw in draws) < 1e-13


def test_linear_laws_beside_it_hold_too():
    field, x = prior(4, 9), torch.linspace(0.0, 1.0, 9, dtype=DOUBLE)
    mass, power = pc.integral(x, 1.2), pc.nonlinear(energy, 14.0, batch_dims=1)
    post = pc.condition(field, mass, power)
    again = pc.condition(pc.condition(field, mass), power)
    other = pc.condition(pc.condition(field, power), mass)
    for law in (mass, power):
        assert law.residual(post.point).abs().max() < 1e-12
    for each in (again, other):
        assert torch.allclose(each.point, post.point, rtol=1e-9)
    for draw in post.sample(20, torch.Generator().manual_seed(1)):
        assert mass.residual(draw).abs().max() < 1e-12
        assert power.residual(draw).abs().max() < 1e-12 * (14.0 + 2 * 14.0)


def test_a_batch_is_the_same_as_one_by_one():
    field = prior(5, 6)
    value = torch.linspace(4.0, 30.0, 5, dtype=DOUBLE)
    whole = pc.condition(field, pc.nonlinear(energy, value, batch_dims=1))
    for i in range(5):
        one = pc.condition(field[i], pc.nonlinear(energy, value[i]))
        assert torch.allclose(whole.point[i], one.point, rtol=1e-7)
        assert torch.allclose(whole[i].variance, one.variance, rtol=1e-6)
        assert whole[i].sample(3, generator()).shape == (3, 6)


def test_a_thousand_draws_obey_to_the_last_digits():
    field = pc.Diagonal(prior(3, 8).mean, 0.05)
    value = torch.stack([energy(1.1 * field.mean[0]), (1.1 * field.mean[0]).exp().sum()])
    law = pc.nonlinear(lambda u: (energy(u), u.exp().sum()), value, batch_dims=1)
    draws = pc.condition(field, law).sample(1000, torch.Generator().manual_seed(2))
    terms = torch.stack([2 * draws.square().sum(-1), (draws * draws.exp()).abs().sum(-1)], -1)
    misses = torch.stack([law.residual(draw) for draw in draws])
    assert (misses.abs() <= MET * (terms + value)).all()


def test_noise_perturbs_the_value_of_every_draw():
    field = prior(8)
    post = pc.condition(field, pc.nonlinear(energy, 12.0, noise=0.2))
    drawn = post.from_draws(400, torch.Generator().manual_seed(2))
    rest = pc.nonlinear(energy, 12.0).residual(drawn.draws[0])
    found = torch.stack([energy(u) for u in post.sample(400, torch.Generator().manual_seed(3))])
    assert 0.1 < float(found.std()) < 0.21
    assert rest.shape == ()


def test_several_fields_are_moved_together():
    mesh = pc.Mesh(x=[0.0, 0.5, 1.0, 2.0])
    state = pc.State(h=prior(2, 3), v=prior(2, 3, seed=4))
    law = pc.nonlinear(
        lambda s: mesh.integral(0.5 * s["h"] * s["v"] ** 2), [1.5, 1.2], batch_dims=1
    )
    post = pc.condition(state, law, pc.integral(mesh, 2.1, of="h"))
    assert law.residual(post.point).abs().max() < 1e-12
    assert pc.integral(mesh, 2.1, of="h").residual(post["h"]).abs().max() < 1e-12
    draws = post.from_draws(30, torch.Generator().manual_seed(0))
    assert isinstance(draws, pc.Draws)
    for i in range(30):
        u = {name: draws[name].draws[i] for name in ("h", "v")}
        terms = mesh.integral(1.5 * u["h"].abs() * u["v"] ** 2)  # |J| |u|
        assert (law.residual(u).abs() <= MET * (law.value + terms)).all()
    one = pc.nonlinear(energy, 4.0, of="v", batch_dims=1)
    assert one.residual(pc.condition(state, one).point).abs().max() < 1e-12


def test_many_rows_in_a_batch_may_leave_a_field_unread():
    roots = torch.rand(3, 10, generator=generator(), dtype=torch.float64) + 0.5
    other = torch.ones(3, 4, dtype=torch.float64)
    state = pc.State(u=pc.Diagonal(roots + 0.1, 0.1), other=pc.Diagonal(other, 0.1))
    law = pc.nonlinear(lambda s: s["u"].square(), roots.square(), batch_dims=1)
    point = pc.condition(state, law).point
    torch.testing.assert_close(point["u"], roots, atol=1e-12, rtol=0)
    assert torch.equal(point["other"], other)


def test_an_unknown_parameter_is_found_with_the_field():
    t = torch.linspace(0.1, 1.0, 6, dtype=DOUBLE)
    x = torch.linspace(0.0, 1.0, 9, dtype=DOUBLE)
    total = t**0.5  # with the parameter 0.5
    u = total[:, None] + 0.05 * (randn(6, 9) - randn(6, 9).mean(-1, keepdim=True))
    state = pc.State(u=pc.Diagonal(u, 0.01), m=pc.Diagonal([0.8], 0.25))
    weights = pc.integral(x, 0.0).adjoint(torch.ones(6), (6, 9))
    law = pc.nonlinear(lambda s: (weights * s["u"]).sum(-1) - t ** s["m"], 0.0)
    post = pc.condition(state, law)
    assert abs(float(post["m"].point) - 0.5) < 3 * float(post["m"].std)
    assert float(post["m"].std) < 0.1
    assert law.residual(post.point).abs().max() < 1e-13


def test_many_rows_take_conjugate_gradients_to_the_same_point(monkeypatch):
    field = prior(2, 40)
    law = pc.nonlinear(lambda u: u[1:] ** 2 - u[:-1] ** 2, 0.1 * randn(2, 39), batch_dims=1)
    dense = pc.condition(field, law)
    monkeypatch.setattr(_linearised, "MOST_DENSE", 10)
    local = pc.condition(field, law)
    assert torch.allclose(local.point, dense.point, rtol=1e-7)
    assert law.residual(local.point).abs().max() < 1e-12


def test_gradients_are_those_of_the_whole_solution():
    mean, variance = prior(2, 4).mean, prior(2, 4).variance
    power = torch.tensor(2.0, dtype=DOUBLE)
    value = torch.tensor([6.0, 5.0], dtype=DOUBLE)

    def point(mean: Tensor, variance: Tensor, value: Tensor, power: Tensor) -> Tensor:
        law = pc.nonlinear(lambda u: (u.abs() ** power).sum(), value, batch_dims=1)
        law.value = value
        return pc.condition(pc.Diagonal(mean, variance), law).point

    given = [t.clone().requires_grad_() for t in (mean, variance, value, power)]
    assert torch.autograd.gradcheck(
        point, given, eps=1e-5, atol=1e-5, rtol=1e-5, check_undefined_grad=False
    )


def test_gradients_with_directions_noise_and_linear_laws():
    mean, factor = prior(5).mean, 0.3 * randn(2, 5, seed=8)

    def point(mean: Tensor, factor: Tensor) -> Tensor:
        field = pc.LowRank(mean, factor, 0.1)
        laws = pc.nonlinear(energy, 8.0, noise=0.1), pc.weighted_sum([1.0, 1.0, 1.0, 1.0, 0.0], 3.5)
        return pc.condition(field, *laws).point

    given = [t.clone().requires_grad_() for t in (mean, factor)]
    assert torch.autograd.gradcheck(
        point, given, eps=1e-5, atol=1e-5, rtol=1e-5, check_undefined_grad=False
    )


def test_project_moves_the_mean_to_the_nearest_one():
    field = pc.Diagonal([3.0, 4.0], [0.1, 5.0])
    near = pc.project(field, pc.nonlinear(energy, 100.0))
    assert torch.allclose(near.mean, torch.tensor([6.0, 8.0], dtype=DOUBLE))
    assert torch.equal(near.variance, field.variance)


def test_the_linearisation_error_grows_with_the_variance():
    law = pc.nonlinear(energy, 10.0)
    errors = [
        pc.condition(pc.Diagonal(torch.ones(9), variance), law).linearisation_error(
            2000, torch.Generator().manual_seed(0)
        )
        for variance in (1e-4, 0.3)
    ]
    assert errors[0].mean < 2 * errors[0].chance[0]
    assert errors[1].mean > 5 * errors[1].chance[0]


def test_draws_are_scored_and_saved(tmp_path):
    post = pc.condition(prior(3, 8), pc.nonlinear(energy, 12.0, batch_dims=1))
    draws = post.from_draws(50, torch.Generator().manual_seed(0))
    scores = pc.evaluate(draws, torch.ones(3, 8))
    assert scores.CRPS.isfinite().all()
    post.save(tmp_path / "draws.safetensors", 20, torch.Generator().manual_seed(0))
    kept = pc.Draws.load(tmp_path / "draws.safetensors")
    assert kept.draws.shape == (20, 3, 8)
    assert torch.equal(kept.point, post.point)


def test_float32_comes_back_as_float32():
    field = pc.Diagonal(torch.ones(3, 8), torch.full((3, 8), 0.1))
    post = pc.condition(field, pc.nonlinear(energy, 12.0, batch_dims=1))
    assert post.point.dtype == post.sample(2, generator()).dtype == torch.float32


WRONG = {
    "a number": (lambda u: 1.0, "`function` .* must return a float64 tensor"),
    "float32": (lambda u: u.float().sum(), "`function` .* got torch.float32"),
    "numpy": (lambda u: torch.as_tensor(np.sum(u.numpy())), "`function` .* failed"),
    "another shape": (lambda u: u @ torch.ones(5, dtype=DOUBLE), "`function` .* failed"),
    "too many rows": (lambda u: u[:2], "`value` of shape"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_functions_are_refused(what):
    function, words = WRONG[what]
    with pytest.raises(pc.errors.InputError, match=words):
        pc.condition(prior(8), pc.nonlinear(function, [1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    "function", [lambda u: u.detach().square().sum(), lambda u: u.round().sum()]
)
def test_a_function_without_gradient_is_refused(function):
    with pytest.raises(
        pc.errors.DegenerateError, match=r"`nonlinear` cannot be moved at step 0 of solution 0"
    ):
        pc.condition(prior(8), pc.nonlinear(function, 100.0))


def test_a_vanishing_row_is_refused():
    with pytest.raises(pc.errors.DegenerateError, match="its gradient is zero"):
        pc.condition(pc.Diagonal(torch.zeros(3), 1.0), pc.nonlinear(energy, 1.0))


def test_nan_inside_a_law_is_refused():
    with pytest.raises(pc.errors.InfeasibleError, match="`nonlinear` is NaN or infinite at step 0"):
        pc.condition(pc.Diagonal([-1.0, 1.0], 1.0), pc.nonlinear(lambda u: u.log().sum(), 1.0))


def test_what_no_state_obeys_is_refused_with_the_residual():
    with pytest.raises(pc.errors.InfeasibleError, match=r"`energy` is off by .* of its terms"):
        pc.condition(prior(5), pc.nonlinear(energy, -1.0))
    both = pc.nonlinear(energy, 5.0), pc.nonlinear(lambda u: 2 * energy(u), 11.0)
    with pytest.raises(pc.errors.InfeasibleError, match=r"off by"):
        pc.condition(prior(5), *both)


def test_laws_that_repeat_each_other_are_fine():
    law = pc.nonlinear(energy, 5.0)
    once, twice = pc.condition(prior(5), law), pc.condition(prior(5), law, law)
    assert torch.allclose(once.point, twice.point, rtol=1e-9)


def test_one_bad_solution_of_a_batch_is_named():
    value = torch.tensor([5.0, 6.0, -1.0], dtype=DOUBLE)
    with pytest.raises(pc.errors.InfeasibleError, match="solution 2 did not get to the laws"):
        pc.condition(prior(3, 5), pc.nonlinear(energy, value, batch_dims=1))


def test_inputs_stay_as_they_are():
    field = prior(6)
    mean = field.mean.clone()
    pc.condition(field, pc.nonlinear(lambda u: u.mul_(1.0).square().sum(), 5.0)).sample(
        2, generator()
    )
    assert torch.equal(field.mean, mean)


def test_points_without_variance_stay():
    variance = torch.ones(5, dtype=DOUBLE)
    variance[2] = 0
    field = pc.Diagonal(prior(5).mean, variance)
    post = pc.condition(field, pc.nonlinear(energy, 9.0))
    assert post.point[2] == field.mean[2]
    assert (post.sample(5, generator())[:, 2] == field.mean[2]).all()


def test_far_from_zero_the_law_holds_to_its_terms():
    field = pc.Diagonal(1e6 + randn(20), 1.0)
    law = pc.nonlinear(lambda u: u.square().mean(), 1e12 + 3.0)
    post = pc.condition(field, law)
    assert abs(float(law.residual(post.point))) < 1e-12 * 3e12


def test_what_is_not_there_is_refused():
    post = pc.condition(prior(4), pc.nonlinear(energy, 5.0))
    with pytest.raises(pc.errors.DegenerateError, match="no density"):
        post.log_prob(0.0)
    with pytest.raises(pc.errors.InputError, match="`function` must be a function"):
        pc.nonlinear(3.0, 5.0)
    with pytest.raises(pc.errors.InputError, match="`batch_dims`"):
        pc.condition(prior(4), pc.nonlinear(energy, 5.0, batch_dims=2))
    with pytest.raises(pc.errors.InputError, match="`n` must be at least 2"):
        post.from_draws(1)


def test_rows_have_names_in_tables():
    law = pc.nonlinear(energy, [1.0, 2.0], batch_dims=1)
    assert "energy" in repr(law)
    assert math.isclose(float(law.apply(torch.ones(2, 3))[1]), 3.0)


def test_a_label_may_hold_braces():
    energy = pc.nonlinear(lambda u: u.square().sum(), -1.0, label="{energy}")
    with pytest.raises(pc.errors.InfeasibleError, match=r"`\{energy\}` is off by"):
        pc.condition(pc.Diagonal([1.0, 2.0], 1.0), energy)
