import numpy as np
import pytest
import scipy.sparse
import torch
from oracle import exact_residual, field_of, grid, matrix, normal, uniform

import probconserv as pc

SHAPE = (4, 7)
X = torch.linspace(0, 1, 7, dtype=torch.float64)


def test_residual_takes_a_field_a_tensor_or_an_array(rng):
    law = pc.integral(grid(7, rng), normal(4, rng=rng))
    mean = normal(*SHAPE, rng=rng)
    wanted = law.apply(mean) - law.value
    for u in (mean, mean.numpy(), pc.Diagonal(mean, 1.0)):
        assert torch.equal(law.residual(u), wanted)


def test_noise_is_a_standard_deviation(rng):
    sigma = uniform(4, rng=rng)
    law = pc.integral(X, 0.0, noise=sigma)
    torch.testing.assert_close(law.noise, sigma)
    torch.testing.assert_close(law.noise_variance, sigma**2)
    assert float(pc.boundary(left=1.0).noise) == 0


def test_masked_points_are_left_out(rng):
    x, u = grid(7, rng), normal(*SHAPE, rng=rng)
    mask = torch.tensor([False, True, False, False, True, False, False])
    law = pc.integral(x, 1.0, mask=mask)
    torch.testing.assert_close(law.apply(u), law.apply(torch.where(mask, 1e6, u)))
    post = pc.condition(pc.Diagonal(u, 1.0), law)
    assert torch.equal(post.mean[:, mask], u[:, mask])
    assert exact_residual(law, post.mean) < 1e-12


def test_volumes_may_change_over_time(rng):
    volumes, u = uniform(*SHAPE, rng=rng), normal(3, *SHAPE, rng=rng)
    law = pc.cells(volumes, normal(4, rng=rng), space_dims=1)
    torch.testing.assert_close(law.apply(u), (u * volumes).sum(-1))
    post = pc.condition(pc.Diagonal(u, 0.5), law)
    assert law.residual(post).abs().max() < 1e-13


@pytest.mark.parametrize(
    "times", [[3, 1], slice(1, 3), [False, True, False, True], torch.tensor([1])]
)
def test_times_choose_the_rows(times, rng):
    x, u = grid(7, rng), normal(*SHAPE, rng=rng)
    law = pc.integral(x, 0.5, times=times)
    chosen = torch.arange(4)[times]
    torch.testing.assert_close(law.apply(u), torch.trapezoid(u, x)[chosen])
    post = pc.condition(pc.Diagonal(u, 1.0), law)
    others = [t for t in range(4) if t not in chosen.tolist()]
    assert torch.equal(post.mean[others], u[others])
    assert law.residual(post).abs().max() < 1e-14


@pytest.mark.parametrize("value", [0.5, "per row", "per time and row"])
def test_times_of_rows_and_their_values(value, rng):
    rows, field = normal(2, 7, rng=rng), field_of("diagonal", SHAPE, rng)
    b = {"per row": normal(2, rng=rng), "per time and row": normal(3, 2, rng=rng)}.get(value, value)
    law = pc.linear(rows, b, times=[3, 0, 2])
    post = pc.condition(field, law)
    assert law.residual(post).abs().max() < 1e-12
    assert torch.equal(post.mean[1], field.mean[1])


def test_smoothness_noise_is_the_variance_of_each_row_under_neighbour_correlation(rng):
    x, variance, rho = grid(7, rng), uniform(*SHAPE, rng=rng), 0.6
    law = pc.smoothness(x, variance, rho)
    lag = np.abs(np.subtract.outer(np.arange(7), np.arange(7)))
    rows, _, _ = matrix(law, (7,)) if False else (law.apply(torch.eye(7).double()).T.numpy(), 0, 0)
    for t in range(4):
        std = variance[t].sqrt().numpy()
        sigma = np.outer(std, std) * rho**lag
        np.testing.assert_allclose(law.noise_variance[t], np.diag(rows @ sigma @ rows.T), rtol=1e-9)


def test_smoothness_is_the_papers_for_unit_spacing(rng):
    s0, s1, s2 = uniform(3, rng=rng).sqrt().tolist()
    law = pc.smoothness([0.0, 1.0, 2.0], [s0**2, s1**2, s2**2], rho=0.9)
    paper = s0**2 + 4 * s1**2 + s2**2 - 4 * 0.9 * (s0 * s1 + s1 * s2) + 2 * 0.81 * s0 * s2
    assert float(law.noise_variance) == pytest.approx(paper)
    assert law.apply([1.0, 3.0, 4.0]).tolist() == [1.0 - 6.0 + 4.0]


