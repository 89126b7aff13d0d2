"""Rollouts: intervals that hold what they say at every step, laws that hold in every member."""

import math

import numpy as np
import pytest
import torch
from seeds import generator

import probconserv as pc
from probconserv.diagnostics import StepErrors
from probconserv.errors import InfeasibleError, InputError

D = torch.float64
N = 16
X = torch.arange(N, dtype=D) / N
START = 1 + 0.5 * torch.sin(2 * math.pi * X)
TOTAL = pc.weighted_sum([1.0] * N, float(START.sum()))


def normal(*shape, rng=None):
    return torch.randn(*shape, generator=rng or generator(), dtype=D)


def smooth(*shape, rng):
    """Errors of 0.05 that go together over a few points."""
    e = normal(*shape, N, rng=rng)
    return 0.05 * (e + e.roll(1, -1) + e.roll(2, -1)) / math.sqrt(3)


def lasting(n, steps, c, p, rng):
    """Those of steps in a row: correlation p + (1 - p) c^h."""
    always, e = smooth(n, rng=rng), smooth(n, rng=rng)
    found = []
    for _ in range(steps):
        found.append(math.sqrt(p) * always + math.sqrt(1 - p) * e)
        e = c * e + math.sqrt(1 - c * c) * smooth(n, rng=rng)
    return torch.stack(found, 1)


def model(u):
    return 0.98 * u.roll(1, -1)


def truth(errors, start=START, keep=False):
    """States after errors; keep: with the total that they had, by the errors' covariance."""
    states = [start.expand(len(errors), N)]
    gain = torch.full((N,), 1 / N, dtype=D)  # the sum of 3 neighbours is a ring: alike everywhere
    for k in range(errors.shape[1]):
        u = model(states[-1]) + errors[:, k]
        states.append(u - gain * (u.sum(-1) - start.sum())[:, None] if keep else u)
    return torch.stack(states, 1)


def coverage(run, states):
    low, high = run.field().interval(0.9)
    return ((states >= low) & (states <= high)).double().mean((0, 2))


@pytest.mark.parametrize(("c", "p"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.4)])
@pytest.mark.parametrize("keep", [False, True])
def test_intervals_hold_what_they_say_at_every_step(c, p, keep):
    rng, n, steps = generator(1), 200, 60
    errors = StepErrors.learned(model, truth(lasting(200, 20, c, p, rng), keep=keep))
    states = truth(lasting(n, steps, c, p, rng), keep=keep)
    laws = TOTAL if keep else ()
    start = START.expand(n, N)
    run = pc.rollout(model, start, laws, steps, errors=errors, batch_dims=1, generator=rng)
    assert all(0.85 < float(coverage(run, states)[k]) < 0.95 for k in (1, 10, 60))


def test_without_steps_in_a_row_intervals_beyond_the_first_step_are_too_narrow():
    rng = generator(2)
    states = truth(lasting(150, 20, 0.9, 0.0, rng))
    alone = states.unfold(1, 2, 1).movedim(-1, 2).flatten(0, 1)[::5]  # (n, 2, N): pairs
    errors = StepErrors.learned(model, alone)
    start = START.expand(150, N)
    run = pc.rollout(model, start, (), 20, errors=errors, batch_dims=1, generator=rng)
    assert float(coverage(run, states)[1]) > 0.85
    assert float(coverage(run, states)[20]) < 0.8


def test_members_spread_as_the_closed_form_says():
    """u_k = a u_{k-1} + e_k with errors of correlation c: the variance is a double sum."""
    rng, c, a, steps = generator(3), 0.8, 0.95, 12
    errors = StepErrors(lasting(600, 20, c, 0.0, rng))
    run = pc.rollout(lambda u: a * u, START, (), steps, members=2000, errors=errors, generator=rng)
    each = range(steps)
    wanted = 0.05**2 * sum(a ** (i + j) * c ** abs(i - j) for i in each for j in each)
    found = run.members[:, -1].var(0).mean()
    assert float(found) == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize(("c", "p"), [(0.0, 0.0), (0.8, 0.0), (0.0, 0.5), (0.6, 0.3)])
