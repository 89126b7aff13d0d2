"""`select`: the way to use laws that held-out data ask for."""

import warnings

import pytest
import torch
from test_compare import X, problem

import probconserv as pc
from probconserv.diagnostics import Way
from probconserv.errors import InputError


def test_a_right_law_is_taken_and_the_variance_is_found(rng):
    truth, mean, law = problem(rng, 40)
    choice = pc.select((mean, 4e-3), truth, law)
    assert choice.way.how != "none"
    assert choice.way.scale != 1
    assert choice.honest.answer == "helps"
    assert choice.spread.answer == "helps"
    after = choice.way((mean, 4e-3), law)
    z = (after.mean - truth) / after.std
    assert 0.5 < float(z.square().mean()) < 2


def test_a_wrong_law_is_left_out(rng):
    truth, mean, law = problem(rng, 40)
    noise = torch.randn(law.value.shape, generator=rng, dtype=torch.float64)
    choice = pc.select((mean, 0.1), truth, pc.integral(X, law.value + 9 * noise))
    assert choice.way.how == "none"


def test_a_noisy_law_is_given_noise(rng):
    truth, mean, law = problem(rng, 60)
    noise = 0.3 * torch.randn(law.value.shape, generator=rng, dtype=torch.float64)
    choice = pc.select((mean, 0.09), truth, pc.integral(X, law.value + noise))
    assert 0.5 <= choice.way.noise <= 2  # what the total misses is as large as its error


def test_only_the_right_one_of_two_laws_is_taken(rng):
    truth, mean, law = problem(rng, 40)
    wrong = pc.weighted_sum(X, (truth * X).sum(-1) + 5, label="moment")
    choice = pc.select((mean, 0.09), truth, law, wrong)
    assert choice.way.laws == ("integral",)
    torch.testing.assert_close(law.apply(choice.way((mean, 0.09), law, wrong)), law.value)


def test_the_choice_is_never_worse_on_its_own_data(rng):
    for number in range(12):
        truth, mean, law = problem(rng, 10, shared=0.02 * number)
        wrong = pc.integral(X, law.value + 0.03 * number * torch.randn(10, 1, generator=rng))
        choice = pc.select((mean, 0.01), truth, wrong)
        scores = [
            float(pc.evaluate(f, truth, samples=1, generator=rng).CRPS.mean())
            for f in (pc.Diagonal(mean, 0.01), choice.way((mean, 0.01), wrong))
        ]
        assert scores[1] <= scores[0]


def test_the_honest_score_is_of_functions_that_had_no_part(rng):
    truth = torch.zeros(20, 1, 9, dtype=torch.float64)
    gains = []
    for _ in range(30):  # nothing can be gained
        mean = torch.randn(20, 1, 9, generator=rng, dtype=torch.float64)
        total = torch.randn(20, 1, generator=rng, dtype=torch.float64)
        one = pc.select((mean, 1.0), truth, pc.integral(X, total)).honest
        gains.append(one.gain / one.base)
    assert sum(gains) / 30 < 0.004  # by chance on the same functions it would be more


@pytest.mark.parametrize("score", ["CRPS", "LL", "RMSE"])
def test_every_score_can_be_the_goal(score, rng):
    truth, mean, law = problem(rng, 30)
    choice = pc.select((mean, 0.01), truth, law, score=score)
    assert choice.way.how != "none"
    assert choice.honest.score == score
    assert choice.honest.answer == "helps"
    assert (choice.way.scale == 1) == (score == "RMSE")


