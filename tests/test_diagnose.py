import math

import numpy as np
import pytest
import torch
from oracle import KINDS, covariance, field_of, grid, matrix, normal, uniform

import probconserv as pc
from probconserv import problems

SHAPE = (3, 7)
T = torch.linspace(0, 1, 24, dtype=torch.float64)
X = torch.linspace(0, 2, 41, dtype=torch.float64)
TRUTH = (1 + 3 * T[:, None] ** 2) * (1 - X / 2) + 0.3 * (X * math.pi).sin()
TOTAL = 1 + 3 * T**2  # the integral of TRUTH


def prior(rng):
    """The truth with errors that all points of a time share, and a spread of independent points."""
    return pc.Diagonal(TRUTH + 0.01 * normal(24, 1, rng=rng), 0.01**2)


def diagnosed(total, rng):
    return pc.diagnose(prior(rng), pc.integral(X, total))


def dense(field, law):
    """G mu - b and the standard deviations of G u by dense matrices: own, full."""
    G, b, noise = matrix(law, field.shape)
    std = field.std.flatten().numpy()
    variances = np.diag(G @ covariance(field) @ G.T), (abs(G) @ std) ** 2
    return G @ field.mean.flatten().numpy() - b, [np.sqrt(v + noise) for v in variances]


LAWS = {
    "cells": lambda rng: pc.weighted_sum(uniform(7, rng=rng), normal(3, rng=rng), noise=0.2),
    "cells at times": lambda rng: pc.weighted_sum(uniform(7, rng=rng), [0.3, 0.5], times=[2, 0]),
    "cell averages": lambda rng: pc.integral(grid(8, rng), 0.4, rule="cell"),
    "some points": lambda rng: pc.integral(grid(7, rng), 0.4, where=[False] + [True] * 6),
    "rows": lambda rng: pc.linear(normal(2, 7, rng=rng), normal(3, 2, rng=rng)),
    "sparse rows": lambda rng: pc.linear(normal(2, 7, rng=rng).to_sparse(), 0.1),
    "rows over all": lambda rng: pc.linear(normal(2, 3, 7, rng=rng), 0.1),
    "smoothness": lambda rng: pc.smoothness(grid(7, rng), uniform(3, 7, rng=rng), 0.5),
    "ends": lambda rng: pc.boundary(left=1.0, right=normal(3, rng=rng)),
    "start": lambda rng: pc.initial(normal(7, rng=rng), noise=0.1),
    "periodic": lambda rng: pc.periodic(),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", [*KINDS, "mixture", "mixture of low rank", "given"])
def test_standard_deviations_are_those_of_dense_matrices(kind, law, rng):
    law = LAWS[law](rng)
    if kind == "mixture":
        field = pc.Mixture(field_of("diagonal", (4, *SHAPE), rng), uniform(4, rng=rng))
    elif kind == "mixture of low rank":
        field = pc.Mixture(field_of("low rank few 1", (4, *SHAPE), rng), event_dims=1)
    elif kind == "given":
        field = pc.condition(
            field_of("diagonal", SHAPE, rng), pc.weighted_sum([1.0] * 7, 0.0, noise=0.1)
        )
    else:
        field = field_of(kind, SHAPE, rng)
    found = pc.diagnose(field, law)
    residual, stds = dense(field, law)
    np.testing.assert_allclose(found.residual.flatten(), residual, atol=1e-12)
    for z, std in zip((found.z_own, found.z_full), stds, strict=True):
        np.testing.assert_allclose(z.flatten(), residual / std, rtol=1e-8)


def test_quadrature_counts_as_far_as_the_noise_of_the_law_does_not_cover_it(rng):
    field, x = field_of("dense 1", SHAPE, rng), grid(7, rng)
    rule = pc.diagnostics.quadrature_noise(field, x)
    weights = matrix(pc.integral(x, 0.0), SHAPE)[0]
    own = np.diag(weights @ covariance(field) @ weights.T)
    for noise in (0 * rule, rule / 2, rule, 2 * rule):
        found = pc.diagnose(field, pc.integral(x, 0.3, noise=noise))
        known = np.maximum(rule.numpy(), noise.numpy()) ** 2
        np.testing.assert_allclose(found.z_own, found.residual.numpy() / np.sqrt(own + known))
        share = (known - noise.numpy() ** 2) / (own + known)
        np.testing.assert_allclose(found.quadrature_share, share, atol=1e-12)
    some = pc.diagnose(field, pc.integral(x, 0.3, times=[2, 0]))
    every = pc.diagnose(field, pc.integral(x, 0.3))
    torch.testing.assert_close(some.z_full, every.z_full[[2, 0]])


def test_the_right_b_agrees_only_if_errors_are_shared_where_the_prior_says_they_are_not(rng):
    found = diagnosed(TOTAL, rng)
    assert found.answer == "agrees if shared"
    assert "b agrees with the prior only if the errors of many points are shared" in found.verdict
    assert f"up to {found.z_own.abs().max():.1f} standard deviations by the stated" in found.verdict
    assert f"up to {found.z_full.abs().max():.1f} if all points err together" in found.verdict
    assert found.causes == ()
    assert not found.wrong.any()


@pytest.mark.parametrize("factor", [1000, 0.001, 2.54, -1])
def test_units_that_are_off_are_named_by_their_factor(factor, rng):
    found = diagnosed(factor * TOTAL, rng)
    assert [cause.kind for cause in found.causes] == ["factor"]
    assert found.causes[0].amount == pytest.approx(factor, rel=0.01)
    assert found.wrong.all()
    text = found.verdict.split("b is about ")[1].split("what the prior says")[0]
    size = float(text[:-7]) if "times" in text else 1 / float(text[2:-4])  # 2 times, 1/2 of
    assert size == pytest.approx(factor, rel=0.01)


@pytest.mark.parametrize("rows", [1, 3, -2, -5])
def test_a_shifted_time_axis_is_named_by_its_rows(rows, rng):
    moved = 1 + 3 * (T - rows * T[1]).clamp(0, 1) ** 2
    found = diagnosed(moved, rng)
    assert found.causes[0][:2] == ("shift", rows)
    late = "late" if rows > 0 else "early"
    assert f"{abs(rows)} row{'s' * (abs(rows) > 1)} too {late} (row i of" in found.verdict


@pytest.mark.parametrize("offset", [0.4, -0.2])
def test_a_constant_offset_is_named(offset, rng):
    found = diagnosed(TOTAL + offset, rng)
    assert [cause.kind for cause in found.causes] == ["offset"]
    assert found.causes[0].amount == pytest.approx(offset, abs=0.02)
    assert f"too {'large' if offset > 0 else 'small'} in every row" in found.verdict


@pytest.mark.parametrize("rows", [[0], [7], [23], [0, 1], [2, 11, 20]])
def test_a_few_wrong_rows_are_named(rows, rng):
    total = TOTAL.clone()
    total[rows] += 0.5
    found = diagnosed(total, rng)
    assert found.wrong.nonzero().flatten().tolist() == rows
    assert [cause.kind for cause in found.causes] == ["rows"]
    assert f"{', '.join(map(str, rows))} (the others agree)" in found.verdict


def test_what_no_number_explains_is_said_to_be_so(rng):
    found = diagnosed(TOTAL.flip(0), rng)
    assert found.causes == ()
    assert "no factor, shift in time or constant explains it" in found.verdict


def test_where_the_total_moves_along_a_line_a_shift_is_an_offset():
    u = (1 + T[:, None]).expand(24, 41)
    found = pc.diagnose(pc.Diagonal(u, 1e-4), pc.integral(X, 2 * (1 + T) - 6 * T[1]))
    assert {cause.kind for cause in found.causes} == {"shift", "offset"}
    assert "; or " in found.verdict


def test_a_small_noise_of_the_law_is_held_against_b_and_a_large_one_is_not(rng):
    for noise, wrong in ((0.001, True), (1.0, False)):
        found = pc.diagnose(prior(rng), pc.integral(X, TOTAL + 0.5, noise=noise))
        assert bool(found.wrong.all()) is wrong


def test_a_prior_without_spread_takes_only_its_own_total():
    total = torch.trapezoid(TRUTH, X)
    exact = pc.diagnose(pc.Diagonal(TRUTH, 0.0), pc.integral(X, total, rule="trapezoid"))
    assert not exact.wrong.any()
    assert exact.z_full.abs().max() == 0
    edges = torch.linspace(0, 2, 42, dtype=torch.float64)
    law = pc.integral(edges, TRUTH.sum(-1) * 2 / 41, rule="cell")
    law.value[5] += 1e-3
    found = pc.diagnose(pc.Diagonal(TRUTH, 0.0), law)
    assert found.wrong.nonzero().flatten().tolist() == [5]
    assert found.z_full[5] == -math.inf
    assert not found.z_full[:5].any()


def test_a_batch_has_one_cause_and_rows_of_each_function(rng):
    field = pc.Diagonal(TRUTH * uniform(2, 3, 1, 1, rng=rng), 1e-6)
    total = torch.trapezoid(field.mean, X)
    found = pc.diagnose(field, pc.integral(X, 60 * total))
    assert found.residual.shape == found.wrong.shape == (2, 3, 24)
    assert (found.causes[0].kind, round(found.causes[0].amount)) == ("factor", 60)
    total[1, 2, 9] += 0.3
    found = pc.diagnose(field, pc.integral(X, total))
    assert "in 1 of 144 rows: check row (1, 2, 9) (the others agree)" in found.verdict
    one = pc.diagnose((field.mean[1, 2], 1e-6), pc.integral(X, total[1, 2]))
    torch.testing.assert_close(one.z_full, found.z_full[1, 2])


def test_many_wrong_rows_are_counted():
    total = torch.trapezoid(TRUTH, X).repeat(4, 1)
    total[1, ::2] += torch.arange(1, 13)
    found = pc.diagnose(pc.Diagonal(TRUTH.expand(4, 24, 41), 1e-6), pc.integral(X, total))
    assert "(1, 14) and 4 more (the others agree)" in found.verdict


def test_one_row_has_no_cause():
    found = pc.diagnose(pc.Diagonal(TRUTH[0], 1e-6), pc.integral(X, 7.0))
    assert found.wrong.shape == ()
    assert "in 1 of 1 row: no factor" in found.verdict
    assert "\n| 0 | 1 | 7 | -6 |" in found.table()


def test_the_verdict_speaks_of_quadrature_where_it_matters_or_is_not_known(rng):
    step = (X < 0.7).double().expand(3, 41)
    verdict = pc.diagnose(pc.Diagonal(step, 1e-8), pc.integral(X, 0.7)).verdict
    assert "100% of the variance" in verdict
    assert "`noise=diagnostics.quadrature_noise(prior, x)`" in verdict
    law = pc.integral(X, 0.7, noise=pc.diagnostics.quadrature_noise((step, 1e-8), X))
    assert pc.diagnose((step, 1e-8), law).verdict.endswith("standard deviations.")
    assert "is not known" in pc.diagnose((step, 0.1), pc.boundary(left=1.0)).verdict


def test_the_table_has_the_worst_rows_in_their_order(rng):
    total = TOTAL.clone()
    total[[4, 17]] += 0.5
    lines = diagnosed(total, rng).table(rows=2).split("\n")
    assert lines[0].startswith("| row | G mu | b | G mu - b | z own | z full |")
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| 4", "| 17"]
    assert all(line.endswith("| wrong |") for line in lines[2:])
    assert len(diagnosed(total, rng).table().split("\n")) == 22
    assert "| unknown |" in pc.diagnose(prior(rng), pc.boundary(left=1.0)).table()


@pytest.mark.parametrize("problem", ["diffusion", "pme", "stefan", "advection", "burgers"])
@pytest.mark.parametrize("recipe", ["modern", "paper"])
def test_the_right_total_of_every_trained_network_agrees(problem, recipe):
    kind = problems.find(problem)
    functions = pc.data.draw(kind, "validation", 4, (10, 10), seed=3)
    t, x = kind.grid(9, 101)
    network = pc.models.load(problem, recipe=recipe)
    parts = network.predict(tuple(functions.context), (t, x), 3, torch.Generator().manual_seed(0))
    total = functions.problem[:, None].total(t)
    assert not pc.diagnose(pc.Mixture(parts), pc.integral(x, total)).wrong.any()
    if problem != "diffusion":  # whose total is 0
        found = pc.diagnose(pc.Mixture(parts), pc.integral(x, 1000 * total))
        assert found.causes[0].kind == "factor"
        assert found.causes[0].amount == pytest.approx(1000, rel=0.2)


def test_what_cannot_be_diagnosed_is_refused(rng):
    law = pc.integral(X, TOTAL)
    broken = pc.Diagonal._unchecked(TRUTH * torch.nan, TRUTH.abs())
    for call, message in (
        (lambda: pc.diagnose(prior(rng), TOTAL), "`laws?` must be a law .* got Tensor"),
        (lambda: pc.diagnose({}, law), "`prediction` of type dict is not a field"),
        (lambda: pc.diagnose(broken, law), "`mean of the prior` must be finite; 984 of its 984"),
        (
            lambda: pc.diagnose(pc.Diagonal._unchecked(TRUTH, broken.mean), law),
            "`variance of the prior` must be finite",
        ),
        (lambda: pc.diagnose((TRUTH[:, :9], 1.0), law), r"`integral`.* \(41,\)"),
        (lambda: pc.diagnose((TRUTH[:5], 1.0), law), r"`value` of shape \(24,\) .*`integral`"),
        (lambda: diagnosed(TOTAL, rng).table(0), "`rows` must be a positive whole number, got 0"),
    ):
        with pytest.raises(pc.errors.InputError, match=message):
            call()


@pytest.mark.parametrize("shared", [False, True])
def test_a_state_is_judged_as_its_fields_side_by_side(rng, shared):
    members = {"u": normal(6, 4, 5, rng=rng), "v": normal(6, 4, 3, rng=rng)}
    side = torch.cat([*members.values()], -1)
    if shared:
        state, whole = (
            pc.Ensemble(members, batch_dims=1, shrinkage=0.2),
            pc.Ensemble(side, batch_dims=1, shrinkage=0.2),
        )
    else:
        state = pc.State(**{name: (x.mean(0), x.var(0)) for name, x in members.items()})
        whole = pc.Diagonal(side.mean(0), side.var(0))
    weights = {"u": uniform(5, rng=rng), "v": uniform(3, rng=rng)}
    total = normal(4, rng=rng)
    one = pc.diagnose(state, pc.weighted_sum(weights, total))
    other = pc.diagnose(whole, pc.weighted_sum(torch.cat([*weights.values()]), total))
    for name in ("residual", "limit", "z_own", "z_full", "mahalanobis"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name))
    assert one.verdict == other.verdict
    assert one.largest_move == pytest.approx(other.largest_move)


