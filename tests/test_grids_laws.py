"""Laws of functions on a grid: compared with targets, and trained through."""

import dataclasses

import numpy as np
import pytest
import torch
from seeds import generator

import probconserv as pc
from probconserv import ImplausibleWarning
from probconserv.data import Grids
from probconserv.errors import InputError
from probconserv.problems import Stefan
from probconserv.training import KINDS, RECIPES, train
from probconserv.training._fields import FieldTask
from probconserv.training._source import source_of

T, X = torch.linspace(0, 1, 3).double(), torch.linspace(0, 1, 12).double()
K = torch.linspace(1, 2, 8)[:, None].double()
U = (3 * K[:, None] * X + T[:, None]).sin().square() + 0.2  # (8, 3, 12)
ENERGY = U.square().mean(-1)
SIZES = {"width": 4, "layers": 2, "members": 2, "modes": [0, 3]}
PLAN = {"model": "fno", "device": "cpu", "sizes": SIZES, "steps": 2, "batch": 4, "samples": 3}


def energy(some):
    return pc.nonlinear(lambda u: u.square().mean(), some.totals, batch_dims=3, label="energy")


def grids(law, totals=None, u=U):
    return Grids(K, u, {"t": T, "x": X}, totals, law=law)


def test_laws_that_hold_pass_without_a_word():
    grids(energy, ENERGY)
    some = grids(lambda some: (energy(some), pc.bounds(low=0.0), pc.at_most(energy(some))), ENERGY)
    assert [law.label for law in some[2:4].to(torch.float32).laws] == ["energy", "bounds", "energy"]
    assert some.describe()["laws"] == ["energy", "bounds", "energy"]
    grids(lambda some: pc.integral(X, some.totals, noise=0.5), U.mean(-1))
    t, x = Stefan.grid(times=20, points=33)
    exact = Grids.of_problem(Stefan, t, x, n=20)  # whose rule misses the jump
    Grids(exact.inputs, exact.targets, exact.coordinates, exact.totals, law=of_rule(x))


def of_rule(x):
    return lambda some: pc.integral(x, some.totals)


@pytest.mark.parametrize(
    ("law", "told"),
    [
        (energy, r"`law`: `energy` .* 24 of 24 rows are off, by up to 1.1\d %"),
        (of_rule(X), r"`integral` does not hold in `targets`: 2\d of 24 rows"),
        (lambda some: pc.at_least(energy(some)), "`energy` .* 24 of 24"),
        (lambda some: pc.bounds(high=1.0), r"`bounds` .* \d+ of 288 rows are off"),
        (lambda some: pc.monotone(), "`monotone` does not hold"),
    ],
)
def test_laws_that_targets_do_not_obey_are_said(law, told):
    with pytest.warns(ImplausibleWarning, match=told):
        grids(law, 1.012 * ENERGY)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"law": 3}, "`law` must be a function from `Grids` to laws"),
        ({"law": lambda some: some.totals}, "`law` must be a function .* it returned Tensor"),
        ({"law": lambda some: ()}, "`law` must be .* it returned none"),
        ({"law": lambda some: pc.bounds(0.0, truncated=True)}, "`truncated` bounds have no grad"),
        ({"law": energy, "rule": "left"}, "`rule` is for totals without `law`"),
        ({"law": energy, "totals": ENERGY[:3]}, "`totals` must have an entry for each of the 8"),
        ({"law": lambda some: pc.integral(X[:5], 1.0)}, "`integral`: it was built for fields"),
    ],
)
def test_laws_that_do_not_fit_are_refused(named, told):
    with pytest.raises(InputError, match=told):
        Grids(K, U, {"t": T, "x": X}, **{"totals": ENERGY, **named})
    with pytest.raises(InputError, match="`law` was not given"):
        _ = grids(None).laws


def test_values_of_a_law_are_read_from_a_dataset_with_any_dimensions():
    xarray = pytest.importorskip("xarray")
    halves = torch.stack([U[..., :6].sum(-1), U[..., 6:].sum(-1)], -1)
    data = xarray.Dataset(
        {
            "u": (("sample", "t", "x"), U.numpy()),
            "k": (("sample",), K[:, 0].numpy()),
            "halves": (("half", "sample", "t"), halves.movedim(-1, 0).numpy()),
            "number": (("half",), np.ones(2)),
        },
        {"t": T.numpy(), "x": X.numpy()},
    )

    def law(some):
        return pc.regions([0] * 6 + [1] * 6, some.totals.movedim(1, -1))

    found = Grids.from_xarray(data, "k", "u", totals="halves", law=law)
    assert found.totals.shape == (8, 2, 3)
    with pytest.raises(InputError, match="`totals` number must have the dimension 'sample'"):
        Grids.from_xarray(data, "k", "u", totals="number", law=law)
    with pytest.raises(InputError, match="`totals` must be variables on the same dimensions"):
        Grids.from_xarray(data, "k", "u", totals=["halves", "k"], law=law)


def task_of(data, through, **changes):
    kind = KINDS["fno"]
    plan = {**kind.recipes["modern"], "batch": 4, "samples": 3, "through": through, **changes}
    recipe = dataclasses.replace(RECIPES["modern"], **plan)
    source = source_of(data, data[:2], recipe, 0)
    with torch.random.fork_rng():
        torch.manual_seed(generator().initial_seed())
        network = kind.build(source, recipe, SIZES)
    return FieldTask(network, source, recipe, 0, slice(None), torch.device("cpu"))


