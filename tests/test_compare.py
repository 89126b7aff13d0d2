"""`compare`: paired differences to no law on held-out data."""

import json

import numpy as np
import pytest
import scipy.stats
import torch

import probconserv as pc
from probconserv.diagnostics import Comparison, Way, names_of
from probconserv.diagnostics.comparison import answer_of, least_shown
from probconserv.errors import InputError

X = torch.linspace(0, 1, 9, dtype=torch.float64)


def problem(rng, n=12, times=3, shared=0.3):
    """A truth, a mean whose errors are mostly shared by the points of a time, and the total."""
    truth = torch.rand(n, times, 9, generator=rng, dtype=torch.float64)
    noise = torch.randn(n, times, 10, generator=rng, dtype=torch.float64)
    mean = truth + 0.05 * noise[..., :9] + shared * noise[..., 9:]
    return truth, mean, pc.integral(X, torch.trapezoid(truth, X))


def test_the_difference_is_that_of_a_paired_t_test(rng):
    truth, mean, law = problem(rng)
    found = pc.compare((mean, 0.09), truth, law).difference("condition", "RMSE")
    after = pc.condition((mean, 0.09), law).mean
    before, own = ((m - truth).square().mean(-1).sqrt().mean(1) for m in (mean, after))
    t, p = scipy.stats.ttest_rel(before.numpy(), own.numpy())
    assert found.gain / found.error == pytest.approx(t, rel=1e-9)
    assert (found.answer == "helps") == (p < 0.05 and t > 0)
    assert found.base == pytest.approx(float(before.mean()), rel=1e-12)


def test_scores_are_those_of_evaluate(rng):
    truth, mean, law = problem(rng)
    found = pc.compare((mean, 0.09), truth, law)
    for way, field in (("no law", pc.Diagonal(mean, 0.09)), ("condition", None)):
        scores = pc.evaluate(field or pc.condition((mean, 0.09), law), truth, law, 2, rng)
        for name in ("CRPS", "LL", "coverage_90"):
            np.testing.assert_allclose(found.scores[way][name], getattr(scores, name))
        np.testing.assert_allclose(found.scores[way]["CE integral"], scores.CE.abs(), atol=1e-15)


def test_a_law_that_is_wrong_harms_and_a_right_one_helps(rng):
    truth, mean, law = problem(rng, 30)
    wrong = pc.integral(X, law.value + 2)
    assert pc.compare((mean, 0.09), truth, law).difference("condition").answer == "helps"
    found = pc.compare((mean, 0.09), truth, wrong)
    assert found.difference("condition").answer == "harms"
    assert "`condition` harms: CRPS is" in found.verdict
    assert "% higher" in found.verdict


def test_no_effect_is_called_one_as_rarely_as_stated(rng):
    gains = torch.randn(2000, 20, generator=rng, dtype=torch.float64).numpy()
    errors = gains.std(1, ddof=1) / 20**0.5
    answers = [answer_of(g, e, 20) for g, e in zip(gains.mean(1), errors, strict=True)]
    assert 0.03 < np.mean([one != "no difference" for one in answers]) < 0.07


def test_the_least_difference_that_shows_does_so_four_times_of_five(rng):
    least = least_shown(1 / 20**0.5, 20)
    gains = least + torch.randn(2000, 20, generator=rng, dtype=torch.float64).numpy()
    errors = gains.std(1, ddof=1) / 20**0.5
    answers = [answer_of(g, e, 20) for g, e in zip(gains.mean(1), errors, strict=True)]
    assert 0.76 < np.mean([one == "helps" for one in answers]) < 0.84


def test_times_and_groups_are_looked_at_by_themselves(rng):
    truth, mean, law = problem(rng)
    value = law.value.clone()
    value[:, 2] += 3  # wrong at the last time
    found = pc.compare((mean, 0.09), truth, pc.integral(X, value))
    by_time = found.difference("condition", by="time")
    assert [one.answer for one in by_time.values()] == ["helps", "helps", "harms"]
    early = found.difference("condition", by=["early", "early", "late"])
    assert early["early"].gain == pytest.approx(
        (by_time["time 0"].gain + by_time["time 1"].gain) / 2
    )
    halves = found.difference("condition", by=["a"] * 6 + ["b"] * 6)
    assert [one.count for one in halves.values()] == [6, 6]


