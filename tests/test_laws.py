import numpy as np
import pytest
import scipy.sparse
import torch
from oracle import exact_residual, field_of, grid, normal, uniform

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


@pytest.mark.parametrize("build", [pc.integral, pc.weighted_sum])
def test_only_points_where_it_is_true_count(build, rng):
    x, u = grid(7, rng), normal(*SHAPE, rng=rng)
    where = torch.tensor([True, False, True, True, False, True, True])
    law = build(x, 1.0, where=where)
    torch.testing.assert_close(law.apply(u), build(x, 1.0).apply(torch.where(where, u, 0.0)))
    post = pc.condition(pc.Diagonal(u, 1.0), law)
    assert torch.equal(post.mean[:, ~where], u[:, ~where])
    assert exact_residual(law, post.mean) < 1e-12


def test_volumes_may_change_over_time(rng):
    volumes, u = uniform(*SHAPE, rng=rng), normal(3, *SHAPE, rng=rng)
    law = pc.weighted_sum(volumes, normal(4, rng=rng), space_dims=1)
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
    rows = law.apply(torch.eye(7).double()).T.numpy()
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
    got = pc.laws.balance(t, initial=1.0, inflow=t, outflow=0.5)
    torch.testing.assert_close(got, 1 + t**2 / 2 - t / 2)
    batched = pc.laws.balance(t, initial=[1.0, 2.0], inflow=t.expand(2, 21))
    torch.testing.assert_close(batched[1] - batched[0], torch.ones_like(t))


LAWS = {
    "integral": lambda rng: pc.integral(grid(7, rng), normal(4, rng=rng), times=slice(0, 4)),
    "smoothness": lambda rng: pc.smoothness(grid(7, rng), uniform(*SHAPE, rng=rng), 0.5),
    "boundary": lambda rng: pc.boundary(left=1.0, right=0),
    "periodic": lambda rng: pc.periodic(),
    "initial": lambda rng: pc.initial(normal(7, rng=rng)),
    "linear": lambda rng: pc.linear(normal(2, 7, rng=rng), 0.0),
    "sparse": lambda rng: pc.linear(normal(2, 7, rng=rng).to_sparse(), 0.0),
    "regions": lambda rng: pc.regions([0, 0, 1, 1, 1, 0, 2], [0.1, 0.2, 0.3]),
}


@pytest.mark.parametrize("law", LAWS)
def test_a_law_goes_to_the_device_of_the_field(law, rng):
    law, u = LAWS[law](rng), torch.empty(SHAPE, dtype=torch.float64, device="meta")
    moved = law.to("meta")
    tensors = [t for m in moved.maps.values() for t in vars(m).values()]
    found = [moved.value, moved.noise, *(t for t in tensors if isinstance(t, torch.Tensor))]
    assert {t.device.type for t in found} == {"meta"}
    if not any(t.is_sparse for t in found):  # torch has no sparse product there
        assert law.residual(u).device.type == "meta"


@pytest.mark.parametrize("law", LAWS)
def test_float32_numpy_and_whole_numbers_are_widened_without_loss(law, rng):
    """Everything is float64; the same law of a float32 field is that of its widened one."""
    law, u = LAWS[law](rng), normal(*SHAPE, rng=rng).float()
    assert law.value.dtype == law.noise.dtype == law.apply(u).dtype == torch.float64
    torch.testing.assert_close(law.apply(u), law.apply(u.double()), rtol=0, atol=0)
    assert "Law(" in repr(law)


def test_laws_of_other_kinds_of_numbers_are_the_same_law():
    x, volumes, u = np.arange(7), torch.arange(1, 8), torch.arange(28).reshape(SHAPE)
    wanted = pc.integral(x.astype(float), np.ones(4), noise=0.5).residual(u.double())
    for kind in (np.float32, np.int64, np.float64):
        law = pc.integral(x.astype(kind), np.ones(4, kind), noise=np.float32(0.5))
        assert torch.equal(law.residual(u), wanted)
    got = pc.weighted_sum(volumes, np.int64(3)).residual(u)
    assert torch.equal(got, (u * volumes).sum(-1).double() - 3)
    mixed = pc.boundary(torch.ones(4), torch.zeros(4, dtype=torch.float64))
    assert torch.equal(mixed.value, torch.tensor([[1.0, 0.0]]).double().expand(4, 2))


def test_regions_are_rows_of_a_matrix(rng):
    labels, volumes = torch.tensor([0, 2, -1, 1, 0, 2, 2]), uniform(7, rng=rng)
    rows = torch.stack([volumes * (labels == k) for k in range(3)])
    b, field = normal(4, 3, rng=rng), field_of("dense 1", SHAPE, rng)
    law = pc.regions(labels, b, volumes)
    post, wanted = pc.condition(field, law), pc.condition(field, pc.linear(rows, b))
    torch.testing.assert_close(law.apply(field), field.mean @ rows.T)
    torch.testing.assert_close(post.mean, wanted.mean, rtol=0, atol=1e-11)
    torch.testing.assert_close(post.variance, wanted.variance, rtol=0, atol=1e-11)


@pytest.mark.parametrize("even", [True, False])
def test_the_periodic_rule_is_the_trapezoid_of_the_closed_curve(even, rng):
    x = torch.arange(7.0).double() if even else grid(7, rng)
    end = float(x[-1]) + (1.0 if even else 0.7)
    law = pc.integral(x, 0.5, rule="periodic", period=None if even else end - float(x[0]))
    u = normal(*SHAPE, rng=rng)
    closed = torch.cat([u, u[:, :1]], -1)
    wanted = torch.trapezoid(closed, torch.cat([x, x.new_tensor([end])]))
    torch.testing.assert_close(law.apply(u), wanted)
    assert exact_residual(law, pc.condition(pc.Diagonal(u, 1.0), law).mean) < 1e-12