def test_how_long_errors_last_is_found(c, p):
    errors = StepErrors(lasting(300, 12, c, p, generator(4)) + 0.3)
    lags = torch.arange(1, 12)
    found = errors.lasting + (1 - errors.lasting) * errors.persistence**lags
    torch.testing.assert_close(found.to(D), (p + (1 - p) * c**lags).to(D), atol=0.06, rtol=0)
    assert errors.growth(3) == pytest.approx(3 + 4 * float(found[0]) + 2 * float(found[1]), rel=0.1)
    assert 0.87 < errors.held_out[0] < 0.93
    assert 0.85 < errors.held_out[1] < 0.95


@pytest.mark.parametrize("many", [9, 300])
def test_errors_are_drawn_with_the_mean_and_the_covariance_of_the_residuals(many):
    residuals = lasting(many, 2, 0.0, 0.0, generator(5)) + X
    errors, flat = StepErrors(residuals), residuals.flatten(0, 1)
    numbers = errors._normals((40000,), generator(6))
    drawn = errors._of(numbers, (START.expand(40000, N),))[0]
    torch.testing.assert_close(drawn.mean(0), flat.mean(0), atol=2e-3, rtol=0)
    torch.testing.assert_close(drawn.T.cov(), flat.T.cov(), atol=1.5e-4, rtol=0)


def test_without_bias_the_mean_counts_as_spread():
    residuals = 0.2 + 0.1 * normal(400, 1, N, rng=generator(7))
    errors = StepErrors(residuals, bias=False)
    drawn = errors._of(errors._normals((20000,), generator(8)), (START.expand(20000, N),))[0]
    assert float(drawn.mean().abs()) < 5e-3
    assert float(drawn.std()) == pytest.approx(math.hypot(0.2, 0.1), rel=0.03)


def test_errors_in_proportion_to_the_state_grow_with_it():
    rng = generator(9)
    before = 1 + normal(200, 1, N, rng=rng).abs()
    both = torch.cat([before, before * (1 + 0.1 * normal(200, 1, N, rng=rng))], 1)
    for relative in ("field", "point"):
        errors = StepErrors.learned(lambda u: u, both, relative=relative)
        u = torch.stack([START, 100 * START])
        drawn = errors._of(errors._normals((4000, 2), rng), (u.expand(4000, 2, N),))[0]
        ratio = drawn[:, 1].std() / drawn[:, 0].std()
        assert float(ratio) == pytest.approx(100, rel=0.02)
        assert float((errors._about((u,)).variance[1] / u[1] ** 2).mean()) > 0.005


def test_residuals_on_a_ring_are_as_likely_anywhere():
    one = StepErrors(lasting(4, 2, 0.0, 0.0, generator(10)), periodic=-1)
    about = one._about((START,))
    wanted = sum(about.covariance().roll((s, s), (0, 1)) for s in range(N)) / N
    torch.testing.assert_close(about.covariance(), wanted, atol=1e-12, rtol=0)
    assert not bool(one.bias[0].diff().any())


LAWS = {
    "linear": [TOTAL],
    "two": [TOTAL, pc.weighted_sum([1.0, 0.0] * 8, 8.0)],
    "nonlinear": [TOTAL, pc.nonlinear(lambda u: u.square().sum(), float(START.square().sum()))],
    "bounds": [TOTAL, pc.bounds(low=0.45, high=1.6)],
    "limit": [pc.at_most(pc.nonlinear(lambda u: u.square().sum(), 15.0)), pc.bounds(low=0.4)],
    "order": [TOTAL, pc.at_least(pc.weighted_sum([1.0] * 8 + [0.0] * 8, 10.0))],
}


def broken(law, u):
    """By how much members break it; of bounds as they stand above."""
    if law.kind == "linear" or law.kind == "nonlinear":
        return law.residual(u).abs()
    if law.side:
        return (-law.side * law.law.residual(u)).clamp_min(0)
    high = torch.inf if law.high is None else law.high
    return torch.maximum(law.low - u, u - high).clamp_min(0)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("learned", [True, False])
def test_every_member_obeys_at_every_step(name, learned):
    rng, steps = generator(11), 4
    errors = StepErrors(lasting(30, 5, 0.5, 0.0, rng)) if learned else None
    start = START if learned else pc.Ensemble(START + smooth(16, rng=rng))
    members = 16 if learned else None
    run = pc.rollout(model, start, LAWS[name], steps, members=members, errors=errors, generator=rng)
    assert run.members.shape == (16, steps + 1, N)
    assert run.stopped == ""
    assert run.left_out == ()
    for law in LAWS[name]:
        for member in run.members[:, 1:].flatten(0, 1):
            assert float(broken(law, member).max()) < 1e-10


