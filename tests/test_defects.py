"""The wrong numbers of version 0.1.0: each test failed there."""

import math

import numpy as np
import pytest
import torch
from exact import posterior
from seeds import generator

import probconserv as pc

pytestmark = pytest.mark.filterwarnings("ignore")  # many of these laws move fields very far

EPS32 = torch.finfo(torch.float32).eps
KINDS = ["Diagonal", "LowRank", "Dense"]


@pytest.fixture
def random():
    return np.random.default_rng(20)


def whole(random, *shape):
    """Whole numbers from 1 to 9, as floats."""
    return random.integers(1, 10, shape).astype(float)


def field_of(kind, random, mean, variance):
    """A field of one axis, and the arguments that tell the oracle its covariance."""
    if kind == "Diagonal":
        return pc.Diagonal(mean, variance), {"variance": variance}
    if kind == "LowRank":
        factor = np.sqrt(variance) * random.normal(size=(2, len(mean)))
        return pc.LowRank(mean, factor, variance), {"variance": variance, "factor": factor}
    root = np.sqrt(variance)[:, None] * random.normal(size=(len(mean), len(mean) + 2))
    return pc.Dense(mean, root @ root.T), {"covariance": root @ root.T}


def ensemble(members):
    """The field with the mean and the covariance of members, on axis 0."""
    mean = members.mean(0)
    return pc.LowRank(mean, (members - mean) / np.sqrt(len(members) - 1))


def is_refused(field, *laws):
    try:
        pc.condition(field, *laws)
    except pc.errors.InfeasibleError:
        return True
    return False


# W1: contradictory exact laws are accepted


def test_three_contradictory_laws_on_two_points_are_refused():
    laws = (
        pc.weighted_sum([7.0, 5.0], 1.0),
        pc.weighted_sum([4.0, 3.0], 5.0),
        pc.weighted_sum([3.0, 6.0], 6.0),
    )
    with pytest.raises(pc.errors.InfeasibleError):
        pc.condition(pc.Diagonal([0.0, 0.0], [8.0, 8.0]), *laws)


def test_more_laws_than_points_are_refused_unless_they_agree(random):
    accepted = []
    for _ in range(100):
        n = int(random.integers(2, 6))
        G, b = whole(random, n + 1, n), whole(random, n + 1)
        if abs(np.linalg.det(np.c_[G, b])) < 0.5:  # they agree
            continue
        laws = [pc.weighted_sum(g, float(total)) for g, total in zip(G, b, strict=True)]
        if not is_refused(pc.Diagonal(np.zeros(n), whole(random, n)), *laws):
            accepted.append((G, b))
    assert not accepted


def test_as_many_laws_as_an_ensemble_has_members_are_refused(random):
    accepted = []
    for _ in range(100):
        members = int(random.integers(2, 6))
        points = members + int(random.integers(1, 4))
        field = ensemble(random.normal(size=(members, points)))
        G, b = whole(random, members, points), whole(random, members)
        laws = [pc.weighted_sum(g, float(total)) for g, total in zip(G, b, strict=True)]
        if not is_refused(field, *laws):
            accepted.append((G, b))
    assert not accepted


# W2: the weights of a mixture do not sum to one


@pytest.mark.parametrize("variance", [1e-6, 1e-8, 1e-12, 1e-16, 1e-20])
def test_a_mixture_conserves_however_sure_its_components_are(variance):
    prior = pc.Mixture(pc.Diagonal([[[1.0, 2.0, 3.0]]] * 3, variance))
    post = pc.condition(prior, pc.weighted_sum([1.0, 1.0, 1.0], 7.0))
    assert post.weights.sum().item() == pytest.approx(1, rel=1e-12)
    assert abs(float(post.mean.sum()) - 7) < 7e-12
    wanted = torch.tensor([[4.0, 7.0, 10.0]]).double() / 3
    torch.testing.assert_close(post.mean, wanted, rtol=1e-12, atol=0)


# W3: NaN in silence


def test_the_same_noisy_law_twice_is_finite_and_right():
    law = pc.weighted_sum([5.0, 3.0], 1.0, noise=1e-8)
    post = pc.condition(pc.Diagonal([0.0, 0.0], [8.0, 6.0]), law, law)
    truth = posterior([0, 0], [[5, 3]] * 2, [1, 1], noise=1e-8, variance=[8, 6])
    np.testing.assert_allclose(post.mean.numpy(), truth.mean, rtol=1e-6)
    np.testing.assert_allclose(post.variance.numpy(), truth.variance, rtol=1e-6)