def test_the_functions_that_lose_most_are_named(rng):
    truth, mean, law = problem(rng)
    value = law.value.clone()
    value[[4, 7]] += torch.tensor([[9.0], [20.0]], dtype=torch.float64)
    found = pc.compare((mean, 0.09), truth, pc.integral(X, value))
    assert found.losers("condition", most=2) == (7, 4)


def test_reach_is_the_error_along_the_move(rng):
    truth, mean, law = problem(rng)
    found = pc.compare((mean, 0.09), truth, law).reach("condition")
    move = (pc.condition((mean, 0.09), law).mean - mean).numpy()
    error = (truth - mean).numpy()
    left = 0.0
    for c, e in zip(move.reshape(-1, 9), error.reshape(-1, 9), strict=True):
        best = np.linalg.lstsq(c[:, None], e, rcond=None)[0]
        left += ((e - c * max(best[0], 0)) ** 2).sum()
    assert found.share == pytest.approx(1 - left / (error**2).sum(), rel=1e-9)
    assert found.multiple == pytest.approx((move * error).sum() / (move**2).sum(), rel=1e-9)


def test_a_law_that_goes_too_far_has_a_multiple_below_one(rng):
    truth, mean, law = problem(rng, 30)
    noise = 0.3 * torch.randn(law.value.shape, generator=rng, dtype=torch.float64)
    found = pc.compare((mean, 0.09), truth, pc.integral(X, law.value + noise))
    assert 0.2 < found.reach("condition").multiple < 0.8


def test_each_law_alone_and_all_are_tried(rng):
    truth, mean, law = problem(rng, 3, 1)
    energy = pc.nonlinear(
        lambda u: u.square().sum(), truth.square().sum(-1), batch_dims=2, label="energy"
    )
    found = pc.compare((mean, 0.09), truth, law, energy, pc.bounds(low=-5.0))
    assert found.ways == (
        "no law",
        "project",
        "condition on integral",
        "condition on energy",
        "condition on bounds",
        "condition",
        "inflate and condition",
    )
    assert found.scores["condition"]["CE energy"].max() < 20
    assert found.scores["condition on energy"]["LL"].shape == (3, 1)


def test_an_ensemble_and_a_mixture_have_ways_of_their_own(rng):
    truth, mean, law = problem(rng)
    parts = mean + 0.3 * torch.randn(6, 12, 3, 1, generator=rng, dtype=torch.float64)
    own = pc.compare(pc.Ensemble(parts, batch_dims=2), truth, law)
    assert "condition as independent points" in own.ways
    own = pc.compare(pc.Mixture(pc.Diagonal(parts, 0.01)), truth, law)
    assert "condition as one Gaussian" in own.ways


def test_a_function_of_the_user_is_a_way_and_a_score(rng):
    truth, mean, law = problem(rng)
    ways = {"half": lambda field, law: pc.Diagonal((field.mean + truth) / 2, field.variance)}

    def worst(field, truth):
        return (field.mean - truth).abs().amax((-1, -2))

    found = pc.compare((mean, 0.09), truth, law, ways=ways, scores={"worst": worst})
    one = found.difference("half", "worst")
    assert one.value == pytest.approx(one.base / 2)
    assert one.answer == "helps"
    assert found.reach("half").multiple == pytest.approx(2)


def test_a_state_has_scores_of_its_fields_and_of_all(rng):
    truth, mean, _ = problem(rng)
    law = pc.integral(X, torch.trapezoid(truth, X), of="u")
    state = pc.State(u=(mean, 0.09), v=(10 * mean, 9.0))
    found = pc.compare(state, {"u": truth, "v": 10 * truth}, law)
    alone = pc.compare((mean, 0.09), truth, pc.integral(X, law.value))
    np.testing.assert_allclose(
        found.scores["condition"]["u: CRPS"], alone.scores["condition"]["CRPS"]
    )
    gain = found.difference("condition").gain
    one = alone.difference("condition")
    assert gain == pytest.approx(one.gain / one.base / 2)  # v is not read by the law


