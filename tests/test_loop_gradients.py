"""Gradients beside inequalities: of points, draws and their mean, through all that is given."""

import numpy as np
import pytest
import torch
from seeds import generator

import probconserv as pc

N, DOUBLE = 7, torch.float64
X, RNG = np.linspace(0, 1, N), np.random.default_rng(3)
ROOT = RNG.normal(size=(N, N))
GIVEN = {
    "mean": RNG.normal(size=(2, N)) * 0.5 + 0.2,
    "variance": 0.1 + 0.3 * RNG.random((2, N)),
    "factor": RNG.normal(size=(2, 2, N)) * 0.3,
    "matrix": ROOT @ ROOT.T / N + 0.1 * np.eye(N),
    "total": np.array([0.4, 0.5]),
    "noise": np.array(0.2),
    "low": np.array([0.02, 0.05])[:, None],
    "high": 0.9 + 0.2 * RNG.random(N),
}


def learned(*names):
    return [torch.tensor(GIVEN[name], requires_grad=True) for name in names]


def assert_gradients(found, given, step=1e-6):
    """Along one direction of all that is given, for one weighted sum of all that is found."""
    rng = np.random.default_rng(0)
    along = [torch.as_tensor(rng.normal(size=t.shape)) for t in given]
    u = found(*given)
    weights = torch.as_tensor(rng.normal(size=u.shape))
    slopes = torch.autograd.grad((u * weights).sum(), given, allow_unused=True)
    slope = sum((g * d).sum() for g, d in zip(slopes, along, strict=True) if g is not None)
    ends = [
        found(*((t + s * step * d) for t, d in zip(given, along, strict=True))).detach()
        for s in (1, -1)
    ]
    wanted = ((ends[0] - ends[1]) * weights).sum() / (2 * step)
    assert float(slope) == pytest.approx(float(wanted), rel=1e-4, abs=1e-4)


