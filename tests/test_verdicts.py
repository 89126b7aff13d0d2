"""The three answers of `diagnose`: how often they are wrong, and what they say."""

import math
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import normal, uniform
from scipy import stats

import probconserv as pc
from probconserv.diagnostics.causes import Comparison, joint_limit, row_limit

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import verdicts

X = np.linspace(0, 1, 25)
GUIDE = pc.Diagonal(np.exp(-((X - 0.5) ** 2) / 0.04) - 0.25 * X, (0.01 + 0.2 * X) ** 2)
ONES = torch.ones(7, dtype=torch.float64)


def of_guide(total):
    """The verdict on the field of the guide, whose own total is 0.23 and whose true one 0.354."""
    return pc.diagnose(GUIDE, pc.integral(X, total))


def test_a_total_that_only_shared_errors_explain_is_told_with_both_numbers():
    found = of_guide(0.75)
    assert found.answer == "agrees if shared"
    text = "b agrees with the prior only if the errors of many points are shared: in 1 row G mu - b"
    assert found.verdict.startswith(text)
    assert "up to 20.8 standard deviations by the stated variances" in found.verdict
    assert "and up to 4.7 if all points err together" in found.verdict
    for way_out in ("`Ensemble`", "`LowRank.correlated`", "`inflate`"):
        assert way_out in found.verdict


def test_what_shared_errors_explain_agrees_once_the_prior_says_that_they_are_shared():
    together = pc.LowRank.correlated(GUIDE.mean, GUIDE.variance, correlation=0.5)
    assert pc.diagnose(together, pc.integral(X, 0.354)).answer == "agrees"
    widened = pc.inflate(GUIDE, pc.integral(X, 35.4))
    assert pc.diagnose(widened, pc.integral(X, 35.4)).answer == "agrees if shared"


@pytest.mark.parametrize(
    ("factor", "units"),
    [
        (100, "m and cm"),
        (0.01, "m and cm"),
        (1000, "kg and g"),
        (1e12, "Gt and kg"),
        (1e-12, "Gt and kg"),
        (3600, "hours and seconds"),
        (1 / 3600, "hours and seconds"),
        (86400, "days and seconds"),
    ],
)
def test_one_total_in_other_units_is_told_by_their_names(factor, units):
    found = of_guide(0.354 * factor)
    assert found.answer != "agrees"
    assert any(cause.amount == pytest.approx(factor) for cause in found.causes)
    assert units in found.verdict


def test_one_total_that_is_off_by_no_unit_has_no_cause():
    assert of_guide(0.23 * 4).causes == ()
    zero = pc.Diagonal(torch.zeros(25), 1.0)  # whose total may be anything small
    assert pc.diagnose(zero, pc.integral(X, 1000.0)).causes == ()


def members(count, rng, times=12):
    return 3 + normal(count, times, 7, rng=rng)