def test_points_that_do_not_count_are_in_no_score_and_no_move(rng):
    truth, mean, law = problem(rng)
    there = torch.ones(9, dtype=torch.bool)
    there[3] = False
    spoilt = truth.clone()
    spoilt[..., 3] = 1e6
    one, other = (pc.compare((mean, 0.09), u, law, where=there, samples=2) for u in (truth, spoilt))
    np.testing.assert_allclose(one.scores["condition"]["CRPS"], other.scores["condition"]["CRPS"])
    np.testing.assert_allclose(one.moves["condition"], other.moves["condition"])


def test_a_way_that_fails_is_told_and_the_others_are_scored(rng):
    truth, mean, law = problem(rng)
    apart = pc.integral(X, law.value + 1)
    found = pc.compare((mean, 0.09), truth, law, apart)
    assert set(found.failed) >= {"condition", "project"}
    assert "`condition` failed: " in found.verdict
    assert found.difference("condition on integral").answer == "helps"


def test_moves_that_are_too_far_are_noted(rng):
    truth, mean, law = problem(rng)
    found = pc.compare((mean, 1e-6), truth, law)
    assert "standard deviations" in found.notes["condition"]
    assert "`condition` warned: " in found.verdict


def test_few_functions_say_nothing(rng):
    truth, mean, law = problem(rng, 4)
    found = pc.compare((mean, 0.09), truth, law)
    assert found.difference("condition").answer == "too few"
    assert "4 functions say nothing; give at least 5" in found.verdict


def test_no_difference_says_what_would_show(rng):
    truth, mean, law = problem(rng, 8, shared=0.0)
    noise = torch.randn(law.value.shape, generator=rng, dtype=torch.float64)
    found = pc.compare((mean, 0.0025), truth, pc.integral(X, law.value + 0.02 * noise))
    one = found.difference("condition")
    assert one.answer == "no difference"
    assert "no difference in CRPS that 8 functions could show" in str(one)


def test_it_is_kept_as_json(rng, tmp_path):
    truth, mean, law = problem(rng)
    found = pc.compare((mean, 0.0025), truth, law)
    found.save(tmp_path / "found.json")
    again = Comparison.load(tmp_path / "found.json")
    assert again.verdict == found.verdict
    assert again.table("LL") == found.table("LL")
    assert json.loads((tmp_path / "found.json").read_text())["verdict"] == found.verdict


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match=r"`path`: .* holds no comparison"):
        Comparison.load(tmp_path / "other.json")
    empty = '{"format": "probconserv comparison 1", "scores": {}, "moves": {}, "failed": {}}'
    (tmp_path / "other.json").write_text(empty)
    with pytest.raises(InputError, match=r"`path`: .* holds no comparison"):
        Comparison.load(tmp_path / "other.json")


def test_the_table_has_a_line_for_each_way_and_group(rng):
    truth, mean, law = problem(rng)
    found = pc.compare((mean, 0.09), truth, law)
    lines = found.table("energy", by="time").splitlines()
    assert len(lines) == 2 + 3 * len(found.ways)
    assert lines[2].startswith("| no law | time 0 |")
    assert "helps" not in found.table("coverage_90")


def test_what_is_given_stays_as_it_was(rng):
    truth, mean, law = problem(rng)
    copies = truth.clone(), mean.clone(), law.value.clone()
    pc.compare((mean, 0.09), truth, law)
    for one, copy in zip((truth, mean, law.value), copies, strict=True):
        assert torch.equal(one, copy)


def test_the_same_call_gives_the_same_numbers(rng):
    truth, mean, law = problem(rng)
    one, other = (pc.compare((mean, 0.09), truth, law, pc.bounds(low=-9.0)) for _ in range(2))
    np.testing.assert_array_equal(
        one.scores["condition"]["energy"], other.scores["condition"]["energy"]
    )