def test_a_law_of_one_field_of_a_state_is_judged_by_that_field(rng):
    other = pc.Diagonal(normal(24, 3, rng=rng), 1.0)
    state, law = pc.State(u=prior(rng), v=other), pc.integral(X, 1000 * TOTAL, of="u")
    found = pc.diagnose(state, law)
    assert found.verdict == pc.diagnose(state["u"], pc.integral(X, 1000 * TOTAL)).verdict
    assert found.causes[0].amount == pytest.approx(1000, rel=0.02)
    with pytest.raises(pc.errors.InputError, match="`prior` must be a state before `condition`"):
        pc.diagnose(pc.condition(state, pc.integral(X, TOTAL, of="u")), law)


def test_what_float32_rounds_is_no_disagreement(rng):
    values = uniform(4, 1000, rng=rng).float()
    sure = pc.Diagonal(values, torch.zeros_like(values))
    found = pc.diagnose(sure, pc.weighted_sum([1.0] * 1000, values.sum(-1)))  # added up in float32
    assert not found.wrong.any()
    assert "agrees" in found.verdict


@pytest.mark.parametrize(("own", "joint"), [(1, 1), (1, 2), (2, 2)])
def test_a_mixture_of_directions_is_judged_without_its_dense_covariance(
    own, joint, rng, monkeypatch
):
    parts = pc.LowRank(
        normal(4, *SHAPE, rng=rng), normal(2, 4, *SHAPE, rng=rng), uniform(4, *SHAPE, rng=rng), own
    )
    mixture = pc.Mixture(parts, uniform(4, rng=rng), joint)
    law = pc.linear(normal(2, 7, rng=rng), normal(3, 2, rng=rng), noise=0.3)
    dense = pc.diagnose(pc.Dense(mixture.mean, mixture.covariance(), joint), law)
    monkeypatch.delattr(pc.fields.Field, "covariance")
    found = pc.diagnose(mixture, law)
    for name in ("limit", "z_own", "z_full", "mahalanobis", "degrees_of_freedom"):
        torch.testing.assert_close(getattr(found, name), getattr(dense, name))