KINDS = {
    "diagonal": lambda rng: pc.Diagonal(normal(12, 7, rng=rng), uniform(12, 7, rng=rng)),
    "correlated": lambda rng: pc.LowRank.correlated(normal(12, 7, rng=rng), 1.0, correlation=0.3),
    "dense": lambda rng: pc.Dense(normal(12, 7, rng=rng), torch.eye(7).double().expand(12, 7, 7)),
    "2 members": lambda rng: pc.Ensemble(members(2, rng), batch_dims=1),
    "4 members": lambda rng: pc.Ensemble(members(4, rng), batch_dims=1),
    "4 members jointly": lambda rng: pc.Ensemble(members(4, rng)),
    "20 members": lambda rng: pc.Ensemble(members(20, rng), batch_dims=1, shrinkage=0.5),
    "mixture": lambda rng: pc.Mixture(pc.Diagonal(normal(3, 12, 7, rng=rng), 0.5)),
    "state": lambda rng: pc.State(u=pc.Diagonal(normal(12, 7, rng=rng), 1.0)),
    "state of members": lambda rng: pc.Ensemble({"u": members(4, rng)}, batch_dims=1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_total_beyond_ten_standard_deviations_plainly_agrees(kind, rng):
    field = KINDS[kind](rng)
    law = pc.weighted_sum(ONES, torch.zeros(12).double())
    right = pc.diagnose(field, law)
    b = (right.residual + right.value).clone()
    b[3] += 10.1 * right.std[3]
    found = pc.diagnose(field, pc.weighted_sum(ONES, b))
    assert found.z_own[3] == pytest.approx(-10.1)
    assert found.answer != "agrees"
    assert not found.verdict.startswith("b agrees with the prior:")


@pytest.mark.parametrize("kind", KINDS)
def test_where_condition_warns_diagnose_has_its_doubts(kind, rng):
    field, law = KINDS[kind](rng), pc.linear(torch.eye(7).double(), 60.0)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        if isinstance(field, pc.Mixture):
            pc.condition(field.components, law)
        else:
            pc.condition(field, law)
    assert [w for w in heard if w.category is pc.ImplausibleWarning]
    assert pc.diagnose(field, law).answer != "agrees"


CASES = [(prior, totals) for prior in verdicts.PRIORS for totals in ("1 total", "12 times")]


@pytest.mark.parametrize(("prior", "totals"), [*CASES, ("20 members", "12 times jointly")])
def test_a_right_prior_hardly_ever_raises_an_alarm(prior, totals):
    world = verdicts.World("smooth", totals, prior, torch.Generator().manual_seed(5))
    alarms = verdicts.answers(world, 150)["does not agree"]
    assert alarms <= stats.binom.isf(1e-6, 150, 0.005)  # normal quantiles: 13 of 4 members


@pytest.mark.parametrize(("name", "prior"), [("factor 100", "Diagonal"), ("3 rows late", "Dense")])
def test_wrong_totals_are_found_and_their_cause_is_named(name, prior):
    world = verdicts.World("smooth", "12 times", prior, torch.Generator().manual_seed(5))
    found = verdicts.answers(world, 20, verdicts.WRONG[name])
    assert found["agrees"] == 0
    assert found["cause"] >= 15


@pytest.mark.parametrize("count", [2, 4, 30])
def test_limits_of_rows_are_quantiles_of_students_t(count):
    share = torch.tensor([0.0, 1.0]).double()
    known, members = row_limit(6, count, share, 0.005).tolist()
    assert known == pytest.approx(stats.norm.isf(0.005 / 12))
    assert members == pytest.approx(stats.t(count - 1).isf(0.005 / 12))


def test_rows_together_are_held_to_hotellings_t_squared(rng):
    field, law = pc.Ensemble(members(9, rng), batch_dims=1), uniform(3, 7, rng=rng)
    found = pc.diagnose(field, pc.linear(law, 20.0))
    rows = (3 + field.factor * math.sqrt(8) + (field.mean - 3)).numpy() @ law.T.numpy()
    for time in range(12):
        off = rows[:, time].mean(0) - 20.0
        square = off @ np.linalg.solve(np.cov(rows[:, time].T) * (1 + 1 / 9), off)
        assert float(found.mahalanobis[time]) == pytest.approx(square, rel=1e-9)
    limit = joint_limit(found.degrees_of_freedom, 9, 0.0025)
    wanted = 3 * 8 / (9 - 3) * stats.f(3, 6).isf(0.0025 / 12)
    torch.testing.assert_close(limit, torch.full((12,), wanted).double())


def test_rows_that_are_too_many_for_the_members_are_not_judged_together():
    limit = joint_limit(torch.tensor([1.0, 2.0, 3.0, 7.0]), 4, 0.005)
    assert limit.isfinite().tolist() == [True, True, False, False]
    known = joint_limit(torch.tensor([7.0]), None, 0.005)
    assert float(known) == pytest.approx(stats.chi2(7).isf(0.005))


def test_rows_that_contradict_each_other_by_the_stated_covariance_are_found_together():
    sigma = 0.99 + 0.01 * torch.eye(7).double()
    law = pc.linear(torch.eye(7), [1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0])
    found = pc.diagnose(pc.Dense(torch.zeros(7), sigma), law)
    assert found.answer == "does not agree"
    assert not found.wrong.any()
    assert "of 7 rows each may be right by itself, but not all together" in found.verdict


def test_rows_that_only_shared_errors_explain_together_are_told_from_those_that_nothing_does():
    quarters, first = torch.eye(4).double().repeat_interleave(25, 1), torch.eye(100).double()[:1]
    G = torch.cat([quarters, quarters[:1] + 0.1 * first])
    prior, off = pc.Diagonal(torch.zeros(100), 1.0), [14.5] * 4  # 2.9 of their stds of 5
    shared = pc.diagnose(prior, pc.linear(G, [*off, 14.55]))
    assert shared.answer == "agrees if shared"
    assert "Of these each may be right by itself, but not all together" in shared.verdict
    never = pc.diagnose(prior, pc.linear(G, [*off, 15.3]))  # point 0 is 8, of a std of 1
    assert never.answer == "does not agree"
    assert not (shared.wrong | never.wrong).any()


def test_errors_of_one_point_cannot_be_shared():
    prior = pc.Diagonal(torch.zeros(3, 7), 1.0)
    assert pc.diagnose(prior, pc.boundary(left=4.0)).answer == "does not agree"
    assert pc.diagnose(prior, pc.weighted_sum(ONES, 4 * math.sqrt(7))).answer == "agrees if shared"


def test_the_more_functions_are_judged_at_once_the_further_one_may_be_off():
    law = pc.weighted_sum(ONES, 3.2 * math.sqrt(7))
    for functions, answer in ((1, "agrees if shared"), (1000, "agrees")):
        b = torch.zeros(functions, 1).double()
        b[0] = law.value
        prior = pc.Diagonal(torch.zeros(functions, 1, 7), 1.0)
        assert pc.diagnose(prior, pc.weighted_sum(ONES, b)).answer == answer


def test_few_members_that_cannot_rule_out_b_say_so(rng):
    field = pc.Ensemble(members(4, rng), batch_dims=1)
    right = pc.diagnose(field, pc.weighted_sum(ONES, torch.zeros(12).double()))
    b = (right.residual + right.value).clone()
    b[3] += 11 * right.std[3]  # a t of 3 degrees of freedom, the largest of 12
    found = pc.diagnose(field, pc.weighted_sum(ONES, b))
    assert found.answer == "agrees if shared"
    assert "by the spread of 4 members" in found.verdict
    assert "So few members cannot rule it out" in found.verdict


def test_a_law_of_members_is_judged_by_them_whatever_else_a_state_has(rng):
    ensemble, law = pc.Ensemble(members(20, rng), batch_dims=1), pc.weighted_sum(ONES, 39.0, of="u")
    beside = pc.State(u=ensemble, v=pc.Diagonal(normal(12, 7, rng=rng), 1.0))
    assert pc.diagnose(ensemble, pc.weighted_sum(ONES, 39.0)).answer == "does not agree"
    assert pc.diagnose(beside, law).answer == "does not agree"
    assert pc.diagnose(beside, pc.weighted_sum(ONES, 11.0, of="v")).answer == "agrees if shared"


@pytest.mark.parametrize("wrong", ["factor", "shift", "offset", "rows"])
def test_arrays_and_tensors_have_the_same_causes(wrong):
    total = np.random.default_rng(1).uniform(5, 9, (2, 24))
    value = {
        "factor": 1000 * total,
        "shift": np.roll(total, 3, -1),
        "offset": total + 40,
        "rows": np.where(np.arange(24) == 7, 99.0, total),
    }[wrong]
    small = np.full_like(total, 1e-3)
    given = total, value, small, 1e-9 * small
    arrays, tensors = Comparison(*given, True), Comparison(*map(torch.tensor, given), True)
    assert arrays.causes()[0].kind == wrong
    assert [str(cause) for cause in arrays.causes()] == [str(cause) for cause in tensors.causes()]