def test_a_state_of_two_fields_obeys_a_law_of_both():
    rng, steps = generator(12), 3
    mass = pc.linear({"h": [[1.0] * N], "q": [[1.0] * 3]}, 19.5)
    energy = pc.nonlinear(lambda s: s["h"].square().sum() + s["q"].square().sum(), 22.25)
    residuals = {"h": lasting(30, 5, 0.0, 0.0, rng), "q": 0.1 * normal(30, 5, 3, rng=rng)}
    start = {"h": START, "q": torch.tensor([1.0, 1.5, 1.0], dtype=D)}
    run = pc.rollout(
        lambda s: {"q": 0.9 * s["q"], "h": model(s["h"])},
        start, [mass, energy, pc.bounds(low=0.1, of="h")], steps,
        errors=StepErrors(residuals), members=5, generator=rng,
    )  # fmt: skip
    h, q = run.members["h"][:, 1:], run.members["q"][:, 1:]
    assert float((h.sum(-1) + q.sum(-1) - 19.5).abs().max()) < 1e-11
    assert float((h.square().sum(-1) + q.square().sum(-1) - 22.25).abs().max()) < 1e-10
    assert float(h.min()) >= 0.1
    assert run.field()["q"].interval(0.9)[0].shape == (steps + 1, 3)
    assert run.field(2)["h"].shape == (N,)


def test_laws_at_every_third_step_leave_the_others_alone():
    run = pc.rollout(lambda u: 0.9 * u, START, TOTAL, 7, every=3)
    totals, full = run.members[0].sum(-1), float(START.sum())
    wanted = [full * 0.9 ** (k % 3) for k in range(8)]
    np.testing.assert_allclose(totals, wanted, rtol=1e-12)
    assert [row.moved[""] > 0 for row in run.ledger] == [k in (3, 6) for k in range(8)]


def test_a_source_that_depends_on_each_member_is_its_own_law():
    """Every member keeps its own total but for what it loses: 1 % of its first value."""
    rng = generator(13)
    start = pc.Ensemble(START + 0.1 * normal(6, 1, rng=rng) + smooth(6, rng=rng))

    def laws(number, u):
        return pc.weighted_sum([1.0] * N, u.sum(-1) - 0.01 * u[:, 0] + 0.5 * (number == 2))

    run = pc.rollout(model, start, laws, 4, generator=rng)
    total, first = run.members.sum(-1), run.members[..., 0]
    for k in range(1, 5):
        wanted = total[:, k - 1] - 0.01 * first[:, k - 1] + 0.5 * (k == 2)
        torch.testing.assert_close(total[:, k], wanted)
    assert float(total[:, -1].std()) > 0.05


def test_a_law_with_noise_is_met_up_to_draws_of_it():
    rng = generator(14)
    loose = 1e3 * normal(40, 1, N, rng=rng)
    for law in (
        pc.weighted_sum([1.0] * N, 3.0, noise=0.5),
        pc.nonlinear(lambda u: u.sum(), 3.0, noise=0.5),
    ):
        run = pc.rollout(
            model, START, law, 1, members=400, errors=StepErrors(loose, bias=False), generator=rng
        )
        total = run.members[:, 1].sum(-1)
        assert float(total.mean()) == pytest.approx(3.0, abs=0.1)
        assert float(total.std()) == pytest.approx(0.5, rel=0.15)


def test_the_ledger_has_the_sums_by_hand():
    rng = generator(15)
    start = START + smooth(5, rng=rng)
    run = pc.rollout(lambda u: 0.9 * u, pc.Ensemble(start), TOTAL, 1)
    missed = 0.9 * start.sum(-1) - START.sum()
    _, row = run.ledger
    assert row.missed["weighted_sum"] == pytest.approx(float(missed.abs().mean()))
    assert row.worst["weighted_sum"] == pytest.approx(float(missed.abs().max()))
    assert abs(row.left["weighted_sum"]) < 1e-13
    moves = run.members[:, 1] - 0.9 * start
    assert row.moved[""] == pytest.approx(float(moves.square().mean().sqrt()))
    assert row.members == 5
    lines = run.table().splitlines()
    assert len(lines) == 4
    assert "weighted_sum: missed" in lines[0]
    assert f"{row.moved['']:.3g}" in lines[-1]


