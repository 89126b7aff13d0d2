"""`conformal`: intervals as wide as held-out functions ask for."""

import math

import pytest
import torch
from test_compare import problem

import probconserv as pc
from probconserv.diagnostics import Conformal, conformal
from probconserv.errors import InputError


def functions(rng, n, sure=2.0, times=1):
    """Truths about 0 whose size differs from function to function, and a field that is too sure."""
    size = torch.rand(n, 1, 1, generator=rng, dtype=torch.float64) + 0.5
    truth = size * torch.randn(n, times, 15, generator=rng, dtype=torch.float64)
    return truth, pc.Diagonal(torch.zeros_like(truth), std=1 / sure)


def inside(found, field, truth, **how):
    low, high = found.interval(field, **how)
    return ((low <= truth) & (truth <= high)).double().mean((0, 2))


def test_the_share_inside_is_what_is_promised(rng):
    shares = []
    for _ in range(150):
        found = conformal(*reversed(functions(rng, 20)))
        truth, field = functions(rng, 40)
        shares.append(float(inside(found, field, truth).mean()))
    assert 0.9 <= sum(shares) / 150 <= 0.9 + 2 / 21  # the bounds of theory


def test_the_quantile_counts_each_function_alike_and_one_more_at_infinity():
    truth = torch.tensor([0.1 * k for k in range(1, 20)], dtype=torch.float64)[:, None, None]
    field = pc.Diagonal(torch.zeros_like(truth), 1.0)
    half = float(field.interval(0.9)[1][0])
    assert conformal(field, truth).factors["all"] == pytest.approx(1.8 / half)  # the 18th of 20
    assert conformal(field, truth, 0.95).factors["all"] == pytest.approx(
        1.9 / float(field.interval(0.95)[1][0])
    )
    assert math.isinf(conformal(field, truth, 0.96).factors["all"])


def test_too_few_functions_have_no_interval_and_say_how_many_it_takes(rng):
    truth, field = functions(rng, 8)
    found = conformal(field, truth)
    assert math.isinf(found.factors["all"])
    assert found.needed == 9
    assert found.statement == "8 functions allow no 90% interval: it takes at least 9."
    low, high = found.interval(field)
    assert bool((low == -math.inf).all() and (high == math.inf).all())
    assert math.isfinite(conformal(field, truth, 0.8).factors["all"])


def test_what_20_functions_realise_is_said():
    found = Conformal(0.9, {"all": 1.0}, {"all": 20})
    low, high = found.realised()
    assert (round(low, 2), round(high, 2)) == (0.78, 0.98)
    assert "some 78% to 98%" in found.statement


def test_each_time_has_its_factor(rng):
    truth, _ = functions(rng, 60, times=3)
    truth = truth * torch.tensor([[[1.0], [2.0], [4.0]]], dtype=torch.float64)
    field = pc.Diagonal(torch.zeros_like(truth), 1.0)
    found = conformal(field, truth, by="time")
    assert found.factors["time 2"] > 2.5 * found.factors["time 0"]
    assert bool(((inside(found, field, truth) - 0.91).abs() < 0.03).all())


def test_groups_of_functions_have_their_factors(rng):
    truth, field = functions(rng, 40)
    labels = ["calm", "storm"] * 20
    truth[1::2] *= 5
    found = conformal(field, truth, by=labels)
    assert found.factors["storm"] > 3 * found.factors["calm"]
    low, high = found.interval(field, by=labels)
    assert float((high - low)[1, 0, 0] / (high - low)[0, 0, 0]) > 3
    with pytest.raises(InputError, match="`by`"):
        found.interval(field, by=["calm", "gale"] * 20)


