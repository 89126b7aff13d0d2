import math

import numpy as np
import pytest
import torch
from oracle import normal, uniform
from scipy import integrate, stats
from seeds import generator

import probconserv as pc
from probconserv.diagnostics import metrics

X = torch.tensor([0.0, 0.3, 1.0, 1.2, 2.0], dtype=torch.float64)


@pytest.fixture
def case(rng):
    """Four functions at three times and five places, and the truth."""
    field = pc.Diagonal(normal(4, 3, 5, rng=rng), uniform(4, 3, 5, rng=rng) + 0.1)
    return field, normal(4, 3, 5, rng=rng)


def test_scores_are_those_of_scipys_normal(case):
    field, u = case
    law = pc.integral(X, 0.7)
    scores = pc.evaluate(field, u, law, generator=generator())
    normals = stats.norm(field.mean.numpy(), field.std.numpy())
    np.testing.assert_allclose(scores.LL, normals.logpdf(u.numpy()).mean(-1), rtol=1e-12)
    np.testing.assert_allclose(scores.MSE, ((field.mean - u).numpy() ** 2).mean(-1), rtol=1e-12)
    mass = np.trapezoid(field.mean.numpy(), X.numpy())
    np.testing.assert_allclose(scores.CE, mass - 0.7, rtol=1e-10)
    for level, got in ((0.5, "coverage_50"), (0.9, "coverage_90"), (0.99, "coverage_99")):
        low, high = normals.interval(level)
        inside = (u.numpy() >= low) & (u.numpy() <= high)
        np.testing.assert_allclose(getattr(scores, got), inside.mean(-1))


def test_crps_is_the_integral_of_the_squared_difference_of_distributions():
    for mean, std, u in ((0.0, 1.0, 0.3), (1.0, 0.2, 2.0), (-2.0, 3.0, -2.0)):
        cdf = stats.norm(mean, std).cdf
        low = integrate.quad(lambda v, cdf=cdf: cdf(v) ** 2, mean - 12 * std, u)[0]
        high = integrate.quad(lambda v, cdf=cdf: (1 - cdf(v)) ** 2, u, mean + 12 * std)[0]
        got = pc.evaluate(pc.Diagonal([[mean]], [[std**2]]), [[u]], generator=generator()).CRPS
        assert float(got) == pytest.approx(low + high, rel=1e-6)


def test_the_energy_score_of_one_point_is_its_crps(rng):
    field = pc.Diagonal(torch.tensor([[0.4]]).double(), 0.25)
    scores = pc.evaluate(field, [[1.0]], samples=4000, generator=rng)
    assert float(scores.energy) == pytest.approx(float(scores.CRPS), rel=0.05)


def test_the_energy_score_sees_correlation_and_crps_does_not(rng):
    """The truth is a shift of the mean, which is likely where points move together."""
    factor = torch.ones(1, 1, 5, dtype=torch.float64)
    together = pc.LowRank(torch.zeros(1, 5).double(), factor, 1e-6)
    apart = pc.Diagonal(together.mean, together.variance)
    truth = torch.ones(1, 5).double()
    a, b = (pc.evaluate(f, truth, samples=2000, generator=rng) for f in (together, apart))
    assert float(a.CRPS) == pytest.approx(float(b.CRPS))
    assert float(a.energy) < float(b.energy) - 0.05


def test_scores_in_half_precision_are_those_of_the_same_numbers(case, rng):
    """A sum of a thousand energies once stood still in bfloat16, and squares overflowed."""
    half, u = (20 * case[0].mean).to(torch.float16), (2000 * case[1]).to(torch.float16)
    found = pc.evaluate((half, 1.0), u, samples=1000, generator=rng)
    wanted = pc.evaluate((half.double(), 1.0), u.double(), samples=1000, generator=rng)
    rounding = 8 * torch.finfo(torch.float32).eps  # of the differences, their squares, their sum
    torch.testing.assert_close(found.MSE.double(), wanted.MSE, rtol=rounding, atol=0)
    torch.testing.assert_close(found.energy.double(), wanted.energy, rtol=0.01, atol=0)


def test_a_mixture_is_scored_by_its_total_moments(case):
    field, u = case
    mixture = pc.Mixture(field, event_dims=2)
    mean = field.mean.numpy().mean(0)
    variance = field.variance.numpy().mean(0) + field.mean.numpy().var(0)
    expected = stats.norm(mean, np.sqrt(variance)).logpdf(u[0].numpy()).mean(-1)
    np.testing.assert_allclose(
        pc.evaluate(mixture, u[0], generator=generator()).LL, expected, rtol=1e-10
    )