def test_more_density_of_one_field_is_better(rng):
    """The sign of "u: LL" was that of a score to be small."""
    truth, mean, _ = problem(rng)
    law = pc.integral(X, torch.trapezoid(truth, X), of="u")
    state = pc.State(u=(mean, 0.09), v=(mean, 0.09))
    found = pc.compare(state, {"u": truth, "v": truth}, law)
    for score in ("LL", "u: LL", "u: CRPS"):
        assert found.difference("condition", score).gain > 0
    assert "helps" not in found.table("u: coverage_90")


def test_density_is_compared_at_times_known_in_both(rng):
    """A time that a law fixes was left out on one side alone."""
    truth = torch.randn(30, 4, 5, generator=rng, dtype=torch.float64)
    mean = truth + 0.1 * torch.randn(truth.shape, generator=rng, dtype=torch.float64)
    mean[:, 0] += 3
    found = pc.compare((mean, 1.0), truth, pc.initial(truth[:, 0]), ways={"c": Way()})
    assert found.difference("c", "LL").gain == pytest.approx(0, abs=1e-12)
    assert found.difference("c", "CRPS").gain > 0


def test_a_law_that_fixes_a_point_at_every_time_is_scored(rng):
    """It failed: no density is finite there."""
    truth, mean, _ = problem(rng)
    truth[..., 0] = 0.0
    found = pc.compare((mean, 0.09), truth, pc.boundary(left=0.0))
    assert found.difference("condition").answer == "helps"
    assert np.isnan(found.scores["condition"]["LL"]).all()


def test_what_laws_miss_is_told_at_its_time(rng):
    truth = torch.zeros(6, 3, 3, 5, dtype=torch.float64)  # a batch axis as long as time
    mean = truth.clone()
    mean[:, :, 2] = 4.0
    law = pc.weighted_sum(torch.ones(5) / 5, 0.0)
    found = pc.compare((mean, 1.0), truth, law, space_dims=1).scores["no law"]
    np.testing.assert_allclose(found["CE weighted_sum"][0], [0, 0, 4], atol=1e-12)
    law = pc.weighted_sum(torch.ones(5) / 5, 0.0, times=[2])
    found = pc.compare((mean[:, 0], 1.0), truth[:, 0], law).scores["no law"]
    np.testing.assert_allclose(found["CE weighted_sum"][0], [np.nan, np.nan, 4], atol=1e-12)


def test_fields_of_a_state_may_have_other_times_and_axes(rng):
    truth, mean, law = problem(rng)
    u, v = truth, torch.zeros(12, 1, 4, 2, dtype=torch.float64)
    state = pc.State(u=(mean, 0.09), v=(v + 1, 1.0))
    found = pc.compare(state, {"u": u, "v": v}, pc.integral(X, law.value, of="u"))
    assert found.scores["condition"]["CRPS"].shape == (12, 1)
    assert found.difference("condition", "u: CRPS").answer == "helps"


def test_a_law_that_reads_time_says_nothing_of_the_axes_of_space(rng):
    truth, mean, _ = problem(rng)
    law = pc.weighted_sum(torch.ones(3, 9, dtype=torch.float64), truth.sum((-1, -2)))
    assert pc.compare((mean, 0.09), truth, law).difference("condition").answer == "helps"


def test_a_posterior_is_conditioned_again(rng):
    truth, mean, law = problem(rng)
    post = pc.condition((mean, 0.09), pc.weighted_sum(X, (truth * X).sum(-1)))
    assert pc.compare(post, truth, law).ways == ("no law", "condition")