def predicted():
    """What a network might give: (members, n, fields, T, X)."""
    noise = torch.randn(2, 8, 1, 3, 12, generator=generator(), dtype=torch.float64)
    mean = U[None, :, None] + 0.1 * noise
    return mean.requires_grad_(), torch.full_like(mean, 0.2).requires_grad_()


@pytest.mark.parametrize("score", ["ll", "crps"])
def test_the_loss_is_that_of_each_function_given_its_own_law(score):
    data = grids(energy, ENERGY)
    mean, std = predicted()
    values = task_of(data, score)._after(mean, std, data, score)
    member, i, j = 1, 5, 2
    one = pc.Diagonal(mean[member, i, 0, j].detach(), 0.04)
    law = pc.nonlinear(lambda u: u.square().mean(), float(ENERGY[i, j]))
    post = pc.condition(one, law)
    known = -post.marginal_log_prob(U[i, j])
    if score == "crps":
        z = (U[i, j] - post.mean) / post.std
        known = post.std * pc.diagnostics.crps(z)
    torch.testing.assert_close(values[member, i, 0, j].detach(), known, rtol=1e-7, atol=1e-9)


LAWS = {
    "ll of an energy": ("ll", energy),
    "crps of an energy": ("crps", energy),
    "ll of two halves": ("ll", lambda some: pc.regions([0] * 6 + [1] * 6, 3.0, noise=0.5)),
    "crps of bounds": ("crps", lambda some: (pc.integral(X, 0.7), pc.bounds(low=0.3))),
    "crps of order": ("crps", lambda some: pc.monotone()),
    "crps of an energy within bounds": (
        "crps",
        lambda some: (energy(some), pc.bounds(low=0.3)),
    ),
}


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
@pytest.mark.parametrize("name", LAWS)
def test_the_gradient_of_the_loss_is_its_slope(name):
    score, law = LAWS[name]
    data = grids(law, ENERGY)
    mean, std = predicted()
    task = task_of(data, score)

    def loss(a, b):
        with torch.random.fork_rng():
            torch.manual_seed(3)  # of the draws within inequalities
            return task._after(a, b, data, score).mean()

    gradients = torch.autograd.grad(loss(mean, std), (mean, std))
    assert all(bool(g.isfinite().all()) and bool((g != 0).any()) for g in gradients)
    step = 1e-6
    with torch.no_grad():
        size = sum(float(g.square().sum()) for g in gradients)
    ends = []
    for sign in (1, -1):
        moved = [
            (x + sign * step * g / size**0.5).detach().requires_grad_()
            for x, g in zip((mean, std), gradients, strict=True)
        ]
        ends.append(float(loss(*moved).detach()))
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(size**0.5, rel=2e-3)


def test_points_that_a_law_fixes_are_no_infinity():
    data = grids(lambda some: pc.initial(some.targets[:, 0]), ENERGY)
    mean, std = predicted()
    for score in ("ll", "crps"):
        values = task_of(data, score)._after(mean, std, data, score)
        assert float(values[:, :, :, 0].detach().abs().max()) < 1e-9
        (gradient,) = torch.autograd.grad(values.mean(), mean)
        assert bool(gradient.isfinite().all())


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
def test_a_network_is_trained_through_a_law_and_its_card_names_it(tmp_path):
    data = grids(lambda some: (pc.integral(X, some.totals), pc.bounds(low=0.0)), trapezoid())
    network = train(data, tmp_path, **PLAN, through="crps", held_out=data[:2])
    assert network.card["data"]["laws"] == ["integral", "bounds"]
    assert np.isfinite(network.card["constrained_crps"])
    other = grids(lambda some: pc.integral(X, some.totals), trapezoid())
    with pytest.raises(InputError, match=r"`laws` is .* but the checkpoint"):
        train(other, tmp_path, **PLAN, through="crps", held_out=other[:2])


def trapezoid():
    return torch.trapezoid(U, X)


def test_totals_of_any_shape_are_left_where_a_step_takes_some_times():
    data = grids(lambda some: pc.bounds(low=0.0), torch.ones(8, 2))
    task = task_of(data, None, loss="crps", times=2)
    assert task.part is not None
    assert bool(task.loss(torch.tensor(0)).isfinite())


@pytest.mark.parametrize(
    ("law", "changes", "told"),
    [
        (lambda some: pc.bounds(low=0.0), {"through": "ll"}, "`through` must be 'crps' with `bou"),
        (energy, {"through": "ll", "noise": 0.1}, "`noise` is for totals without `law`"),
        (None, {"through": "ll"}, "`through` needs the `totals` of the data, or its `law`"),
        (energy, {"through": "ll", "held_out": 0}, "`held_out` must have a `law` as `data` has"),
    ],
)
def test_what_does_not_go_through_a_law_is_refused(law, changes, told, tmp_path):
    data = grids(law, ENERGY if law else None)
    if "held_out" in changes:
        changes = {**changes, "held_out": Grids(K, U, {"t": T, "x": X})}
    with pytest.raises(InputError, match=told):
        train(data, tmp_path, **PLAN, **changes)