def test_means_and_standard_errors_are_over_functions(case):
    scores = pc.evaluate(*case, generator=generator())
    np.testing.assert_allclose(scores.mean().MSE, scores.MSE.numpy().mean(0))
    error = stats.sem(scores.MSE.numpy(), axis=0)
    np.testing.assert_allclose(scores.standard_error().MSE, error)
    assert scores[:, 1].LL.shape == (4,)
    assert scores.CE.isnan().all()


def test_conserved_fields_have_no_conservation_error(case):
    field, u = case
    law = pc.integral(X, 0.7)
    for conserved in (pc.condition(field, law), pc.project(field, law)):
        assert pc.evaluate(conserved, u, law, generator=generator()).CE.abs().max() < 1e-12


def test_two_axes_of_space_are_averaged_together(rng):
    field = pc.Diagonal(normal(2, 3, 4, rng=rng), 1.0)
    scores = pc.evaluate(field, torch.zeros(2, 3, 4).double(), space_dims=2, generator=generator())
    expected = -(field.mean**2).mean((1, 2)) / 2 - math.log(2 * math.pi) / 2
    torch.testing.assert_close(scores.LL, expected)


def test_a_first_time_that_is_known_is_scored_without_a_density(case):
    field, u = case
    scores = pc.evaluate(pc.condition(field, pc.initial(u[:, 0])), u, generator=generator())
    assert scores.LL[:, 0].isnan().all()
    assert (scores.coverage_90[:, 0] == 1).all()
    assert (scores.CRPS[:, 0] < 1e-15).all()
    plain = pc.evaluate(field, u, generator=generator())
    torch.testing.assert_close(scores.LL[:, 1:], plain.LL[:, 1:])
    wrong = pc.evaluate(pc.condition(field, pc.initial(u[:, 0] + 1.0)), u, generator=generator())
    assert (wrong.coverage_90[:, 0] == 0).all()
    torch.testing.assert_close(wrong.CRPS[:, 0], torch.ones_like(wrong.CRPS[:, 0]))


def test_what_cannot_be_scored_is_refused(case):
    field, u = case
    with pytest.raises(ValueError, match=r"`truth` .*\(4, 3, 5\)"):
        pc.evaluate(field, u[:, :, :4])
    with pytest.raises(ValueError, match="`truth` must be finite; 60 of its 60"):
        pc.evaluate(field, torch.full_like(u, torch.nan))
    with pytest.raises(ValueError, match=r"`space_dims` must .* from 1 to 2 .* got 3"):
        pc.evaluate(field, u, space_dims=3)
    with pytest.raises(ValueError, match="points without variance"):
        pc.evaluate(pc.condition(field, pc.boundary(left=0.0)), u)
    with pytest.raises(ValueError, match="`samples` must be a positive whole number, got 0"):
        pc.evaluate(field, u, samples=0)
    with pytest.raises(ValueError, match=r"no axis of at least two functions .* shape \(3,\)"):
        pc.evaluate(pc.Diagonal(field.mean[0], 1.0), u[0], generator=generator()).mean()


SEA = torch.tensor([True, False, True, True, False])


def test_land_without_variance_is_left_out(case, rng):
    """Scores are those of the field that has the other points alone."""
    field, u = case
    variance = torch.where(SEA, field.variance, 0.0)
    found = pc.evaluate(pc.Diagonal(field.mean, variance), u, where=SEA, samples=300, generator=rng)
    cut = pc.Diagonal(field.mean[..., SEA], field.variance[..., SEA])
    wanted = pc.evaluate(cut, u[..., SEA], samples=300, generator=rng)
    for name in ("LL", "MSE", "CRPS", "coverage_50", "coverage_90"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))
    torch.testing.assert_close(found.energy, wanted.energy, rtol=0.3, atol=0)
    draws = normal(6, 4, 3, 5, rng=rng)
    kept = pc.evaluate(pc.Draws(draws), u, where=SEA.expand(3, 5))
    torch.testing.assert_close(
        kept.energy, pc.evaluate(pc.Draws(draws[..., SEA]), u[..., SEA]).energy
    )


def test_the_fields_of_a_state_are_scored_by_name(case, rng):
    field, u = case
    state = pc.State(u=field, v=pc.Diagonal(field.mean[..., :2], 1.0))
    law = pc.integral(X, 0.7, of="u")
    truth = {"u": u, "v": u[..., :2]}
    found = pc.evaluate(pc.condition(state, law), truth, law, 2, rng, where={"u": SEA})
    alone = pc.evaluate(pc.condition(field, pc.integral(X, 0.7)), u, None, 2, rng, where=SEA)
    torch.testing.assert_close(found["u"].LL, alone.LL)
    assert found["u"].CE.abs().max() < 1e-12
    wanted = pc.evaluate(state["v"], truth["v"], samples=2, generator=rng)
    torch.testing.assert_close(found["v"].LL, wanted.LL)