@pytest.mark.parametrize("kind", ["Ensemble", "Mixture", "Dense", "State", "Draws"])
def test_every_field_can_be_given(kind, rng):
    truth, mean, law = problem(rng, 20, 1)
    parts = mean + 0.2 * torch.randn(6, 20, 1, 1, generator=rng, dtype=torch.float64)
    parts = parts + 0.05 * torch.randn(6, 20, 1, 9, generator=rng, dtype=torch.float64)
    laws, field, u = [law], pc.Diagonal(mean, 0.09), truth
    if kind == "Ensemble":
        field = pc.Ensemble(parts, batch_dims=2)
    elif kind == "Mixture":
        field = pc.Mixture(pc.Diagonal(parts, 0.01))
    elif kind == "Dense":
        field = pc.Dense(mean, 0.01 * torch.eye(9, dtype=torch.float64) + 0.05)
    elif kind == "State":
        field, u = pc.State(u=field, v=(mean, 0.1)), {"u": truth, "v": truth}
        laws = [pc.integral(X, law.value, of="u")]
    else:
        laws.append(pc.bounds(low=0.0))
    choice = pc.select(field, u, *laws)
    assert choice.way.how != "none"
    assert choice.honest.answer == "helps"


@pytest.mark.parametrize("kind", ["mixture", "inflated", "noisy law", "draws", "exact"])
def test_the_score_of_a_card_is_that_of_its_use(kind, rng):
    """The scale was taken of what came out; of mixtures and noisy laws that is another field."""
    truth, mean, law = problem(rng, 20, 1)
    field, laws, ways = pc.Diagonal(mean, 4e-3), [law], [Way()]
    if kind == "mixture":
        parts = mean + 0.3 * torch.randn(6, 20, 1, 1, generator=rng, dtype=torch.float64)
        field = pc.Mixture(pc.Diagonal(parts, 0.01))
    elif kind == "inflated":
        ways = [Way(inflated=True)]
    elif kind == "noisy law":
        laws = [pc.integral(X, law.value, noise=0.1)]
    elif kind == "draws":
        laws, ways = [law, pc.bounds(low=-9.0)], [Way(draws=40)]
    choice = pc.select(field, truth, *laws, ways=ways, generator=rng)
    assert choice.way.how == "condition"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pc.ImplausibleWarning)
        after = choice.way(field, *laws, generator=rng)
    own = float(pc.evaluate(after, truth, samples=1, generator=rng).CRPS.mean())
    found = choice.scores[str(ways[0])]
    assert own == pytest.approx(found, rel=0.05 if kind == "draws" else 1e-9)


def test_a_way_that_fixes_points_is_not_chosen_by_its_density(rng):
    """Points without variance counted as if they were right, however wrong."""
    truth = torch.randn(20, 3, 8, generator=rng, dtype=torch.float64)
    truth[..., 0] = 0
    mean = truth + 5 * torch.randn(truth.shape, generator=rng, dtype=torch.float64)
    choice = pc.select((mean, 25.0), truth, pc.boundary(left=50.0), score="LL")
    assert choice.way.how == "none"


def test_functions_without_points_are_refused(rng):
    truth, mean, law = problem(rng, 20)
    there = torch.ones(truth.shape, dtype=torch.bool)
    there[3] = False
    with pytest.raises(InputError, match="`where`: of some function no point counts"):
        pc.select((mean, 0.09), truth, law, where=there)


def test_a_field_of_a_state_without_variance_is_scored(rng):
    truth, mean, _ = problem(rng, 20, 1)
    state = pc.State(u=(mean, 0.09), v=(truth, 0.0))
    law = pc.integral(X, torch.trapezoid(truth, X), of="u")
    assert pc.select(state, {"u": truth, "v": truth}, law).way.how != "none"


def test_a_posterior_can_be_given(rng):
    truth, mean, law = problem(rng, 20)
    post = pc.condition((mean, 0.09), pc.weighted_sum(X, (truth * X).sum(-1)))
    assert pc.select(post, truth, law).way.how == "condition"


def test_points_that_do_not_count_have_no_part(rng):
    truth, mean, law = problem(rng, 20)
    there = torch.ones(9, dtype=torch.bool)
    there[2] = False
    spoilt = truth.clone()
    spoilt[..., 2] = 1e5
    one, other = (pc.select((mean, 0.09), u, law, where=there) for u in (truth, spoilt))
    assert one.way == other.way
    assert one.honest == other.honest


