"""Several fields under names, given laws of one of them or of several, against dense matrices."""

import copy

import numpy as np
import pytest
import scipy.linalg
import torch
from oracle import covariance, exact_residual, field_of, grid, kalman, normal, uniform

import probconserv as pc

T, SHAPES = 3, {"u": (3, 5), "flux": (3, 4)}
X = torch.tensor([0.0, 0.3, 1.0, 1.4, 2.0], dtype=torch.float64)
KINDS = {
    "independent points": ("diagonal", "diagonal"),
    "low rank beside independent points": ("low rank few 1", "diagonal"),
    "joint low rank beside dense": ("low rank few 2", "dense 1"),
    "dense beside bare low rank": ("dense 2", "low rank bare 1"),
    "samples": None,
    "shrunk samples": None,
}
SHRINKAGE = {"samples": 0.0, "shrunk samples": 0.3}


def members(rng, *batch):
    return {name: normal(9, *batch, *shape, rng=rng) for name, shape in SHAPES.items()}


def state_of(kind, rng):
    """A state of a (3, 5) and a (3, 4) field, and its covariance over all points."""
    if kind in SHRINKAGE:
        samples, share = members(rng), SHRINKAGE[kind]
        variance = {name: uniform(*shape, rng=rng) for name, shape in SHAPES.items()}
        state = pc.Ensemble(samples, variance, shrinkage=share)
        drawn = torch.cat([s.flatten(1) for s in samples.values()], 1).T.cov().numpy()
        own = torch.cat([v.flatten() for v in variance.values()]).numpy()
        return state, (1 - share) * drawn + np.diag(share * np.diag(drawn) + own)
    pairs = zip(SHAPES.items(), KINDS[kind], strict=True)
    fields = {name: field_of(each, shape, rng) for (name, shape), each in pairs}
    sigma = np.zeros((27, 27))
    sigma[:15, :15], sigma[15:, 15:] = (covariance(field) for field in fields.values())
    return pc.State(**fields), sigma


def laws(rng):
    """Of one field, and of both: exact and noisy."""
    rows = {"u": normal(2, 5, rng=rng), "flux": normal(2, 4, rng=rng)}
    return {
        "integral of u": pc.integral(X, normal(T, rng=rng), of="u"),
        "cells of both": pc.weighted_sum(
            {"u": uniform(5, rng=rng), "flux": -uniform(4, rng=rng)}, normal(T, rng=rng)
        ),
        "rows of both": pc.linear(rows, normal(T, 2, rng=rng), noise=0.3),
        "end of u": pc.boundary(left=0.2, noise=0.1, of="u"),
        "start of flux": pc.initial(normal(4, rng=rng), of="flux"),
        "smooth u": pc.smoothness(X, uniform(T, 5, rng=rng), 0.7, of="u"),
        "flux over all times": pc.linear(
            normal(2, 3, 4, rng=rng), normal(2, rng=rng), noise=0.1, of="flux"
        ),
    }


MIXES = [
    ["integral of u"],
    ["cells of both"],
    ["rows of both"],
    ["cells of both", "rows of both", "end of u"],
    ["integral of u", "start of flux", "smooth u"],
    ["cells of both", "flux over all times"],
]


def system(chosen):
    """G over all points of the state, b and noise, by applying the laws to a basis."""
    eye, parts = torch.eye(27, dtype=torch.float64), []
    basis = {"u": eye[:, :15].reshape(27, 3, 5), "flux": eye[:, 15:].reshape(27, 3, 4)}
    for law in chosen:
        rows = law.apply(basis)
        spread = [t.expand(rows.shape[1:]).flatten() for t in (law.value, law.noise)]
        parts.append([rows.flatten(1).T.numpy(), *(t.numpy() for t in spread)])
    return [np.concatenate(each) for each in zip(*parts, strict=True)]


def flat(by_name):
    return torch.cat([by_name[name].flatten() for name in SHAPES]).numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mix", MIXES, ids=" and ".join)