def test_the_energy_score_of_draws_takes_all_pairs(rng):
    """It once took half of the draws beside the other half, and was up to a tenth off."""
    draws, u = normal(7, 2, 3, 5, rng=rng), normal(2, 3, 5, rng=rng)
    near = (draws - u).square().mean(-1).sqrt().mean(0)
    apart = (draws[:, None] - draws).square().mean(-1).sqrt().sum((0, 1)) / (7 * 6)
    torch.testing.assert_close(pc.evaluate(pc.Draws(draws), u).energy, near - apart / 2)


def test_costly_draws_are_made_only_where_they_are_asked_for(case, rng):
    field, u = case
    post = pc.condition(field, pc.nonlinear(lambda u: u.square().sum(-1), 7.0, batch_dims=2))
    quick = pc.evaluate(post, u)
    assert quick.energy.isnan().all()
    assert quick.CRPS.isfinite().all()
    assert pc.evaluate(post, u, samples=2, generator=rng).energy.isfinite().all()


def test_coverage_of_members_is_that_of_their_interval(rng):
    members, u = normal(4, 2, 3, 5, rng=rng), 2 * normal(2, 3, 5, rng=rng)
    for field in (
        prior := pc.Ensemble(members, batch_dims=2),
        pc.condition(prior, pc.integral(X, 0)),
    ):
        low, high = field.interval(0.9)
        wanted = ((low <= u) & (u <= high)).double().mean(-1)
        found = pc.evaluate(field, u, samples=2, generator=rng)
        torch.testing.assert_close(found.coverage_90, wanted)


def test_points_and_names_that_do_not_fit_are_refused(case):
    field, u = case
    state = pc.State(u=field)
    for wrong, match in (
        (lambda: pc.evaluate(field, u, where=SEA.double()), "`where` must be boolean"),
        (lambda: pc.evaluate(field, u, where=SEA[:4]), r"`where` of shape \(4,\) does not fit"),
        (lambda: pc.evaluate(field, u, where=~SEA & SEA), "`where`: at some time .* no point"),
        (lambda: pc.evaluate(state, u), "`truth` of a state must be arrays by .* u; got Tensor"),
        (lambda: pc.evaluate(state, {"u": u}, where={"v": SEA}), "`where` must be .*'v'"),
    ):
        with pytest.raises(pc.errors.InputError, match=match):
            wrong()


def test_a_table_has_a_row_for_each_method_with_the_best_in_bold():
    law, truth = pc.integral(np.linspace(0, 1, 5), 1.0), np.ones((3, 1, 5))
    off = truth + np.array([0.1, 0.2, 0.3])[:, None, None]
    rows = metrics.table(
        {
            "off": pc.evaluate(pc.Diagonal(off, 0.01), truth, law, generator=generator()),
            "mine": pc.evaluate(pc.Diagonal(truth, 0.01), truth, law, generator=generator()),
        }
    ).splitlines()
    assert rows[0].startswith("|  | CE | LL | MSE | CRPS | energy | coverage_50")
    assert rows[2].startswith("| off | 0.2 (0.06) | -0.9497 (1) |")
    assert rows[3].startswith("| mine | **0 (0)** | **1.384 (0)** | **0 (0)** |")
    assert rows[3].endswith("| 1 (0) | 1 (0) | 1 (0) |")


def test_a_summary_is_of_one_time_and_several_functions():
    scores = pc.evaluate(pc.Diagonal(np.zeros((3, 2, 5)), 1.0), np.zeros(5), generator=generator())
    assert scores[:, :1].summary()["LL"] == pytest.approx(-0.9189, abs=1e-4)
    with pytest.raises(
        pc.errors.InputError, match=r"shape \(3, 2\) .* Choose one time, scores\[:, i"
    ):
        scores.summary()
    twofold = pc.evaluate(
        pc.Diagonal(np.zeros((3, 1, 5)), 1.0),
        np.zeros(5),
        pc.boundary(left=0.0, right=0.0),
        generator=generator(),
    )
    with pytest.raises(pc.errors.InputError, match=r"a CE of shape \(3, 1, 2\)"):
        metrics.table({"two rows": twofold})


def test_bold_is_within_a_standard_error_of_the_best():
    rows = [
        {"CE": 1e-3, "CE_se": 0.0, "LL": 3.0, "LL_se": 0.3, "MSE": 2.0, "MSE_se": 1.0},
        {"CE": 1e-17, "CE_se": 1e-18, "LL": 3.2, "LL_se": 0.1, "MSE": 1.0, "MSE_se": 0.5},
        {"CE": 1e-17, "CE_se": 0.1, "LL": 3.15, "LL_se": 9.0, "MSE": 1.4, "MSE_se": 0.1},
    ]
    assert [metrics.best(r, rows, "CE") for r in rows] == [False, True, False]
    assert [metrics.best(r, rows, "LL") for r in rows] == [False, True, True]
    assert [metrics.best(r, rows, "MSE") for r in rows] == [False, True, True]