def test_calibration_takes_its_factor_from_the_other_functions(rng):
    truth, mean, law = problem(rng, 12, 1)
    prior = pc.Diagonal(mean, std=0.01)  # far too sure
    found = pc.compare(prior, truth, law, calibrated=True, samples=1)
    assert found.ways[-2:] == ("calibrate", "calibrate and condition")
    assert found.difference("calibrate").answer == "helps"
    best = []
    for i in range(12):
        rest = [j for j in range(12) if j != i]
        each = [2 ** (k / 4) for k in range(-12, 17)]
        scores = [
            pc.evaluate(
                pc.Diagonal(mean[rest], std=0.01 * k), truth[rest], samples=1, generator=rng
            )
            for k in each
        ]
        best.append(each[int(torch.stack([one.CRPS.mean() for one in scores]).argmin())])
    std = 0.01 * torch.tensor(best, dtype=torch.float64)[:, None, None]
    own = pc.evaluate(pc.Diagonal(mean, std=std * torch.ones_like(mean)), truth, generator=rng)
    np.testing.assert_allclose(found.scores["calibrate"]["CRPS"], own.CRPS)


def test_draws_after_calibration_come_from_the_generator_of_the_others(rng):
    truth, mean, law = problem(rng, 8, 1)
    how = {"calibrated": True, "draws": 9, "samples": 1}
    one, other = (
        pc.compare((mean, 0.01), truth, law, pc.bounds(low=-1.0), **how) for _ in range(2)
    )
    for found in zip(one.scores.values(), other.scores.values(), strict=True):
        np.testing.assert_array_equal(*(scores["CRPS"] for scores in found))


def test_calibration_takes_states_and_ensembles(rng):
    truth, mean, law = problem(rng, 12, 1)
    parts = mean + 0.01 * torch.randn(5, 12, 1, 9, generator=rng, dtype=torch.float64)
    found = pc.compare(pc.Ensemble(parts, batch_dims=2), truth, law, calibrated=True)
    assert found.difference("calibrate and condition").answer == "helps"
    state = pc.State(u=(mean, 1e-4), v=(mean, 1e-4))
    law = pc.integral(X, law.value, of="u")
    found = pc.compare(state, {"u": truth, "v": truth}, law, calibrated=True)
    assert found.difference("calibrate").answer == "helps"
    with pytest.raises(InputError, match="`calibrated` takes Diagonal"):
        pc.compare(pc.Mixture(pc.Diagonal(parts, 0.1)), truth, law, calibrated=True)


def test_names_of_laws_differ_whatever_their_labels():
    laws = [pc.weighted_sum([1.0], 1.0, label=label) for label in ("x", "x", "x 2")]
    assert len(set(names_of(laws))) == 3


def test_bad_input_is_refused(rng):
    truth, mean, law = problem(rng)
    field = (mean, 0.09)
    with pytest.raises(InputError, match="`prediction` must have axes of functions, times"):
        pc.compare((mean[0], 0.09), truth[0], law)
    with pytest.raises(InputError, match="`truth` of shape"):
        pc.compare(field, truth[:5], law)
    with pytest.raises(InputError, match=r"`laws` must be laws such as .* got list"):
        pc.compare(field, truth, [law])
    with pytest.raises(InputError, match="`ways` must be ways by their names"):
        pc.compare(field, truth, law, ways=[Way()])
    with pytest.raises(InputError, match="`ways`: 'no law' is what all are compared with"):
        pc.compare(field, truth, law, ways={"no law": Way()})
    with pytest.raises(InputError, match="`scores`: 'CRPS' is there already"):
        pc.compare(field, truth, law, scores={"CRPS": lambda field, truth: 0})
    with pytest.raises(InputError, match="`scores` must be functions"):
        pc.compare(field, truth, law, scores=[len])
    with pytest.raises(InputError, match="`space_dims` must be a whole number"):
        pc.compare(field, truth, law, space_dims=0)
    with pytest.raises(InputError, match="`ways`: 'bad' must be a `Way` or a function"):
        pc.compare(field, truth, law, ways={"bad": 3})
    with pytest.raises(InputError, match="`ways`: what 'less' returns must have the fields"):
        pc.compare(field, truth, law, ways={"less": lambda field, law: field[:3]})
    with pytest.raises(InputError, match="`scores`: 'bad' must return a number for each of 12"):
        pc.compare(field, truth, law, scores={"bad": lambda field, truth: torch.zeros(5)})
    found = pc.compare(field, truth, law)
    with pytest.raises(InputError, match=r"`way`.*'conditon'"):
        found.difference("conditon")
    with pytest.raises(InputError, match=r"`score`.*'CPRS'"):
        found.difference("condition", "CPRS")
    with pytest.raises(InputError, match="`by` must be labels of 12 functions, of 3 times"):
        found.difference("condition", by=[1, 2])
    square = pc.compare((mean[:3], 0.09), truth[:3], pc.integral(X, law.value[:3]))
    with pytest.raises(InputError, match="`by` has 3 labels, and there are as many functions"):
        square.difference("condition", by=[1, 2, 3])