@pytest.mark.parametrize("noise", [1e-7, 1e-8, 1e-9])
def test_any_noisy_law_twice_is_right(noise, random):
    for _ in range(100):
        g, variance = whole(random, 3), whole(random, 3)
        law = pc.weighted_sum(g, 1.0, noise=noise)
        post = pc.condition(pc.Diagonal([0.0, 0.0, 0.0], variance), law, law)
        truth = posterior([0, 0, 0], [g, g], [1, 1], noise, variance)
        np.testing.assert_allclose(post.mean.numpy(), truth.mean, rtol=1e-6)
        np.testing.assert_allclose(post.variance.numpy(), truth.variance, rtol=1e-6)


def test_noisy_laws_that_contradict_each_other_are_never_nan(random):
    for _ in range(100):
        g, variance = whole(random, 2), whole(random, 2)
        laws = [pc.weighted_sum(g, total, noise=1e-9) for total in (1.0, 1.5)]
        try:
            post = pc.condition(pc.Diagonal([0.0, 0.0], variance), *laws)
        except pc.errors.InfeasibleError:
            continue
        assert post.mean.isfinite().all()
        assert post.variance.isfinite().all()


# W4: float32 fields with |mean| far above std drop rows


def pressure(kind, mean, root):
    """The field with the covariance root root^T, (*shape, directions)."""
    return (
        pc.Dense(mean, root @ root.mT) if kind == "Dense" else pc.LowRank(mean, root.movedim(-1, 0))
    )


@pytest.mark.parametrize("kind", ["Dense", "LowRank"])
def test_a_pressure_in_float32_obeys_its_law(kind):
    field = pressure(kind, torch.full((1, 100), 101325.0), torch.eye(100)[None])
    law = pc.integral(torch.linspace(0, 1, 101).double(), 101326.0, rule="cell")
    post = pc.condition(field, law)
    assert law.residual(post).abs().max() < EPS32 * 101326
    torch.testing.assert_close(post.variance, torch.full((1, 100), 0.99))
    assert float(post.log_evidence) == pytest.approx(-50 - math.log(0.02 * math.pi) / 2, rel=1e-5)


def test_noisy_laws_on_a_pressure_in_float32_count():
    mean, covariance = torch.full((1, 4), 101325.0), 1e-4 * torch.eye(4)[None]
    G, b = [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]], [101325.02, 101325.0]
    post = pc.condition(pc.Dense(mean, covariance), pc.linear(G, b, noise=0.01))
    truth = posterior(mean[0], G, b, noise=0.01, covariance=covariance[0].double().numpy())
    np.testing.assert_allclose(post.variance[0].numpy(), truth.variance, rtol=1e-6)
    assert float(post.log_evidence) == pytest.approx(truth.log_evidence, rel=1e-6)


@pytest.mark.parametrize("kind", ["Dense", "LowRank"])
def test_several_laws_on_a_pressure_in_float32_all_hold(kind, random):
    for _ in range(20):
        mean = torch.tensor(101325 + random.normal(size=(2, 6)), dtype=torch.float32)
        root = torch.tensor(0.1 * random.normal(size=(2, 6, 9)), dtype=torch.float32)
        laws = [pc.boundary(left=101325.0), pc.weighted_sum(np.ones(6), 607951.0), pc.periodic()]
        post = pc.condition(pressure(kind, mean, root), *laws)
        for law in laws:
            assert law.residual(post).abs().max() < 3 * EPS32 * 101325
        assert post.variance[:, 0].max() == 0


# W5: the variance left is computed by subtraction