@pytest.mark.parametrize("kind", ["posterior", "draws", "ensemble", "state"])
def test_it_serves_every_field(kind, rng):
    truth, mean, law = problem(rng, 30, 2)
    field, u = pc.condition((mean, 0.01), law), truth
    if kind == "draws":
        field = pc.condition((mean, 0.01), law, pc.bounds(low=0.0), generator=rng)
    elif kind == "ensemble":
        parts = mean + 0.1 * torch.randn(6, 30, 2, 9, generator=rng, dtype=torch.float64)
        field = pc.Ensemble(parts, batch_dims=2)
    elif kind == "state":
        field, u = pc.State(u=(mean, 0.01), v=(mean, 0.09)), {"u": truth, "v": truth}
    found = conformal(field, u)
    ends = found.interval(field)
    for name in field.names:
        low, high = ends[name] if name else ends
        share = ((low <= truth) & (truth <= high)).double().mean()
        assert 0.88 < float(share) < 0.96
    assert list(found.factors) == [f"{name}: all" if name else "all" for name in field.names]


def test_skewed_fields_are_held_too(rng):
    """Of a mean outside its interval all counted as inside, and intervals were turned round."""
    mean = torch.cat([torch.full((60, 1, 5), -1.8), torch.full((60, 1, 5), 3.0)], -1).double()
    noise = torch.randn(mean.shape, generator=rng, dtype=torch.float64)
    truth = (mean + 1.5 * noise).clamp_min(0)
    field = pc.condition((mean, 1.0), pc.bounds(low=0.0), draws=200, generator=rng)
    low, high = conformal(field, truth).interval(field)
    assert bool((low <= high).all())
    assert 0.9 <= float(((low <= truth) & (truth <= high)).double().mean()) < 0.97


def test_rounding_at_points_that_laws_fix_is_no_miss(rng):
    truth = 1e3 * torch.randn(30, 3, 10, generator=rng, dtype=torch.float64)
    mean = truth + torch.randn(truth.shape, generator=rng, dtype=torch.float64)
    first = torch.eye(10, dtype=torch.float64)[:1] / 3
    post = pc.condition((mean, 1.0), pc.linear(first, truth[..., :1] / 3))
    assert conformal(post, truth, 0.95).factors["all"] < 2


def test_factors_of_times_are_for_as_many_times(rng):
    truth, field = functions(rng, 20, times=3)
    found = conformal(field, truth, by="time")
    with pytest.raises(InputError, match="`field` must have the 3 times"):
        found.interval(pc.Diagonal(field.mean[:, :2], 1.0))


def test_points_that_do_not_count_have_no_part(rng):
    truth, field = functions(rng, 20)
    there = torch.ones(15, dtype=torch.bool)
    there[4] = False
    spoilt = truth.clone()
    spoilt[..., 4] = 1e9
    one, other = (conformal(field, u, where=there) for u in (truth, spoilt))
    assert one == other


def test_a_point_that_cannot_vary_counts_as_missed_only_where_it_is_wrong():
    truth = torch.zeros(20, 1, 2, dtype=torch.float64)
    truth[..., 1] = 1.0
    field = pc.Diagonal(torch.zeros_like(truth), torch.tensor([0.0, 1.0]).double())
    assert conformal(field, truth).factors["all"] < 1
    truth[..., 0] = 1e-3
    assert math.isinf(conformal(field, truth).factors["all"])


def test_it_is_kept_in_a_file(rng, tmp_path):
    truth, field = functions(rng, 8)
    for level in (0.8, 0.9):
        found = conformal(field, truth, level)
        found.save(tmp_path / "found.json")
        assert Conformal.load(tmp_path / "found.json") == found
    (tmp_path / "found.json").write_text("[]")
    with pytest.raises(InputError, match=r"`path`: .* holds no factors"):
        Conformal.load(tmp_path / "found.json")


def test_bad_input_is_refused(rng):
    truth, field = functions(rng, 20)
    with pytest.raises(InputError, match="`level` must lie between 0 and 1"):
        conformal(field, truth, 90)
    with pytest.raises(InputError, match="`truth` of shape"):
        conformal(field, truth[:7])
    with pytest.raises(InputError, match="`field` must have axes of functions, times and space"):
        conformal(field[0], truth[0])
    state, both = pc.State(u=field, v=field), {"u": truth, "v": truth}
    with pytest.raises(InputError, match="`truth` of a state must be arrays by the names"):
        conformal(state, truth)
    with pytest.raises(InputError, match="`where` of a state must be arrays by the names"):
        conformal(state, both, where=truth > 0)