FIELDS = {
    "diagonal": lambda mean, v, f, c: pc.Diagonal(mean, v),
    "low rank": lambda mean, v, f, c: pc.LowRank(mean, f, v),
    "dense": lambda mean, v, f, c: pc.Dense(mean, (c + c.mT) / 2),
    "state": lambda mean, v, f, c: pc.State(u=pc.Diagonal(mean, v), w=pc.LowRank(mean**2, f, v)),
    "mixture": lambda mean, v, f, c: pc.Mixture(pc.Diagonal(torch.stack([mean, mean + 0.1]), v)),
}
LAWS = {
    "integral": lambda total, noise, of: [pc.integral(X, total, of=of)],
    "regions": lambda total, noise, of: [
        pc.regions(np.arange(N) // 4, 4 * total[:, None] * torch.ones(2), of=of)
    ],
    "smoothness": lambda total, noise, of: [pc.smoothness(X, GIVEN["variance"], 0.5, of=of)],
    "noisy": lambda total, noise, of: [pc.integral(X, total, noise=noise, of=of)],
    "two": lambda total, noise, of: [
        pc.integral(X, total, of=of),
        pc.weighted_sum(X**2, 1.0, noise=noise, of=of),
    ],
    "falling": lambda total, noise, of: [pc.integral(X, total, of=of), pc.monotone(True, of=of)],
    "at most": lambda total, noise, of: [pc.at_most(pc.integral(X, 0.8 * total, of=of))],
    "nonlinear": lambda total, noise, of: [
        pc.nonlinear(lambda u: (u + 0.2 * u**2).mean(-1), total, batch_dims=1, of=of)
    ],
}
PAIRS = [
    (field, law)
    for field in FIELDS
    for law in LAWS
    if not (field == "mixture" and law in ("at most", "nonlinear"))  # refused
]


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
@pytest.mark.parametrize(("field", "law"), PAIRS)
def test_gradients_are_those_of_finite_differences(field, law):
    of = "u" if field == "state" else ""
    count = 0 if law == "nonlinear" and field != "diagonal" else 2  # these draws are slow

    def found(mean, variance, factor, matrix, total, noise, low, high):
        laws = *LAWS[law](total, noise, of), pc.bounds(low, high, of=of)
        prior = FIELDS[field](mean, variance, factor, matrix)
        post = pc.condition(prior, *laws, draws=count, generator=generator())
        parts = getattr(post, "parts", [post])
        every = [u.point[None] for u in parts]
        assert ((every[0] == low) | (every[0] == high)).any()
        if count:
            every += [t for u in parts for t in (u.draws, u.mean[None])]
        return torch.cat(every)

    given = learned("mean", "variance", "factor", "matrix", "total", "noise", "low", "high")
    assert_gradients(found, given)


@pytest.mark.parametrize("what", ["point", "variance", "sample"])
def test_without_draws_gradients_go_through_bounds_too(what):
    def found(mean, variance, total, low):
        laws = pc.integral(X, total), pc.bounds(low)
        post = pc.condition(pc.Diagonal(mean, variance), *laws, draws=0)
        return post.sample(2, generator()) if what == "sample" else getattr(post, what)

    given = learned("mean", "variance", "total", "low")
    assert_gradients(found, given)


@pytest.mark.parametrize("law", ["integral", "regions", "falling", "at most", "nonlinear"])
def test_project_has_gradients_through_values_and_bounds(law):
    def found(mean, total, low, high):
        laws = *LAWS[law](total, 0.0, ""), pc.bounds(low, high)
        return pc.project(pc.Diagonal(mean, 1.0), *laws).mean

    given = learned("mean", "total", "low", "high")
    assert_gradients(found, given)


@pytest.mark.parametrize("draws", [0, 2])
def test_a_point_at_its_bound_follows_it_and_the_others_make_up_for_it(draws):
    low = torch.tensor([0.1, -1.0, -1.0], dtype=DOUBLE, requires_grad=True)
    prior, total = pc.Diagonal([-1.0, 0.5, 0.7], 1.0), pc.weighted_sum(torch.ones(3), 1.0)
    post = pc.condition(prior, total, pc.bounds(low), draws=draws, generator=generator())
    rows = [torch.autograd.grad(u, low, retain_graph=True)[0] for u in post.point]
    near = torch.tensor([[1.0, 0, 0], [-0.5, 0, 0], [-0.5, 0, 0]], dtype=DOUBLE)
    torch.testing.assert_close(torch.stack(rows), near, rtol=0, atol=1e-12)


def test_bounds_of_monotone_values_are_carried_with_their_gradient():
    low = np.array([0.0, 0.3, -0.1, 0.2, 0.6, 0.1, 0.5])

    def point(mean, low):
        return pc.project(pc.Diagonal(mean, 1.0), pc.bounds(low), pc.monotone()).mean

    given = *learned("mean"), torch.tensor(low, requires_grad=True)
    assert_gradients(point, given)


def test_equal_bounds_fix_a_point_which_follows_both():
    at = torch.tensor(0.3, dtype=DOUBLE, requires_grad=True)
    end = torch.tensor([1.0, 0.0, 0.0], dtype=DOUBLE)
    rest = torch.tensor([0.0, torch.inf, torch.inf], dtype=DOUBLE)
    prior, total = pc.Diagonal([0.0, 0.5, 0.7], 1.0), pc.weighted_sum(torch.ones(3), 1.0)
    bounds = pc.bounds(at * end - rest, at * end + rest)
    post = pc.condition(prior, total, bounds, draws=2, generator=generator())
    rows = [float(torch.autograd.grad(u, at, retain_graph=True)[0]) for u in post.point]
    assert rows == pytest.approx([1.0, -0.5, -0.5], abs=1e-12)


@pytest.mark.parametrize("way", ["project", "condition"])
@pytest.mark.parametrize("with_total", [False, True])
def test_a_point_just_at_its_bound_has_the_gradient_of_one_side(way, with_total):
    mean = torch.tensor([0.0, 0.4, 0.6], dtype=DOUBLE, requires_grad=True)
    laws = [pc.weighted_sum(torch.ones(3), 1.0)] * with_total + [pc.bounds(0.0)]

    def point(mean):
        prior = pc.Diagonal(mean, 1.0)
        if way == "project":
            return pc.project(prior, *laws).mean
        return pc.condition(prior, *laws, draws=2, generator=generator()).point

    u, step = point(mean), 1e-6
    assert float(u[0].detach()) == pytest.approx(0.0, abs=1e-15)
    jacobian = torch.stack([torch.autograd.grad(x, mean, retain_graph=True)[0] for x in u])
    unit = torch.tensor([step, 0, 0], dtype=DOUBLE)
    sides = [(point(mean + s * unit) - u).detach() / (s * step) for s in (1, -1)]
    assert (sides[0] - sides[1]).abs().max() > 0.1
    assert min((jacobian[:, 0] - side).abs().max() for side in sides) < 1e-8


STRAIGHT = pc.bounds(0.0, 0.6, gradient="straight_through")
WAYS = {
    "condition": lambda prior, *laws: pc.condition(prior, *laws, draws=2, generator=generator()),
    "no draws": lambda prior, *laws: pc.condition(prior, *laws, draws=0),
    "project": pc.project,
}


@pytest.mark.parametrize("field", ["diagonal", "low rank", "dense"])
@pytest.mark.parametrize("way", WAYS)
def test_straight_through_is_the_gradient_without_the_bounds(field, way):
    def gradients(prior_and_laws_to_u):
        given = learned("mean", "variance", "factor", "matrix", "total")
        u = prior_and_laws_to_u(FIELDS[field](*given[:4]), pc.integral(X, given[4]))
        weights = torch.linspace(-1, 1, N, dtype=DOUBLE)
        found = torch.autograd.grad((u * weights).sum(), given, allow_unused=True)
        return u, [t for t in found if t is not None]

    def moved(*bounds):
        def point(prior, law):
            post = WAYS[way](prior, law, *bounds)
            return post.mean if way == "project" else post.point

        return gradients(point)

    u, found = moved(STRAIGHT)
    exact, other = moved(pc.bounds(0.0, 0.6))
    plain = pc.project if way == "project" else pc.condition
    _, wanted = gradients(lambda prior, law: plain(prior, law).mean)
    assert torch.equal(u, exact)
    assert ((u == 0) | (u == 0.6)).any()
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert any((a - b).abs().max() > 1e-3 for a, b in zip(found, other, strict=True))


def test_straight_through_leaves_order_and_laws_that_are_not_linear_as_they_are():
    (mean,) = learned("mean")
    bent = pc.nonlinear(lambda u: (u + 0.2 * u**2).mean(-1), GIVEN["total"], batch_dims=1)
    for law in (bent, pc.monotone(True)):
        u = pc.condition(pc.Diagonal(mean, 0.2), law, STRAIGHT, draws=0).point
        held = (u == 0) | (u == 0.6)
        (found,) = torch.autograd.grad(u[held].sum(), mean)
        assert held.any()
        assert (found[held] != 0).any()
    (along,) = torch.autograd.grad(pc.project(pc.Diagonal(mean, 1.0), STRAIGHT).mean.sum(), mean)
    assert torch.equal(along, torch.ones_like(mean))


def test_what_straight_through_cannot_do_is_refused():
    (low,) = learned("low")
    prior = pc.Diagonal(GIVEN["mean"], 1.0)
    with pytest.raises(pc.errors.InputError, match=r"`gradient` must be one of .*straight"):
        pc.bounds(0.0, gradient="straight")
    with pytest.raises(pc.errors.InputError, match="`gradient`: no value is at a `truncated`"):
        pc.bounds(0.0, truncated=True, gradient="straight_through")
    with pytest.raises(pc.errors.InputError, match="`gradient`: 'straight_through' leaves bounds"):
        pc.project(prior, pc.bounds(low, gradient="straight_through"))


@pytest.mark.parametrize("what", ["mean", "variance", "point"])
def test_truncated_bounds_have_gradients_in_closed_form(what):
    rng, count = np.random.default_rng(0), 60
    arrays = rng.normal(size=count) * 0.5, 0.1 + rng.random(count), 0.6, 0.05
    given = [torch.tensor(a, dtype=DOUBLE, requires_grad=True) for a in arrays]

    def found(mean, variance, total, low):
        laws = pc.weighted_sum(np.ones(count) / count, total), pc.bounds(low, truncated=True)
        prior = pc.Diagonal(mean, variance)
        return getattr(pc.condition(prior, *laws, draws=2, generator=generator()), what)

    assert_gradients(found, given)


@pytest.mark.parametrize(
    "read", [lambda p: p.draws, lambda p: p.sample(2, generator()), lambda p: p.interval(0.9)[0],
             lambda p: p.variance],
    ids=["draws", "sample", "interval", "variance"],
)  # fmt: skip
def test_what_has_no_gradient_within_truncated_bounds_says_so(read):
    (mean,) = learned("mean")
    laws = pc.integral(X, 0.6), pc.bounds(0.0, truncated=True)
    post = pc.condition(pc.Diagonal(mean, 0.3), *laws, draws=5, generator=generator())
    with pytest.raises(pc.errors.DegenerateError, match="`truncated` bounds have no gradient"):
        read(post).sum().backward()


@pytest.mark.parametrize("read", [lambda p: torch.stack(p.interval(0.8)), lambda p: p.crps(0.4)])
def test_intervals_and_scores_of_draws_have_gradients(read):
    def found(mean, variance, low):
        laws = pc.integral(X, GIVEN["total"]), pc.bounds(low)
        prior = pc.Diagonal(mean, variance)
        return read(pc.condition(prior, *laws, draws=6, generator=generator()))

    given = learned("mean", "variance", "low")
    assert_gradients(found, given)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("draws", [0, 3])
def test_gradients_go_through_casts_and_rounded_bounds(dtype, draws):
    given = {name: torch.tensor(GIVEN[name], dtype=dtype, requires_grad=True) for name in ("mean",)}
    low = torch.tensor(0.1, dtype=DOUBLE, requires_grad=True)  # no number of float32
    (wide,) = learned("mean")
    found = []
    for mean in (given["mean"], wide):
        prior = pc.Diagonal(mean, torch.full_like(mean, 0.25).detach())
        laws = pc.integral(X, [0.5, 0.75]), pc.bounds(low)
        u = pc.condition(prior, *laws, draws=draws, generator=generator()).point
        weights = torch.linspace(-1, 1, N, dtype=u.dtype)
        found.append(torch.autograd.grad((u * weights).sum(), (mean, low)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=0, atol=5e-3)
    assert float(found[0][1]) != 0


@pytest.mark.parametrize("draws", [0, 3])
def test_noise_of_zero_beside_noise_has_a_gradient_that_is_finite(draws):
    noise = torch.tensor([0.0, 0.2], dtype=DOUBLE, requires_grad=True)
    laws = pc.integral(X, GIVEN["total"], noise=noise), pc.bounds(0.0)
    prior = pc.Diagonal(GIVEN["mean"], 0.3)
    post = pc.condition(prior, *laws, draws=draws, generator=generator())
    (found,) = torch.autograd.grad(post.point[:, 0].sum(), noise)
    assert found.isfinite().all()


def test_a_function_with_parameters_learns_beside_bounds():
    scale = torch.ones(N, dtype=DOUBLE, requires_grad=True)

    def found(mean, scale):
        energy = pc.nonlinear(lambda u: (scale * u.square()).mean(), 0.4)
        prior = pc.Diagonal(mean[0], 0.2)
        return pc.condition(prior, energy, pc.bounds(0.0), draws=2, generator=generator()).draws

    given = *learned("mean"), scale
    assert_gradients(found, given)