def test_the_ledger_counts_in_standard_deviations_of_the_errors_since_the_last_correction():
    errors = StepErrors(0.1 * normal(5000, 1, N, rng=generator(16)), bias=False)
    run = pc.rollout(
        lambda u: u + 0.01, START, TOTAL, 4, every=4, errors=errors, generator=generator(17)
    )
    row = run.ledger[-1]
    assert row.deviations == pytest.approx(row.moved[""] / (0.1 * math.sqrt(4)), rel=0.05)
    assert math.isnan(pc.rollout(model, START, TOTAL, 1).ledger[1].deviations)


def test_a_member_that_blows_up_is_left_out_and_two_must_remain():
    members = torch.stack([START, START * 1.01, START * 1.02, START * 3])

    def step(u):
        return torch.where(u.amax(-1, keepdim=True) > 4, u * 1e3, u)

    with pytest.warns(pc.ImplausibleWarning, match=r"step 1: member 3 is not plausible: beyond"):
        run = pc.rollout(step, pc.Ensemble(members), (), 3)
    assert run.members[3, 1:].isnan().all()
    assert run.members[:3].isfinite().all()
    assert [row.members for row in run.ledger] == [4, 3, 3, 3]
    assert run.field().factor.shape == (3, 4, N)
    assert run.field(0).count == 4

    def diverges(u):
        return torch.where(u > 5, torch.nan, 1.4 * u)

    with pytest.warns(pc.ImplausibleWarning, match="the rollout stopped at step 5: 0 of 4"):
        run = pc.rollout(diverges, pc.Ensemble(members), (), 9)
    assert run.steps == 4
    assert run.members.shape == (4, 5, N)
    assert run.stopped == "step 5: 0 of 4 members are left"
    assert run.left_out[0].startswith("step 2: member 3 is not finite")


def test_of_several_solutions_a_member_is_left_out_where_it_is_lost():
    members = START + 0.1 * smooth(5, 3, rng=generator(18))
    members[1, 2] += 1
    with pytest.warns(
        pc.ImplausibleWarning, match=r"step 2: member \(1, 2\) is not plausible: beyond what"
    ):
        run = pc.rollout(
            lambda u: 1.1 * u, pc.Ensemble(members, batch_dims=1), (), 3, batch_dims=1,
            plausible=lambda u: u.amax(-1) < 2.9,
        )  # fmt: skip
    left = run.members[:, :, -1].isfinite().all(-1)
    assert left.sum() == 14
    assert not left[1, 2]
    field = run.field()
    assert field.factor.shape == (4, 3, 4, N)
    torch.testing.assert_close(field.mean[2, 3], 1.331 * members[[0, 2, 3, 4], 2].mean(0))


def test_laws_that_can_no_longer_be_met_stop_it_and_at_once_are_an_error():
    bounds = pc.bounds(low=0.0, high=1.0)
    with pytest.raises(InfeasibleError):
        pc.rollout(model, START, [TOTAL, pc.bounds(high=0.5)], 3)

    def laws(number, _):
        return pc.weighted_sum([1.0] * N, 5.0 * number), bounds

    with pytest.warns(pc.ImplausibleWarning, match="stopped at step 4: "):
        run = pc.rollout(model, START / 2, laws, 6)
    assert run.steps == 3
    assert "step 4" in run.stopped


def test_a_law_that_moves_far_warns_once():
    errors = StepErrors(0.01 * normal(50, 2, N, rng=generator(19)))
    with pytest.warns(pc.ImplausibleWarning, match="standard deviations in a step") as seen:
        pc.rollout(lambda u: 0.5 * u, START, TOTAL, 3, errors=errors, generator=generator(20))
    assert len(seen) == 1


ONES = [1.0, 1.0, 1.0]


def said(*given, **named):
    """The rollout, and the warnings in words."""
    with pytest.warns(pc.ImplausibleWarning) as seen:
        run = pc.rollout(*given, **named)
    return run, [str(one.message) for one in seen]