def test_a_good_measurement_of_a_wild_field_leaves_its_own_variance():
    post = pc.condition(pc.Diagonal([[0.0, 0.0, 0.0]], 1e8), pc.boundary(left=1.0, noise=1e-4))
    assert float(post.variance[0, 0]) == pytest.approx(1e-8, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_variance_left_is_right_relative_to_itself(kind, random):
    for _ in range(30):
        mean, variance = random.normal(size=4), 10 ** random.uniform(0, 8, 4)
        field, spread = field_of(kind, random, mean, variance)
        noise = 10 ** random.uniform(-6, -2, 2)
        laws = [
            pc.boundary(left=1.0, right=2.0, noise=noise[0]),
            pc.weighted_sum(np.ones(4), 5.0, noise[1]),
        ]
        G = [[1, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]]
        truth = posterior(mean, G, [1, 2, 5], noise[[0, 0, 1]], **spread)
        found = pc.condition(field, *laws).variance.numpy()
        np.testing.assert_allclose(found, truth.variance, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_point_that_exact_laws_fix_has_no_variance_at_all(kind, random):
    for _ in range(100):
        field, _ = field_of(kind, random, random.normal(size=3), whole(random, 3))
        u, weights = random.normal(size=3), random.normal(size=3)
        ends = pc.boundary(left=u[0], right=u[2])
        total = pc.linear(weights[None], [float(weights @ u)])
        post = pc.condition(field, ends, total)  # the middle follows from the total
        assert torch.equal(post.variance, torch.zeros(3).double())


@pytest.mark.parametrize("kind", KINDS)
def test_the_density_of_a_point_that_laws_fix_is_always_refused(kind, random):
    for _ in range(50):
        field, _ = field_of(kind, random, random.normal(size=2), whole(random, 2))
        u, G = random.normal(size=2), random.normal(size=(2, 2))
        post = pc.condition(field, pc.linear(G, G @ u))
        with pytest.raises(pc.errors.DegenerateError):
            post.marginal_log_prob(u)


def test_two_points_of_the_same_variance_share_what_an_exact_sum_leaves(random):
    """Each loses half, give or take rounding: neither has all."""
    for v in random.uniform(1e-12, 1e12, 200):
        post = pc.condition(pc.Diagonal([[0.0, 0.0]], [[v, v]]), pc.weighted_sum([0.3, 0.3], 0.0))
        np.testing.assert_allclose(post.variance, v / 2, rtol=1e-12)


# W7: float32 laws are squared in float32


@pytest.mark.parametrize("noise", [1e-23, 1e20])
def test_a_float32_law_keeps_its_noise(noise):
    law = pc.weighted_sum(torch.ones(3), torch.ones(2), noise=torch.full((2,), noise))
    wanted = torch.full((2,), noise).double()
    torch.testing.assert_close(law.noise.double(), wanted, rtol=1e-6, atol=0)


def test_a_float32_law_with_huge_noise_has_an_evidence():
    law = pc.boundary(left=torch.ones(2), noise=torch.full((2,), 1e20))
    post = pc.condition((torch.zeros(2, 3), torch.ones(2, 3)), law)
    torch.testing.assert_close(post.mean, torch.zeros(2, 3), rtol=0, atol=1e-30)
    wanted = -math.log(2 * math.pi * 1e40) / 2
    torch.testing.assert_close(post.log_evidence.sum(-1), torch.tensor([wanted, wanted]))


def test_simpson_weights_of_a_wide_float32_grid_are_finite():
    x = 1e13 * torch.arange(5.0)
    total = pc.integral(x, 1.0, rule="simpson").apply(torch.ones(5).double())
    assert float(total) == pytest.approx(4e13, rel=1e-6)


# W8: rare


def test_nearly_dependent_rows_leave_a_low_rank_field_no_variance(random):
    kept = []
    for _ in range(100):
        own = 10 ** random.uniform(-4, 4) * random.uniform(0.1, 1, 2)
        field = pc.LowRank(np.zeros(2), random.normal(size=(2, 2)), own)
        g, u = random.normal(size=2), random.normal(size=2)
        G = np.stack([g, g + 10 ** random.uniform(-4, -3) * random.normal(size=2)])
        post = pc.condition(field, pc.linear(G, G @ u))
        kept.append(float((post.variance / field.variance).max()))
    assert max(kept) < 1e-10


def test_a_singular_covariance_has_no_density(random):
    for n in random.integers(2, 6, 300):
        root = random.normal(size=(n, n - 1))
        with pytest.raises(pc.errors.DegenerateError):
            pc.Dense(np.zeros(n), root @ root.T).log_prob(np.ones(n))


def test_mixtures_take_redundant_rows_in_one_law(random):
    for n in random.integers(2, 6, 100):
        parts = pc.Diagonal(random.normal(size=(3, 1, n)), random.uniform(0.1, 3, (3, 1, n)))
        two, u = random.normal(size=(2, n)), random.normal(size=n)
        G = np.vstack([two, two.sum(0)])
        post = pc.condition(pc.Mixture(parts), pc.linear(G, G @ u))
        assert post.weights.sum().item() == pytest.approx(1, rel=1e-12)
        np.testing.assert_allclose(G @ post.mean[0].numpy(), G @ u, atol=1e-11)


# W9: half precision is not conserved


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["Diagonal", "LowRank", "Dense", "Mixture"])
def test_half_precision_comes_back_as_float32_and_conserves(kind, dtype, rng):
    mean, root = (torch.randn(3, *shape, 7, generator=rng).to(dtype) for shape in ((2,), (2, 7)))
    field = {
        "Diagonal": lambda: pc.Diagonal(mean, torch.ones_like(mean)),
        "LowRank": lambda: pc.LowRank(mean, root.movedim(-1, 0)),
        "Dense": lambda: pc.Dense(mean, torch.eye(7, dtype=dtype).expand(3, 2, 7, 7)),
        "Mixture": lambda: pc.Mixture(pc.Diagonal(mean, torch.ones_like(mean))),
    }[kind]()
    law = pc.integral(np.linspace(0, 1, 7), 1.0)
    post = pc.condition(field, law)
    assert (
        post.mean.dtype
        == post.variance.dtype
        == post.sample(1, generator=generator()).dtype
        == torch.float32
    )
    for u in (post.mean, post.sample(2, rng)):
        assert law.residual(u).abs().max() < 2 * EPS32 * (1 + u.abs().max())


# W11: diagnose reassures where the update ruins the field


def four_members(random):
    """1000 points between 0 and 1, of nearly one total, and a law that asks for a bit more."""
    members = random.uniform(0, 1, (4, 1, 1000))
    members += 0.5 - members.mean(-1, keepdims=True) + 1e-5 * random.normal(size=(4, 1, 1))
    return ensemble(members), pc.weighted_sum(np.ones(1000), 500.3)


def test_diagnose_does_not_reassure_where_the_update_ruins_the_field(random):
    found = pc.diagnose(*four_members(random))
    assert "b agrees with the prior" not in found.verdict
    assert float(found.largest_move) > 10


def test_condition_warns_where_it_moves_points_absurdly_far(random):
    assert issubclass(pc.ImplausibleWarning, Warning)
    with pytest.warns(pc.ImplausibleWarning):
        pc.condition(*four_members(random))


def test_condition_warns_of_a_move_beyond_ten_standard_deviations_only(recwarn):
    prior = pc.Diagonal([[0.0, 5.0]], [[1.0, 0.0]])  # the second cannot move and does not count
    pc.condition(prior, pc.boundary(left=9.9))
    assert not [w for w in recwarn if issubclass(w.category, pc.ImplausibleWarning)]
    with pytest.warns(pc.ImplausibleWarning):
        pc.condition(prior, pc.boundary(left=10.1))


def test_diagnose_says_how_far_the_farthest_point_moves(random):
    prior = pc.Diagonal(random.normal(size=(2, 5)), random.uniform(1, 2, (2, 5)))
    laws = pc.weighted_sum(np.ones(5), 3.0), pc.boundary(left=[1.0, 2.0], noise=0.5)
    post = pc.condition(prior, *laws)
    wanted = ((post.mean - prior.mean).abs() / prior.std).max()
    assert float(pc.diagnose(prior, *laws).largest_move) == pytest.approx(float(wanted))


def test_diagnose_has_the_joint_mahalanobis_square_of_all_laws(random):
    mean, root = random.normal(size=(2, 4)), random.normal(size=(2, 4, 6))
    sigma, x = root @ root.swapaxes(1, 2), np.array([0.0, 1.0, 2.0, 4.0])
    laws = pc.integral(x, 9.0), pc.boundary(left=[3.0, 5.0], noise=0.5)
    prior = pc.Dense(mean, sigma)
    found, rule = pc.diagnose(prior, *laws), pc.diagnostics.quadrature_noise(prior, x)
    G = np.array([[0.5, 1.0, 1.5, 1.0], [1.0, 0.0, 0.0, 0.0]])
    for time, left in enumerate((3.0, 5.0)):
        noise = np.diag([float(rule[time]) ** 2, 0.25])
        r = G @ mean[time] - [9.0, left]
        wanted = r @ np.linalg.solve(G @ sigma[time] @ G.T + noise, r)
        assert float(found.mahalanobis[time]) == pytest.approx(wanted, rel=1e-9)
    assert found.degrees_of_freedom.tolist() == [2, 2]


def test_diagnose_counts_redundant_rows_once():
    prior = pc.Diagonal([[0.0, 0.0, 0.0]], 1.0)
    laws = pc.weighted_sum([1.0, 1.0, 1.0], 6.0), pc.boundary(left=1.0, right=1.0), pc.periodic()
    found = pc.diagnose(prior, *laws)
    assert found.degrees_of_freedom.tolist() == [3]
    assert float(found.mahalanobis) == pytest.approx(18.0)  # 1 + 1 + 4 * 4: all points are fixed


# W12: periodic grids have no rule


@pytest.mark.parametrize("n", [2, 5, 8])
def test_the_periodic_rule_integrates_one_over_a_period(n):
    law = pc.integral(np.arange(n) / n, 1.0, rule="periodic")
    np.testing.assert_allclose(law.apply(np.eye(n)).numpy(), 1 / n, rtol=1e-12)


def test_the_periodic_rule_on_uneven_points_goes_around_the_end():
    x = np.array([0.1, 0.2, 0.5, 0.9])
    law = pc.integral(x, 1.0, rule="periodic", period=1.0)
    wanted = [(0.2 - 0.9 + 1) / 2, 0.2, 0.35, (0.1 + 1 - 0.5) / 2]
    np.testing.assert_allclose(law.apply(np.eye(4)).numpy(), wanted, rtol=1e-12)


def test_the_periodic_rule_on_uneven_points_asks_for_the_period():
    with pytest.raises(pc.errors.InputError, match="`period`"):
        pc.integral([0.1, 0.2, 0.5, 0.9], 1.0, rule="periodic")
