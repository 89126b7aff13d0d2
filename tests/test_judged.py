"""Results of laws that are not linear, of limits and of inequalities: judged, scored, kept."""

import math

import pytest
import torch
from seeds import generator

import probconserv as pc

T, M = 3, 8
X = torch.linspace(0, 1, M, dtype=torch.float64)
WEIGHTS = torch.linspace(1, 2, M, dtype=torch.float64) / M


def normal(*shape):
    return torch.randn(*shape, generator=generator(), dtype=torch.float64)


def mean():
    return (1 + 0.5 * (4 * X).sin()).repeat(T, 1) + 0.1 * normal(T, M)


def covariance(std):
    near = (-(((X[:, None] - X) / 0.3) ** 2)).exp()
    return std**2 * (near + 1e-3 * torch.eye(M, dtype=torch.float64))


def prior(kind, std=0.2):
    if kind == "Diagonal":
        return pc.Diagonal(mean(), std**2)
    if kind == "Dense":
        return pc.Dense(mean(), covariance(std).expand(T, M, M))
    if kind == "Ensemble":
        return pc.Ensemble(mean() + std * normal(12, T, M), batch_dims=1)
    if kind == "Mixture":
        return pc.Mixture(pc.Diagonal(torch.stack([mean(), mean() + 0.1]), std**2))
    return pc.State(u=pc.Diagonal(mean(), std**2), v=pc.Dense(mean(), covariance(std)))


KINDS = ["Diagonal", "Dense", "Ensemble", "Mixture", "State"]


def pair(kind, value):
    """The same total as a linear law and as one that need not be."""
    of = "u" if kind == "State" else ""
    curved = pc.nonlinear(lambda u: (u * WEIGHTS).sum(), value, batch_dims=1, of=of)
    return pc.weighted_sum(WEIGHTS, value, of=of), curved


def energy(value, batch_dims=1, **named):
    return pc.nonlinear(lambda u: u.square().sum(), value, batch_dims=batch_dims, **named)


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_that_is_linear_is_judged_as_its_linear_law(kind):
    field, value = prior(kind), 1.5 + 0.2 * normal(T)
    linear, curved = (pc.diagnose(field, law) for law in pair(kind, value))
    assert curved.answer == linear.answer
    assert curved.curved == ("nonlinear",)
    for name in ("value", "residual", "std", "std_full", "z_own", "z_full"):
        found, known = (getattr(one, name).flatten() for one in (curved, linear))
        torch.testing.assert_close(found, known, rtol=1e-6, atol=1e-9)
    assert float(curved.curvature.abs().max()) < 1e-9
    torch.testing.assert_close(
        curved.mahalanobis.flatten(), linear.mahalanobis.flatten(), rtol=1e-6, atol=1e-9
    )


def test_the_energy_that_a_prior_expects_is_more_than_that_of_its_mean():
    u, std = mean(), 0.4
    found = pc.diagnose(pc.Diagonal(u, std**2), energy(u.square().sum(-1)))
    more, variance = M * std**2, 4 * std**2 * u.square().sum(-1) + 2 * M * std**4
    wide = 6 * math.sqrt(2 * M / 100) * std**2  # six standard errors of 100 pairs of draws
    assert float((found.residual - more).abs().max()) < wide
    torch.testing.assert_close(found.std, variance.sqrt(), rtol=0.3, atol=0)
    torch.testing.assert_close(found.curvature * found.std, found.residual)
    assert "comes from draws: their mean is up to" in found.verdict


def test_a_right_energy_agrees_where_the_tangent_of_the_law_is_flat():
    field = pc.Dense(torch.zeros(M, dtype=torch.float64), covariance(0.3))
    law = energy(M * 0.3**2 * 1.001, batch_dims=0)
    found = pc.diagnose(field, law)
    assert found.answer == "agrees"
    assert float(found.largest_move) < 1
    assert float(pc.inflate(field, law).variance[0] / field.variance[0]) < 1.2