def test_smoothing_makes_the_mean_smoother(rng):
    x = torch.linspace(0, 1, 30, dtype=torch.float64)
    prior = pc.Diagonal(normal(2, 30, rng=rng), 1.0)
    rough = [prior.mean.diff(n=2).square().sum()]
    for rho in (0.5, 0.9, 0.99):
        post = pc.condition(prior, pc.smoothness(x, prior.variance, rho))
        rough.append(post.mean.diff(n=2).square().sum())
    assert rough == sorted(rough, reverse=True)


def test_boundary_may_change_over_time_and_have_noise(rng):
    left = normal(4, rng=rng)
    law = pc.boundary(left=left, right=0.5)
    post = pc.condition(pc.Diagonal(normal(*SHAPE, rng=rng), 1.0), law)
    torch.testing.assert_close(post.mean[:, 0], left)
    torch.testing.assert_close(post.mean[:, -1], torch.full((4,), 0.5, dtype=torch.float64))
    assert (post.variance[:, [0, -1]] == 0).all()
    halfway = pc.condition(pc.Diagonal([[0.0, 0.0]], 1.0), pc.boundary(right=1.0, noise=1.0))
    torch.testing.assert_close(halfway.mean, torch.tensor([[0.0, 0.5]], dtype=torch.float64))


def test_initial_on_two_axes_of_space(rng):
    start = normal(3, 5, rng=rng)
    post = pc.condition(
        pc.Diagonal(normal(2, 4, 3, 5, rng=rng), 1.0), pc.initial(start, space_dims=2)
    )
    torch.testing.assert_close(post.mean[:, 0], start.expand(2, 3, 5))
    assert (post.variance[:, 1:] == 1).all()


def test_periodic_joins_the_ends(rng):
    post = pc.condition(field_of("low rank few 2", SHAPE, rng), pc.periodic())
    for u in (post.mean, post.sample(3, rng)):
        torch.testing.assert_close(u[..., 0], u[..., -1])


def test_sparse_and_dense_matrices_say_the_same(rng):
    rows = normal(3, 28, rng=rng) * (uniform(3, 28, rng=rng) > 1)
    value, field = normal(3, rng=rng), field_of("low rank few 2", SHAPE, rng)
    wanted = pc.condition(field, pc.linear(rows.reshape(3, *SHAPE), value)).mean
    for sparse in (rows.to_sparse(), scipy.sparse.csr_array(rows.numpy())):
        got = pc.condition(field, pc.linear(sparse, value, space=SHAPE)).mean
        torch.testing.assert_close(got, wanted)


def test_balance_adds_up_the_fluxes():
    t = torch.linspace(0, 2, 21, dtype=torch.float64)
    got = pc.balance(t, initial=1.0, inflow=t, outflow=0.5)
    torch.testing.assert_close(got, 1 + t**2 / 2 - t / 2)
    batched = pc.balance(t, initial=[1.0, 2.0], inflow=t.expand(2, 21))
    torch.testing.assert_close(batched[1] - batched[0], torch.ones_like(t))


def test_constraints_made_of_bare_numbers_go_where_the_field_is(rng):
    u = torch.empty(4, 7, dtype=torch.float64, device="meta")
    for law in (pc.boundary(left=1.0, right=0), pc.periodic()):
        assert law.residual(u).device.type == "meta"
        assert law.adjoint(law.apply(u), (4, 7)).device.type == "meta"
    fixed = pc.boundary(left=normal(4, rng=rng))
    assert fixed.to("meta").value.device.type == "meta"
    assert not fixed.anywhere


def test_to_moves_every_tensor(rng):
    laws = [
        pc.integral(grid(7, rng), normal(4, rng=rng), times=slice(0, 4)),
        pc.smoothness(grid(7, rng), uniform(*SHAPE, rng=rng), 0.5),
        pc.boundary(left=1.0),
        pc.periodic(),
        pc.initial(normal(7, rng=rng)),
        pc.linear(normal(2, 7, rng=rng), 0.0),
    ]
    for law in laws:
        assert {getattr(law.to("meta"), name).device.type for name in law._tensors} == {"meta"}
        assert "Constraint(" in repr(law)