def test_a_card_is_kept_and_used_again(rng, tmp_path):
    truth, mean, law = problem(rng, 30)
    choice = pc.select((mean, 0.09), truth, law)
    choice.way.save(tmp_path / "way.json")
    again = Way.load(tmp_path / "way.json")
    assert again == choice.way
    torch.testing.assert_close(again((mean, 0.09), law).mean, choice.way((mean, 0.09), law).mean)
    (tmp_path / "way.json").write_text('{"format": "probconserv way 1", "how": "none"}')
    with pytest.raises(InputError, match=r"`path`: .* holds no way"):
        Way.load(tmp_path / "way.json")


def test_candidates_can_be_given(rng):
    truth, mean, law = problem(rng, 30)
    choice = pc.select((mean, 0.09), truth, law, ways=[Way("project")])
    assert list(choice.scores) == ["no law", "project"]
    assert choice.way.how == "project"


def test_a_candidate_that_fails_is_told(rng):
    truth, mean, law = problem(rng, 20)
    choice = pc.select((mean, 0.09), truth, law, pc.integral(X, law.value + 1))
    assert any("integral and integral 2" in name for name in choice.failed)


def test_the_verdict_says_what_was_chosen(rng):
    truth, mean, law = problem(rng, 40)
    choice = pc.select((mean, 4e-3), truth, law)
    assert "helps: CRPS is" in choice.verdict
    assert "its own best variance" in choice.verdict
    wrong = pc.select((mean, 0.1), truth, pc.integral(X, law.value + 50))
    assert repr(wrong).startswith("Choice(no law")


def test_functions_that_move_together_are_refused(rng):
    """Members that tie all functions together let one function's total move the others."""
    truth, mean, law = problem(rng, 20, 1)
    parts = mean + 0.2 * torch.randn(6, 20, 1, 1, generator=rng, dtype=torch.float64)
    for judge in (pc.compare, pc.select):
        with pytest.raises(InputError, match="`prediction`: its errors tie the functions on axis"):
            judge(pc.Ensemble(parts), truth, law)


def test_a_choice_that_folds_contradict_is_withdrawn_in_words():
    from probconserv.diagnostics.select import _choice

    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    scores = torch.zeros(2, 1, 20, dtype=torch.float64)
    scores[1, 0, order[0::2]] = -1.0  # much better in one half, worse in the other
    scores[1, 0, order[1::2]] = 0.5
    cards, rng = [Way("none"), Way()], torch.Generator().manual_seed(0)
    found = _choice(cards, scores.numpy(), {}, "RMSE", 2, rng)
    assert (found.way, found.withdrawn) == (Way("none"), Way())
    assert "did worse than no law on these" in found.verdict


def test_bad_input_is_refused(rng):
    truth, mean, law = problem(rng, 6)
    with pytest.raises(InputError, match="`folds` must be at least 2, with two functions in each"):
        pc.select((mean, 0.09), truth, law)
    with pytest.raises(InputError, match="`score`"):
        pc.select((mean, 0.09), truth, law, score="CPRS", folds=2)
    with pytest.raises(InputError, match="`truth` of shape"):
        pc.select((mean, 0.09), truth[:4], law, folds=2)
    with pytest.raises(InputError, match="`ways` must be a list of `Way`"):
        pc.select((mean, 0.09), truth, law, ways={"one": Way()}, folds=2)
    with pytest.raises(InputError, match="`laws` must be laws such as"):
        pc.select((mean, 0.09), truth, [law], folds=2)
    state, both = pc.State(u=(mean, 0.09), v=(mean, 0.09)), {"u": truth, "v": truth}
    with pytest.raises(InputError, match="`truth` of a state must be arrays by the names"):
        pc.select(state, {"u": truth}, pc.integral(X, 1.0, of="u"), folds=2)
    with pytest.raises(InputError, match=r"`where`.*'uu'"):
        pc.select(state, both, pc.integral(X, 1.0, of="u"), folds=2, where={"uu": True})


def test_draws_have_no_density_and_are_told(rng):
    truth, mean, law = problem(rng, 20, 1)
    choice = pc.select((mean, 0.09), truth, law, pc.bounds(low=-9.0), score="LL", draws=5)
    assert any("have no density" in why for why in choice.failed.values())
    assert choice.way.how != "none"