def test_right_energies_are_not_taken_for_wrong_ones():
    """Each a draw of the prior; the distance to the nearest field rejects about 40 % of them."""
    n, std = 100, 0.6
    u = 1 + 0.5 * (4 * torch.linspace(0, 1, n, dtype=torch.float64)).sin()
    truth = u + std * normal(40, n)
    field = pc.Dense(u, std**2 * torch.eye(n, dtype=torch.float64))
    laws = [energy(float(each.square().sum()), batch_dims=0) for each in truth]
    wrong = sum(pc.diagnose(field, law).answer != "agrees" for law in laws)
    assert wrong <= 3


def test_units_of_a_law_that_is_not_linear_are_named():
    u = mean()
    right = u.square().sum(-1)
    found = pc.diagnose(pc.Diagonal(u, 1e-4), energy(1000 * right))
    assert found.answer == "does not agree"
    assert "about 1000 times" in found.verdict
    assert found.table().count("wrong") == T


@pytest.mark.parametrize("kind", ["Diagonal", "Dense", "Ensemble"])
def test_a_limit_is_judged_as_its_law_where_the_prior_breaks_it(kind):
    field = prior(kind)
    value = field.mean.square().sum(-1)
    low, high = energy(0.5 * value), energy(2 * value)
    broken, as_law = pc.diagnose(field, pc.at_most(low)), pc.diagnose(field, low)
    for name in ("z_own", "std", "mahalanobis", "residual"):
        torch.testing.assert_close(getattr(broken, name), getattr(as_law, name))
    holds = pc.diagnose(field, pc.at_most(high))
    assert holds.answer == "agrees"
    assert float(holds.z_own.abs().max()) == 0
    assert float(holds.mahalanobis.abs().max()) == 0
    assert pc.diagnose(field, pc.at_least(high)).answer == pc.diagnose(field, high).answer


def test_a_limit_that_holds_takes_nothing_from_the_laws_beside_it():
    field, law = prior("Dense"), pc.integral(X, 1.0)
    beside = pc.diagnose(field, law, pc.at_most(pc.integral(X, 9.0)), pc.bounds(low=0.0))
    alone = pc.diagnose(field, law)
    torch.testing.assert_close(beside.mahalanobis, alone.mahalanobis)
    torch.testing.assert_close(beside.degrees_of_freedom, alone.degrees_of_freedom)
    assert beside.unjudged == ("bounds",)
    assert beside.verdict.endswith("`bounds` had no part in this.")


def test_what_has_no_b_cannot_be_judged():
    for judge in (pc.diagnose, pc.inflate):
        with pytest.raises(pc.errors.InputError, match="`laws`: `bounds` state no b to judge"):
            judge(prior("Diagonal"), pc.bounds(low=0.0))
        with pytest.raises(pc.errors.InputError, match="`laws`: at least one is needed"):
            judge(prior("Diagonal"))
    unknown = pc.Diagonal(mean(), torch.full((T, M), math.inf, dtype=torch.float64))
    with pytest.raises(pc.errors.InputError, match="only linear laws can be judged"):
        pc.diagnose(unknown, energy(1.0))


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_that_is_linear_widens_as_its_linear_law(kind):
    field, value = prior(kind), 2.5 + normal(T)
    linear, curved = (pc.inflate(field, law) for law in pair(kind, value))
    pairs = zip(linear.parts, curved.parts, strict=True)
    for known, found in pairs:
        torch.testing.assert_close(found.variance, known.variance, rtol=1e-6, atol=0)


def test_a_function_that_draws_leave_is_judged_by_its_slope():
    field = pc.Diagonal(torch.full((M,), 0.1, dtype=torch.float64), 0.04)
    found = pc.diagnose(field, pc.nonlinear(lambda u: u.sqrt().sum(), 3.0, label="roots"))
    assert bool(found.curvature.isnan().all())
    assert "`roots` cannot be computed for all draws" in found.verdict
    assert float(found.std) == pytest.approx(0.2 * M**0.5 / (2 * 0.1**0.5))
    for judge in (pc.diagnose, pc.inflate):
        with pytest.raises(pc.errors.InputError, match="`laws`: `logs` is NaN or infinite at the"):
            judge(field, pc.nonlinear(lambda u: (u - 0.1).log().sum(), 1.0, label="logs"))