def test_a_way_says_what_it_does():
    way = Way(laws=("integral",), scale=2.0, common=0.5, noise=1.0, inflated=True)
    assert str(way) == (
        "condition on integral, standard deviations x 2, inflated, correlation 0.5, noise 1"
    )
    assert str(Way("none")) == "no law"


def test_laws_of_one_name_are_numbered():
    law = pc.integral(X, 1.0)
    assert names_of([law, law, pc.integral(X, 1.0, of="u")]) == [
        "integral",
        "integral 2",
        "integral of u",
    ]


@pytest.mark.parametrize(
    ("field", "rule"),
    [
        ({"scale": 0.0}, "`scale` must be a number above 0"),
        ({"noise": -1.0}, "`noise` must be a number that is not negative"),
        ({"common": 1.5}, "`common` must"),
        ({"how": "rescale"}, "`how`"),
        ({"points": "all"}, "`points`"),
        ({"inflated": "no"}, "`inflated` must be True or False"),
        ({"laws": "integral"}, "`laws` must be a tuple of names"),
        ({"scale": True}, "`scale` must be a number above 0"),
        ({"scale": 1e200}, "`scale` must be a number above 0"),
    ],
)
def test_a_way_refuses_what_it_cannot_be(field, rule):
    with pytest.raises(InputError, match=rule):
        Way(**field)


def test_a_way_of_numpy_numbers_is_kept(tmp_path):
    way = Way(scale=np.float32(2), draws=np.int64(7), laws=["x"])
    way.save(tmp_path / "way.json")
    assert Way.load(tmp_path / "way.json") == Way(scale=2.0, draws=7, laws=("x",))


def test_a_way_names_a_law_that_is_not_there(rng):
    _truth, mean, law = problem(rng)
    with pytest.raises(InputError, match="this way uses the law 'energy', but those given are"):
        Way(laws=("energy",))((mean, 0.09), law)


@pytest.mark.parametrize("kind", ["Diagonal", "Ensemble", "Dense", "Mixture"])
def test_noise_takes_a_move_so_far_as_it_says(kind, rng):
    _truth, mean, law = problem(rng, 3, 1)
    parts = mean + 0.2 * torch.randn(7, 3, 1, 9, generator=rng, dtype=torch.float64)
    field = {
        "Diagonal": pc.Diagonal(mean, 0.09),
        "Ensemble": pc.Ensemble(parts, batch_dims=2, shrinkage=0.3),
        "Dense": pc.Dense(mean, 0.01 * torch.eye(9, dtype=torch.float64) + 0.05),
        "Mixture": pc.Mixture(pc.Diagonal(mean[None], 0.09)),
    }[kind]
    exact, noisy = (Way(noise=noise)(field, law).mean - field.mean for noise in (0.0, 1.0))
    torch.testing.assert_close(noisy, exact / 2)


def test_noise_of_a_law_that_is_not_linear_is_that_of_its_tangent(rng):
    truth, mean, _ = problem(rng, 4, 2)
    linear = pc.nonlinear(lambda u: u.sum(), truth.sum(-1), batch_dims=2)
    one, other = (
        Way(noise=0.7)((mean, 0.04), law).mean
        for law in (linear, pc.weighted_sum(torch.ones(9, dtype=torch.float64), truth.sum(-1)))
    )
    torch.testing.assert_close(one, other)