def test_a_state_given_laws_is_the_dense_posterior_of_all_points(kind, mix, rng):
    state, sigma = state_of(kind, rng)
    known = laws(rng)
    chosen = [known[name] for name in mix]
    G, b, noise = system(chosen)
    mean, left = kalman(flat({n: state[n].mean for n in SHAPES}), sigma, G, b, noise)
    post = pc.condition(state, *chosen)
    np.testing.assert_allclose(flat({n: post[n].mean for n in SHAPES}), mean, atol=1e-8)
    np.testing.assert_allclose(
        flat({n: post[n].variance for n in SHAPES}), np.diag(left), atol=1e-8
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mix", MIXES, ids=" and ".join)
def test_the_covariance_of_a_field_is_its_part_of_the_dense_one(kind, mix, rng):
    state, sigma = state_of(kind, rng)
    known = laws(rng)
    chosen = [known[name] for name in mix]
    left = kalman(np.zeros(27), sigma, *system(chosen))[1]
    post = pc.condition(state, *chosen)
    np.testing.assert_allclose(covariance(post["u"]), left[:15, :15], atol=1e-8)
    np.testing.assert_allclose(covariance(post["flux"]), left[15:, 15:], atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mix", MIXES, ids=" and ".join)
def test_the_evidence_is_the_density_of_b_under_the_state(kind, mix, rng):
    state, sigma = state_of(kind, rng)
    known = laws(rng)
    G, b, noise = (torch.from_numpy(x) for x in system([known[name] for name in mix]))
    seen = G @ torch.from_numpy(sigma) @ G.T + noise.square().diag()
    mean = torch.from_numpy(flat({n: state[n].mean for n in SHAPES}))
    wanted = torch.distributions.MultivariateNormal(G @ mean, seen).log_prob(b)
    post = pc.condition(state, *(known[name] for name in mix))
    torch.testing.assert_close(post.log_evidence.sum(), wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_every_joint_draw_obeys_the_laws_and_has_the_joint_covariance(kind, rng):
    state, sigma = state_of(kind, rng)
    known = laws(rng)
    chosen = [known[name] for name in MIXES[3]]
    post = pc.condition(state, *chosen)
    draws = post.sample(20_000, rng)
    assert {name: x.shape[1:] for name, x in draws.items()} == SHAPES
    assert exact_law_residual(chosen[0], draws) < 1e-12
    G, b, noise = system(chosen)
    left = kalman(np.zeros(27), sigma, G, b, noise)[1]
    both = torch.cat([draws[name].flatten(1) for name in SHAPES], 1)
    size = np.sqrt(np.diag(left))
    assert np.max(np.abs(both.T.cov().numpy() - left) / (np.outer(size, size) + 1e-6)) < 0.05


def exact_law_residual(law, fields):
    miss = law.residual(fields).abs()
    return float((miss / (law.magnitude(fields) + law.value.abs())).max())


def test_fields_that_no_law_joins_are_each_by_itself(rng):
    u, flux = field_of("low rank few 1", (3, 5), rng), field_of("diagonal", (3, 4), rng)
    of_u, of_flux = (
        pc.integral(X, 0.4, of="u"),
        pc.weighted_sum([1.0] * 4, 0.3, noise=0.1, of="flux"),
    )
    post = pc.condition(pc.State(u=u, flux=flux), of_u, of_flux)
    alone = pc.condition(u, pc.integral(X, 0.4)), pc.condition(flux, of_flux)
    for name, one in zip(("u", "flux"), alone, strict=True):
        torch.testing.assert_close(post[name].mean, one.mean)
        torch.testing.assert_close(post[name].variance, one.variance)


def test_what_is_read_of_a_field_that_no_law_reads_is_a_copy(rng):
    state, _ = state_of("independent points", rng)
    post = pc.condition(state, laws(rng)["integral of u"])
    post["flux"].variance[:], post["flux"].mean[:] = 7, 7
    assert torch.equal(post["flux"].mean, state["flux"].mean)
    assert torch.equal(post["flux"].variance, state["flux"].variance)


def test_a_field_of_a_posterior_answers_as_a_field_does(rng):
    state, _ = state_of("dense beside bare low rank", rng)
    law = laws(rng)["integral of u"]
    post = pc.condition(state, law)
    u = post["u"]
    low, high = u.interval(0.9)
    torch.testing.assert_close(torch.special.ndtr((high - u.mean) / u.std), 0 * high + 0.95)
    assert exact_residual(law, u.sample(5, rng)) < 1e-12
    assert u.sample(2, rng).shape == (2, 3, 5)
    assert (low < u.quantile(0.5)).all()
    assert u.marginal_log_prob(u.mean).isfinite().all()
    assert tuple(post) == post.keys() == ("u", "flux")


def test_samples_move_all_fields_together(rng):
    """A law of u alone moves flux by the covariance of the samples."""
    samples = members(rng)
    state = pc.Ensemble(samples, {"u": 0.1, "flux": 0.2}, shrinkage=0.0)
    post = pc.condition(state, laws(rng)["integral of u"])
    apart = pc.State(**{name: state[name] for name in SHAPES})
    still = pc.condition(apart, laws(rng)["integral of u"])
    assert not torch.allclose(post["flux"].mean, state["flux"].mean, atol=0.01)
    assert torch.equal(still["flux"].mean, state["flux"].mean)


def batched(rng):
    samples = members(rng, 2)
    shared = pc.Ensemble(samples, {"u": 0.3, "flux": 0.4}, batch_dims=1, shrinkage=0.0)
    fields = {n: field_of("diagonal", (2, *shape), rng) for n, shape in SHAPES.items()}
    low = field_of("low rank few 1", (2, 3, 5), rng)
    return {
        "shared": shared,
        "points": pc.State(**fields),
        "mixed": pc.State(u=low, flux=fields["flux"]),
    }


@pytest.mark.parametrize("kind", ["shared", "points", "mixed"])
def test_an_entry_of_a_posterior_is_the_posterior_of_that_entry(kind, rng):
    state, value = batched(rng)[kind], normal(2, T, rng=rng)

    def given(b):
        both = {"u": X + 1, "flux": -X[1:]}
        return (
            pc.integral(X, 0.5, of="u"),
            pc.weighted_sum(both, b, noise=0.2),
            pc.boundary(0.1, of="flux"),
        )

    post = pc.condition(state, *given(value))
    for i in range(2):
        alone = pc.condition(state[i], *given(value[i]))
        for name in SHAPES:
            torch.testing.assert_close(post[i][name].mean, alone[name].mean)
            torch.testing.assert_close(post[i][name].variance, alone[name].variance)
            torch.testing.assert_close(post[name][i].mean, alone[name].mean)
        torch.testing.assert_close(post[i].log_evidence, alone.log_evidence)
        draws = post[i].sample(3, rng)
        assert exact_law_residual(given(value[i])[0], draws) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_two_steps_equal_one(kind, rng):
    state, _ = state_of(kind, rng)
    known = laws(rng)
    first, *rest = (known[name] for name in MIXES[3])
    once, twice = pc.condition(state, first, *rest), pc.condition(pc.condition(state, first), *rest)
    for name in SHAPES:
        torch.testing.assert_close(twice[name].mean, once[name].mean, rtol=0, atol=1e-10)
        torch.testing.assert_close(twice[name].variance, once[name].variance, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_gives_the_same_numbers(kind, rng, tmp_path):
    state, _ = state_of(kind, rng)
    first, second = laws(rng)["cells of both"], laws(rng)["rows of both"]
    post = pc.condition(state, first)
    state.save(tmp_path / "state")
    post.save(tmp_path / "post")
    kept, again = pc.State.load(tmp_path / "state"), pc.State.load(tmp_path / "post")
    both = pc.condition(again, second), pc.condition(kept, first, second)
    wanted = pc.condition(post, second)
    for name in SHAPES:
        assert torch.equal(again[name].mean, post[name].mean)
        same = {"rtol": 1e-13, "atol": 1e-13}  # a file holds no strides, which rounding depends on
        torch.testing.assert_close(again[name].variance, post[name].variance, **same)
        for one in both:
            torch.testing.assert_close(one[name].mean, wanted[name].mean, rtol=0, atol=1e-10)
    draws = [one.sample(2, torch.Generator().manual_seed(1)) for one in (again, post)]
    torch.testing.assert_close(*draws, **same)


def test_a_detached_or_moved_state_has_the_same_numbers(rng):
    mean = normal(3, 5, rng=rng).requires_grad_()
    state = pc.State(u=pc.Diagonal(mean, 1.0), flux=field_of("diagonal", (3, 4), rng))
    law = laws(rng)["cells of both"]
    post = pc.condition(state, law)
    assert post["flux"].mean.requires_grad
    for cut in (post.detach(), pc.condition(state.detach(), law)):
        assert not cut["flux"].mean.requires_grad
        assert torch.equal(cut["flux"].mean, post["flux"].mean)
    assert torch.equal(post.to("cpu")["u"].mean, post["u"].mean)
    assert state.to("meta")["u"].mean.device.type == "meta"


def test_gradients_flow_from_one_field_to_the_other(rng):
    law, flux = laws(rng)["cells of both"], field_of("low rank few 1", (3, 4), rng)

    def outputs(mean, variance):
        post = pc.condition(pc.State(u=pc.Diagonal(mean, variance), flux=flux), law)
        return post["flux"].mean, post["flux"].variance

    inputs = normal(3, 5, rng=rng).requires_grad_(), uniform(3, 5, rng=rng).requires_grad_()
    assert torch.autograd.gradcheck(outputs, inputs)


def test_regions_of_one_field_are_rows_of_a_matrix(rng):
    state, _ = state_of("shrunk samples", rng)
    labels, volumes = torch.tensor([1, 0, 1, -1, 0]), uniform(5, rng=rng)
    rows = torch.stack([volumes * (labels == k) for k in range(2)])
    b = normal(T, 2, rng=rng)
    post = pc.condition(state, pc.regions(labels, b, volumes, of="u"))
    wanted = pc.condition(state, pc.linear(rows, b, of="u"))
    for name in SHAPES:
        torch.testing.assert_close(post[name].mean, wanted[name].mean)
        torch.testing.assert_close(post[name].variance, wanted[name].variance)


def test_a_periodic_integral_of_one_field_closes_the_curve(rng):
    x = grid(5, rng)
    period = float(x[-1] - x[0]) + 0.4
    state, _ = state_of("samples", rng)
    law = pc.integral(x, 0.5, rule="periodic", period=period, of="u")
    u = pc.condition(state, law)["u"].mean
    closed, ends = torch.cat([u, u[:, :1]], -1), torch.cat([x, x[:1] + period])
    torch.testing.assert_close(torch.trapezoid(closed, ends), torch.full((T,), 0.5).double())


def test_times_of_a_law_of_both_fields(rng):
    state, sigma = state_of("samples", rng)
    law = pc.weighted_sum({"u": X + 1, "flux": X[1:]}, [0.2, 0.4], times=[2, 0])
    G, b, noise = system([law])
    mean, _ = kalman(flat({n: state[n].mean for n in SHAPES}), sigma, G, b, noise)
    post = pc.condition(state, law)
    np.testing.assert_allclose(flat({n: post[n].mean for n in SHAPES}), mean, atol=1e-9)
    assert exact_law_residual(law, post) < 1e-12


def test_fields_of_other_numbers_of_space_axes(rng):
    plane, total = field_of("diagonal", (3, 2, 4), rng), field_of("diagonal", (3,), rng)
    law = pc.weighted_sum({"plane": torch.ones(2, 4), "total": torch.tensor(-1.0)}, 0.0)
    post = pc.condition(pc.State(plane=plane, total=total), law)
    torch.testing.assert_close(post["plane"].mean.sum((-1, -2)), post["total"].mean)
    alone = pc.linear(torch.cat([torch.ones(8), -torch.ones(1)])[None], 0.0)
    mean = torch.cat([plane.mean.flatten(1), total.mean[:, None]], 1)
    variance = torch.cat([plane.variance.flatten(1), total.variance[:, None]], 1)
    wanted = pc.condition(pc.Diagonal(mean, variance), alone)
    torch.testing.assert_close(post["total"].mean, wanted.mean[:, -1])
    torch.testing.assert_close(post["plane"].variance.flatten(1), wanted.variance[:, :-1])


def test_what_is_no_state_or_no_law_of_it_is_refused(rng):
    u, flux = field_of("diagonal", (3, 5), rng), field_of("diagonal", (3, 4), rng)
    state = pc.State(u=u, flux=flux)
    known = laws(rng)
    post = pc.condition(state, known["integral of u"])
    samples = members(rng)
    for call, message in (
        (lambda: pc.State(), "`fields`: a state needs at least one"),
        (lambda: pc.State(u=pc.Mixture(field_of("diagonal", (2, 3, 5), rng))), "`u` is a Mixture"),
        (lambda: pc.State(u=post["u"]), "`u` is a Posterior"),
        (lambda: pc.State(u=u, flux=flux.to("meta")), "`flux` is on meta but `u` is on cpu"),
        (lambda: pc.State(u=batched(rng)["mixed"]["u"], flux=flux)[2], "first axes|`index`"),
        (lambda: pc.condition(state, pc.integral(X, 0.0)), "`of`: the law `integral` speaks of"),
        (lambda: pc.condition(state, pc.integral(X, 0.0, of="v")), "`of`.* 'v'.* 'u', 'flux'"),
        (lambda: pc.condition(state, pc.integral(X, 0.0, of="flux")), r"`integral`.* \(5,\)"),
        (lambda: pc.condition(post["u"], known["integral of u"]), "condition the state instead"),
        (lambda: state["v"], "`name` must be one of u, flux"),
        (lambda: post[0, 0, 0], "`index`"),
        (lambda: pc.Ensemble({}), "`members` must be arrays, or arrays by the names"),
        (
            lambda: pc.Ensemble(samples, batch_dims=2),
            "`batch_dims` must leave the last axis of `members..u..`",
        ),
        (
            lambda: pc.Ensemble(samples | {"flux": samples["flux"][:5]}),
            "`members` must have the same members on axis 0",
        ),
        (lambda: pc.weighted_sum({"u": X, "v": X}, 0.0).residual(u), "`weighted_sum` reads"),
        (lambda: pc.weighted_sum({"u": X}, 0.0, of="u"), "`of`: the fields are named already"),
        (
            lambda: pc.condition(
                pc.State(u=u, v=pc.Diagonal(u.mean[:2], 1.0)),
                pc.weighted_sum({"u": X, "v": X}, 0.0),
            ),
            "`weighted_sum` adds rows of different shapes",
        ),
    ):
        with pytest.raises(pc.errors.InputError, match=message):
            call()


@pytest.mark.parametrize("kind", ["diagonal", "low rank few 1", "dense 1"])
def test_fields_that_share_no_axis_are_those_that_each_would_be_alone(kind, rng):
    u, v = field_of(kind, (2, 5), rng), field_of("diagonal", (3, 4), rng)
    of_u, of_v = pc.integral(X, 0.3, of="u"), pc.weighted_sum(torch.ones(4), 0.2, noise=0.1, of="v")
    post = pc.condition(pc.State(u=u, v=v), of_u, of_v)
    for name, field, law in (("u", u, of_u), ("v", v, of_v)):
        alone = pc.condition(field, law)
        torch.testing.assert_close(post[name].mean, alone.mean)
        torch.testing.assert_close(post[name].variance, alone.variance)


def test_a_row_that_only_the_directions_can_move_is_met():
    for dtype, large in ((torch.float64, 1.0), (torch.float32, 1e7)):
        u = pc.Diagonal(torch.ones(1, dtype=dtype), torch.full((1,), 1e-6, dtype=dtype))
        v = pc.Dense(torch.zeros(1, dtype=dtype), torch.ones(1, 1, dtype=dtype))
        both = pc.linear({"u": [[large]], "v": [[1.0]]}, [large + 1])
        post = pc.condition(pc.State(u=u, v=v), both, pc.weighted_sum([1.0], 1.0, of="u"))
        for name in "uv":
            assert abs(float(post[name].mean) - 1) < 1e-6
            assert float(post[name].variance) == 0


def test_times_of_a_law_that_reads_several_axes_of_one_field_and_one_of_another():
    law = pc.weighted_sum({"u": torch.ones(5), "v": torch.ones(1, 4)}, [9.0], times=[1])
    arrays = {"u": torch.ones(2, 5), "v": torch.ones(2, 1, 4)}
    assert law.apply(arrays).tolist() == [9.0]


TOTALS = {  # with G of one field at one time, (rows, 5), as NumPy has it
    "integral": (lambda b, of: pc.integral(X, b, of=of, noise=0.1), [np.trapezoid(np.eye(5), X)]),
    "cells": (lambda b, of: pc.weighted_sum(X, b, of=of), [X]),
    "regions": (
        lambda b, of: pc.regions([0, 1, 0, 1, -1], b[..., None] + torch.arange(2), of=of),
        [[1, 0, 1, 0, 0], [0, 1, 0, 1, 0]],
    ),
    "linear": (
        lambda b, of: pc.linear([[1.0, -1, 0, 2, 0]], b[..., None], of=of),
        [[1, -1, 0, 2, 0]],
    ),
    "sparse": (
        lambda b, of: pc.linear(torch.eye(5)[:1].double().to_sparse(), b[..., None], of=of),
        [[1, 0, 0, 0, 0]],
    ),
}


@pytest.mark.parametrize(
    "of", [["v", "c"], ("c", "v"), {"v": 1.0, "c": -0.5}, {"c": np.float32(2)}]
)
@pytest.mark.parametrize("name", TOTALS)
def test_one_total_of_several_fields_is_the_dense_posterior(name, of, rng):
    names, (build, rows) = ("v", "c", "i"), TOTALS[name]
    fields = {n: field_of("low rank few 1", (3, 5), rng) for n in names}
    law = build(b := normal(3, rng=rng), of)
    numbers = [(of[n] if isinstance(of, dict) else 1.0) if n in of else 0.0 for n in names]
    G = np.kron(np.array([numbers]), np.kron(np.eye(3), np.array(rows, float)))
    b = np.repeat(b.numpy(), len(rows)) + np.tile(np.arange(len(rows)), 3)
    sigma = scipy.linalg.block_diag(*(covariance(f) for f in fields.values()))
    prior = np.concatenate([f.mean.flatten().numpy() for f in fields.values()])
    mean, left = kalman(prior, sigma, G, b, np.full(len(b), float(law.noise)))
    post = pc.condition(pc.State(**fields), law)
    for found, wanted in (("mean", mean), ("variance", np.diag(left))):
        each = [getattr(post[n], found).flatten().numpy() for n in names]
        np.testing.assert_allclose(np.concatenate(each), wanted, atol=1e-10)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ([], "`of` must be a name, such as 'u', a list of names, or numbers by names; got"),
        (3, "`of` must be a name, such as 'u', a list"),
        (["u", "u"], "`of` must name each field once"),
        (["u", 2], "`of` must be a name"),
        ({"u": [1.0, 2.0]}, r"`of\['u'\]` must be a number, got an array of shape \(2,\)"),
        ({"u": float("inf")}, r"`of\['u'\]` must be finite"),
    ],
)
def test_names_that_no_total_can_be_of_are_refused(of, said):
    with pytest.raises(pc.errors.InputError, match=said):
        pc.integral(X, 1.0, of=of)


def test_a_law_that_is_no_sum_reads_one_field():
    with pytest.raises(pc.errors.InputError, match="`of`: this law reads one field by its name"):
        pc.periodic(of=["u", "flux"])
    with pytest.raises(pc.errors.InputError, match="`of`: the fields are named already"):
        pc.weighted_sum({"u": X}, 0.0, of=["u"])


def test_what_fields_alone_have_is_asked_of_a_field():
    state = pc.State(u=([1.0, 2.0], 1.0), flux=([0.0], 1.0))
    post = pc.condition(state, pc.weighted_sum([1.0, 1.0], 2.0, of="u"))
    for each, noun in ((state, "State"), (post, "Posterior"), (copy.deepcopy(post), "Posterior")):
        with pytest.raises(AttributeError, match=rf"a {noun} of .*state\['u'\]\.interval\.$"):
            each.interval(0.9)
        with pytest.raises(AttributeError, match=r"state\['u'\]\.mean\.$"):
            _ = each.mean
        assert not hasattr(each, "sea")