def test_rows_of_laws_and_limits_stand_in_their_order():
    field = prior("Dense")
    limit, law = pc.at_most(pc.integral(X, 0.1)), pc.integral(X, 0.2)
    assert pc.diagnose(field, limit, law).value.tolist() == [0.1] * T + [0.2] * T


def test_a_limit_widens_only_what_breaks_it():
    field = prior("Dense")
    value = field.mean.square().sum(-1)
    low, high = energy(0.2 * value), energy(3 * value)
    same, wide = pc.inflate(field, pc.at_most(high)), pc.inflate(field, pc.at_most(low))
    torch.testing.assert_close(same.variance, field.variance)
    torch.testing.assert_close(wide.variance, pc.inflate(field, low).variance)
    assert float((wide.variance / field.variance).min()) > 1.5


LAWS = {
    "a total and bounds": lambda: (pc.integral(X, 1.2), pc.bounds(low=0.9)),
    "an energy and bounds": lambda: (energy(12.0), pc.bounds(low=0.9, high=2.0)),
    "a limit": lambda: (pc.at_most(energy(8.0)), pc.integral(X, 1.0)),
    "order": lambda: (pc.integral(X, 1.2), pc.monotone()),
    "an energy": lambda: (energy(12.0),),
}
NAMES = {
    "a total and bounds": ("integral", "bounds"),
    "an energy and bounds": ("nonlinear", "bounds"),
    "a limit": ("integral", "nonlinear at most"),
    "order": ("integral", "monotone"),
    "an energy": ("nonlinear",),
}


def given(field, laws, draws):
    more = {} if draws is None else {"draws": draws, "generator": generator()}
    return pc.condition(field, *laws, **more)


@pytest.mark.parametrize("laws", LAWS)
@pytest.mark.parametrize("kind", ["Diagonal", "Dense", "Ensemble"])
def test_a_result_is_kept_with_its_draws_its_point_and_its_laws(kind, laws, tmp_path):
    post = given(prior(kind), LAWS[laws](), 0)
    path = tmp_path / "kept.safetensors"
    post.save(path, n=6, generator=generator())
    drawn, found = post.from_draws(6, generator()), pc.Draws.load(path)
    assert torch.equal(found.draws, drawn.draws)
    assert torch.equal(found.point, post.point)
    assert found.laws == post.laws == NAMES[laws]
    assert torch.equal(found.interval(0.5)[0], drawn.interval(0.5)[0])
    with pytest.raises(pc.errors.InputError, match=r"holds a Draws. Use `Draws.load`"):
        pc.Posterior.load(path)


@pytest.mark.parametrize("kind", ["Diagonal", "State", "Mixture", "Truncated"])
def test_draws_are_kept_with_the_names_of_laws_and_inequalities(kind, tmp_path):
    field = prior("Diagonal" if kind == "Truncated" else kind)
    total = pc.integral(X, 1.2, of="u" if kind == "State" else "")
    bounds = pc.bounds(0.2, truncated=kind == "Truncated", of="u" if kind == "State" else "")
    post = given(field, (total, bounds), 5)
    post.save(tmp_path / "kept.safetensors")
    found = pc.Draws.load(tmp_path / "kept.safetensors")
    assert found.laws == post.laws == ("integral of u" if kind == "State" else "integral", "bounds")
    same = zip(found.parts, post.parts, strict=True)
    for one, other in same:
        assert torch.equal(one.draws, other.draws)
        assert torch.equal(one.mean, other.mean)
        assert torch.equal(one.point, other.point)