@pytest.mark.parametrize("kind", ["linear", "nonlinear"])
def test_a_start_that_does_not_obey_is_said_and_so_is_a_move_without_spread(kind):
    law = pc.weighted_sum(ONES, 3000.0)
    if kind == "nonlinear":
        law = pc.nonlinear(lambda u: u.sum(), 3000.0)
    run, words = said(lambda u: 0.9 * u, ONES, law, 1)
    start, last, moved = words
    wanted = f"the start does not obey `{law.label}`: it has 3, the law says 3000, so it is off by"
    assert start.startswith(wanted)
    assert last == "at the last step the laws moved member 0 beyond the field from -9 to 11"
    assert "by 1.11e+03 times the largest number of its field" in moved
    assert run.ledger[1].moved[""] == pytest.approx(999.1)


def test_the_laws_are_named_where_they_moved_a_member_out_of_range():
    run, words = said(lambda u: 0.9 * u, ONES, pc.weighted_sum(ONES, 3000.0), 3)
    assert len(words) == 3
    text = "not plausible: the laws at step 1 moved it beyond the field from -9 to 11"
    assert run.left_out == (f"step 2: member 0 is {text}",)
    assert text in words[1]
    blow = lambda u: torch.where(u > 100, torch.inf, u)  # noqa: E731
    run, _ = said(blow, ONES, pc.weighted_sum(ONES, 3000.0), 3)
    assert "is not finite: before this step the laws at step 1 moved it beyond" in run.left_out[0]
    run, words = said(lambda u: 20 * u, ONES, (), 3)
    assert run.left_out == ("step 1: member 0 is not plausible: beyond the field from -9 to 11",)
    assert len(words) == 1
    run, words = said(lambda u: u, ONES, (), 1, plausible=lambda u: u.amax(-1) < 0)
    assert "it started beyond what `plausible` allows" in words[0]


def test_all_warnings_that_apply_are_given():
    errors = StepErrors(0.04 * normal(50, 2, 8, rng=generator(30)))
    law = pc.weighted_sum([1.0] * 8, 4.0)
    _, words = said(
        lambda u: u, [1.0] * 8, law, 5, members=20, errors=errors, generator=generator(31)
    )
    assert "it has 8, the law says 4, so it is off by 4" in words[0]
    assert "the laws at step 1 moved it beyond" in words[1]
    assert "standard deviations in a step" in words[-1]


def test_a_law_of_a_step_that_is_far_too_large_is_said_without_spread():
    law = lambda number, _: pc.weighted_sum(ONES, 3.0 + 12 * (number == 2))  # noqa: E731
    _, (words,) = said(lambda u: 0.9 * u, ONES, law, 4)
    assert "laws moved a point by 4.56 times the largest number of its field" in words


def test_a_start_obeys_up_to_rounding_and_members_around_a_law_do():
    single = (1e4 + 100 * normal(4000, rng=generator(32))).float()
    pc.rollout(lambda u: u, single, pc.weighted_sum([1.0] * 4000, float(single.sum())), 1)
    flat = pc.nonlinear(lambda u: u.sum(), 0.0)  # its terms are not small, but their sum is
    pc.rollout(lambda u: u, torch.tensor([0.1, 0.2, -0.3]), flat, 1)
    members = START + smooth(8, rng=generator(33))
    pc.rollout(model, pc.Ensemble(members), TOTAL, 1)
    _, words = said(model, pc.Ensemble(members + 1), TOTAL, 1)
    assert words[0].startswith("the start does not obey")
    loose = pc.weighted_sum([1.0] * N, 18.0, noise=1.0)
    pc.rollout(model, START, loose, 1, generator=generator(34))


def test_of_several_solutions_the_worst_row_of_a_start_is_given():
    start = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=D)
    _, words = said(lambda u: u, start, pc.weighted_sum([1.0, 1.0], [3.0, 9.0]), 1, batch_dims=1)
    assert "`weighted_sum` in 1 of 2 rows, at worst: it has 7, the law says 9" in words[0]