def test_the_interval_of_a_point_without_draws_stays_within_its_bounds():
    field = pc.Diagonal(0.5 * normal(T, M).abs(), 0.25)
    post = pc.condition(field, pc.bounds(low=0.0, high=1.0), draws=0)
    low, high = post.interval(0.99)
    assert float(low.min()) == 0
    assert float(high.max()) == 1
    assert bool((low <= post.point).all() & (post.point <= high).all())
    free = (low > 0) & (high < 1)
    wide = pc.condition(field, pc.bounds(low=-9.0), draws=0).interval(0.1)
    torch.testing.assert_close(wide[1] - wide[0], 2 * field.std * 0.12566134685507416)
    assert bool((post.std[free] > 0).all())


def test_inequalities_leave_no_evidence_in_closed_form():
    field, laws = prior("Diagonal"), (pc.integral(X, 1.2), pc.bounds(low=0.9))
    with pytest.raises(pc.errors.DegenerateError, match="`log_evidence`: what inequalities leave"):
        _ = pc.condition(field, *laws, draws=0).log_evidence
    curved = pc.condition(field, pair("Diagonal", torch.full((T,), 1.2).double())[1])
    linear = pc.condition(field, pair("Diagonal", torch.full((T,), 1.2).double())[0])
    torch.testing.assert_close(curved.log_evidence, linear.log_evidence)


@pytest.mark.parametrize("draws", [0, 20])
def test_scores_take_limits_whose_error_is_what_is_broken(draws):
    field = prior("Diagonal")
    top = field.mean.square().sum(-1)
    post = given(field, (pc.at_most(energy(0.8 * top)),), draws)
    for law in (pc.at_most(energy(0.8 * top)), pc.at_most(pc.integral(X, 9.0))):
        scores = pc.evaluate(post, field.mean, law, generator=generator())
        assert float(scores.CE.max()) <= 1e-9
    for limit, miss in (
        (pc.at_most(energy(0.8 * top)), 0.2 * top),
        (pc.at_least(energy(1.5 * top)), -0.5 * top),
    ):
        before = pc.evaluate(field, field.mean, limit, generator=generator())
        torch.testing.assert_close(before.CE, miss)
    with pytest.raises(pc.errors.InputError, match=r"`law` must be a law .* or a limit of one"):
        pc.evaluate(post, field.mean, pc.bounds(low=0.0))


def test_the_energy_score_of_an_energy_law_is_not_drawn_unless_asked_for():
    post = pc.condition(prior("Dense"), energy(12.0))
    assert bool(pc.evaluate(post, mean()).energy.isnan().all())
    drawn = pc.evaluate(post.from_draws(10, generator()), mean(), energy(12.0))
    assert bool(drawn.energy.isfinite().all())


def test_a_point_at_a_bound_has_scores_but_no_density():
    u = torch.tensor([[-0.5, 0.2, 0.7, -0.1]], dtype=torch.float64)
    field, bounds = pc.Diagonal(u, 0.01), pc.bounds(low=0.0)
    scores = pc.evaluate(pc.condition(field, bounds, draws=0), u.clamp_min(0))
    assert bool(scores.LL.isnan().all())
    assert float(scores.MSE) == 0
    assert float(scores.CRPS) == pytest.approx(0.1 * 0.2336949 / 2)
    with pytest.raises(pc.errors.InputError, match="`post` is known by draws"):
        pc.audit(given(field, (bounds,), 3))


def test_the_noise_of_a_law_that_is_not_linear_is_learned_from_solutions():
    u = mean()[:, None] + 0.1 * normal(T, 5, M)
    found = pc.diagnostics.learned_noise(u, energy(12.0, batch_dims=2))
    torch.testing.assert_close(found, (u.square().sum(-1) - 12.0).square().mean(0).sqrt())
    with pytest.raises(pc.errors.InputError, match="`batch_dims` of `law` must count"):
        pc.diagnostics.learned_noise(u, energy(12.0, batch_dims=0))