def test_without_a_generator_the_seed_of_torch_counts():
    errors = StepErrors(lasting(20, 5, 0.5, 0.2, generator(35)))
    found = []
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            found.append(pc.rollout(model, START, TOTAL, 2, errors=errors).members)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_solutions_side_by_side_are_those_one_by_one():
    rng = generator(21)
    members = START + 0.1 * normal(6, 3, 1, rng=rng) + smooth(6, 3, rng=rng)
    value = torch.tensor([15.0, 16.0, 17.0], dtype=D)
    energy = torch.tensor([18.0, 19.0, 20.0], dtype=D)

    def laws(i, dims):
        curved = pc.nonlinear(lambda u: u.square().sum(), energy[i], batch_dims=dims)
        return pc.weighted_sum([1.0] * N, value[i]), curved

    prior = pc.Ensemble(members, batch_dims=1)
    every = pc.rollout(model, prior, laws(slice(None), 1), 3, batch_dims=1)
    for i in range(3):
        one = pc.rollout(model, pc.Ensemble(members[:, i]), laws(i, 0), 3)
        torch.testing.assert_close(every.members[:, i], one.members, atol=1e-9, rtol=1e-9)


def test_a_step_may_return_numpy_and_change_what_it_gets():
    def step(u):
        u *= 0.98
        return np.roll(u.numpy(), 1, -1)

    start = START.clone()
    run = pc.rollout(step, start, TOTAL, 3)
    torch.testing.assert_close(run.members, pc.rollout(model, START, TOTAL, 3).members)
    assert torch.equal(start, START)


def test_members_that_are_all_the_same_are_moved_as_project_does():
    run = pc.rollout(model, START, TOTAL, 2, members=3)
    assert torch.equal(run.members[0], run.members[2])
    wanted = pc.project(pc.Diagonal(model(START), 1.0), TOTAL).mean
    torch.testing.assert_close(run.members[1, 1], wanted)


def test_the_same_generator_gives_the_same_rollout_in_float32_too():
    errors = StepErrors(lasting(20, 5, 0.5, 0.2, generator(22)))
    first, again = (
        pc.rollout(model, START.float(), TOTAL, 3, errors=errors, generator=generator(23))
        for _ in range(2)
    )
    assert first.members.dtype == torch.float32
    assert torch.equal(first.members, again.members)
    assert float(TOTAL.residual(first.members).abs().max()) < 1e-5


def test_a_start_may_be_an_ensemble_given_laws_draws_or_a_field():
    members = START + smooth(6, rng=generator(24))
    post = pc.condition(pc.Ensemble(members), TOTAL)
    torch.testing.assert_close(pc.rollout(model, post, (), 1).members[:, 0], post.members())
    drawn = pc.rollout(model, pc.Diagonal(START, 0.01), (), 1, generator=generator(25))
    assert drawn.members.shape == (20, 2, N)
    both = pc.Ensemble({"u": members, "v": members[:, :3]})
    assert pc.rollout(lambda s: s, both, (), 1).members["v"].shape == (6, 2, 3)


def test_members_of_a_state_are_moved_together():
    members = START + smooth(6, rng=generator(26))
    both = pc.Ensemble({"u": members, "v": members[:, :3]}, shrinkage=0.0)
    total = pc.linear({"u": [[1.0] * N], "v": [[2.0] * 3]}, 25.0)
    joined = pc.Ensemble(torch.cat([members, members[:, :3]], -1), shrinkage=0.0)
    wanted = pc.condition(joined, pc.weighted_sum([1.0] * N + [2.0] * 3, 25.0)).members()
    found = pc.condition(both, total)
    torch.testing.assert_close(torch.cat([*found.members().values()], -1), wanted)
    torch.testing.assert_close(found["v"].members(), wanted[:, N:])
    curved = pc.nonlinear(lambda s: s["u"].square().sum() + s["v"].sum(), 25.0)
    for more in ([curved], [curved, pc.bounds(low=0.0, of="u")]):
        moved = pc.condition(both, *more, draws=0).members()
        off = moved["u"].square().sum(-1) + moved["v"].sum(-1) - 25.0
        assert float(off.abs().max()) < 1e-10


def test_errors_are_kept_in_a_file(tmp_path):
    states = {"u": truth(lasting(20, 5, 0.5, 0.0, generator(27)))}
    errors = StepErrors.learned(lambda s: {"u": model(s["u"])}, states, relative="field")
    errors.save(tmp_path / "errors.safetensors")
    again = StepErrors.load(tmp_path / "errors.safetensors")
    assert repr(again) == repr(errors)
    assert again.relative == "field"
    numbers = errors._normals((3,), generator(28))
    u = (START.expand(3, N),)
    assert torch.equal(again._of(numbers, u)[0], errors._of(numbers, u)[0])
    assert torch.equal(again.extent[0], torch.stack(states["u"].aminmax()))


ERRORS = StepErrors(normal(5, 2, N))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"step": 3}, "`step` must be a function, got int"),
        (
            {"step": lambda u: u[..., :-1]},
            r"`step` must return what it gets, .*returned \(20, 15\)",
        ),
        ({"step": lambda u: {"u": u}}, r"`step` must return what it gets"),
        ({"state": 1.0}, "`state` must have an axis of points"),
        ({"state": {}}, "`state` must be an array, or arrays by the names"),
        ({"state": START * torch.nan}, "`state` must be finite"),
        ({"state": pc.State(u=(START, 1.0))}, "`state` is a `State` that is no ensemble"),
        ({"state": START[:5]}, r"`errors` are those of states of shape .*16.*but `state`.*5"),
        ({"state": pc.Ensemble(normal(4, N)), "members": 3}, "`members` is 3, but `state`.* of 4"),
        ({"members": 0}, "`members` must be a positive whole number"),
        ({"steps": 0}, "`steps` must be a positive whole number"),
        ({"every": 0}, "`every` must be a positive whole number"),
        ({"batch_dims": 1}, "`batch_dims` must leave an axis of the state"),
        (
            {
                "state": START.expand(3, N),
                "batch_dims": 1,
                "laws": pc.weighted_sum(np.ones((3, N)), 1),
            },
            "`batch_dims` is 1, but a row of `weighted_sum` reads several solutions",
        ),
        ({"errors": 0.1}, "`errors` must be `StepErrors`, got float"),
        ({"laws": 3.0}, "`laws` must be laws such as `integral`.* got float"),
        ({"laws": pc.monotone(axis=0)}, "`axis` of `monotone` must count from the last"),
        ({"plausible": 3.0}, "`plausible` must be a function"),
        ({"plausible": lambda u: u}, "`plausible` must return True or False for each member"),
        ({"generator": 3}, "`generator` must be a torch.Generator"),
    ],
)
def test_what_rollout_refuses(change, text):
    given = {"step": model, "state": START, "laws": (), "steps": 1, "errors": ERRORS}
    with pytest.raises(InputError, match=text):
        pc.rollout(**{"generator": generator(), **given, **change})


@pytest.mark.parametrize(
    ("given", "named", "text"),
    [
        (normal(5, N), {}, r"`residuals` must have the axes \(n, T, ...\)"),
        (normal(1, 1, N), {}, "at least two steps"),
        (normal(5, 1, N) * torch.inf, {}, "`residuals` must be finite"),
        ({"u": normal(5, 1, N), "v": normal(4, 1, 3)}, {}, "the same for all fields"),
        (normal(5, 1, N), {"bias": 1}, "`bias` must be True or False"),
        (normal(5, 1, N), {"relative": "points"}, "`relative` must be one of .* mean 'point'"),
        (normal(5, 1, N), {"periodic": 0}, "`periodic` must be axes of a state"),
        (normal(5, 1, N), {"periodic": (-1, -2)}, "`periodic` must be axes of a state"),
        ({"u": normal(5, 1, 4), "v": normal(5, 1, 3)}, {"periodic": -1}, "of the same size"),
    ],
)
def test_what_step_errors_refuse(given, named, text):
    with pytest.raises(InputError, match=text):
        StepErrors(given, **named)


def test_what_learning_and_reading_refuse():
    with pytest.raises(InputError, match=r"`truth` must have the axes \(n, T \+ 1, ...\)"):
        StepErrors.learned(model, normal(5, 1, N))
    run = pc.rollout(model, START, (), 2)
    with pytest.raises(InputError, match="`members`: 1 of 1 are left, and an ensemble takes two"):
        run.field()
    with pytest.raises(InputError, match="`step` must be from 0 to 2, got 3"):
        run.field(3)
    with pytest.raises(InputError, match="`members` are those of an ensemble"):
        pc.condition(pc.State(u=(START, 1.0)), TOTAL).members()
