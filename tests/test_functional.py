"""`torch.func` of functions that build their laws: what autograd and loops give."""

import inspect
import re

import pytest
import torch

import probconserv as pc
from probconserv import api

T, M = 3, 7
rng = torch.Generator().manual_seed(8)


def normal(*shape):
    return torch.randn(shape, generator=rng, dtype=torch.float64)


X = torch.linspace(0, 1, M, dtype=torch.float64) ** 2
TOTAL, PAIR, SIGMA = normal(T), normal(T, 2), normal(T).abs() + 0.1
VOLUMES, MATRIX, SPREAD = normal(M).abs() + 0.1, normal(2, M), normal(T, M).abs() + 0.2
EDGES, SPEED = torch.linspace(0, 2, M + 1, dtype=torch.float64) ** 2, normal(M + 1)
TIMES = torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64)
LABELS, WHERE = torch.tensor([0, 1, 1, 0, -1, 1, 0]), torch.arange(M) != 2
MESH = pc.Mesh(x=EDGES)

LAWS = {  # each a function of tensors, and the tensors
    "integral": (lambda x, b: pc.integral(x, b), X, TOTAL),
    "integral simpson": (lambda x, b, s: pc.integral(x, b, "simpson", s), X, TOTAL, SIGMA),
    "integral periodic": (lambda x, b: pc.integral(x, b, "periodic", period=2.0), X, TOTAL),
    "integral cell": (lambda x, b: pc.integral(x, b, "cell", where=WHERE), EDGES, TOTAL),
    "integral of two times": (lambda x, b: pc.integral(x, b, times=[0, 2]), X, TOTAL[1:]),
    "integral of a mesh": (lambda x, b: pc.integral(pc.Mesh(x=x), b), EDGES, TOTAL),
    "weighted_sum": (lambda v, b: pc.weighted_sum(v, b, where=WHERE), VOLUMES, TOTAL),
    "regions": (lambda v, b: pc.regions(LABELS, b, v), VOLUMES, PAIR),
    "smoothness": (lambda x, v: pc.smoothness(x, v, 0.5), X, SPREAD),
    "smoothness, all of it": (lambda x, v: pc.smoothness(x, v, 1.0), X, SPREAD),
    "boundary": (lambda a, b, s: pc.boundary(a, b, noise=s), TOTAL, SIGMA, SIGMA),
    "periodic": (lambda s: pc.periodic(noise=s), SIGMA),
    "initial": (lambda u: pc.initial(u), SPREAD[0]),
    "linear": (lambda m, b: pc.linear(m, b), MATRIX, PAIR),
    "budget": (lambda x, b: pc.budget(x, TIMES, inflow=b, of=""), X, TOTAL),
    "budget of a mesh": (lambda t, b: pc.budget(MESH, t, outflow=b, of=""), TIMES, TOTAL),
    "cell_budgets": (
        lambda t, v, q: pc.cell_budgets(MESH, t, 0.0, q, v, 0.1, noise=0.1, of=""),
        TIMES,
        SPEED,
        VOLUMES,
    ),
    "integral with quadrature_noise": (
        lambda x, b: pc.integral(x, b, noise=pc.diagnostics.quadrature_noise((MEAN, SPREAD), x)),
        X,
        TOTAL,
    ),
    "integral with learned_noise": (
        lambda x, b: pc.integral(
            x, 0.0, noise=pc.diagnostics.learned_noise(MANY, pc.integral(x, b))
        ),
        X,
        TOTAL,
    ),
    "integral with balance": (
        lambda t, b: pc.integral(X, pc.laws.balance(t, 1.0, b)),
        TIMES,
        TOTAL,
    ),
}
MEAN, MANY = normal(T, M).cumsum(-1), normal(5, T, M)


def score(law, mean, *given):
    """A number that everything in a posterior has a part in."""
    post = pc.condition(pc.Diagonal(mean, SPREAD), law(*given))
    ramp = torch.linspace(1, 2, mean.numel(), dtype=torch.float64).reshape(mean.shape)
    return (ramp * (post.mean + post.variance)).sum() + 0.1 * post.log_evidence.sum()


def by_autograd(name):
    law, *given = LAWS[name]
    leaves = [t.clone().requires_grad_() for t in (MEAN, *given)]
    return torch.autograd.grad(score(law, *leaves), leaves)


def test_every_function_that_makes_a_law_is_here():
    functions = [f for f in vars(api).values() if inspect.isfunction(f)]
    makers = {f.__name__ for f in functions if f.__annotations__["return"] is pc.laws.Law}
    assert makers == {re.split("[ ,]", name)[0] for name in LAWS}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev, torch.func.jacfwd])
def test_derivatives_are_those_of_autograd(name, transform):
    law, *given = LAWS[name]
    wanted = by_autograd(name)
    of_mean = transform(lambda mean: score(law, mean, *given))(MEAN)
    torch.testing.assert_close(of_mean, wanted[0], rtol=1e-8, atol=1e-10)
    of_all = transform(lambda *all_of: score(law, *all_of), tuple(range(len(wanted))))(MEAN, *given)
    torch.testing.assert_close(of_all, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", LAWS)
def test_vmap_gives_what_a_loop_gives(name):
    law, *given = LAWS[name]
    means = torch.stack([MEAN, MEAN + 0.5])
    more = [torch.stack([t, 1.25 * t]) for t in given]
    wanted = torch.stack([score(law, *each) for each in zip(means, *more, strict=True)])
    mapped = torch.func.vmap(lambda *all_of: score(law, *all_of))(means, *more)
    torch.testing.assert_close(mapped, wanted, rtol=1e-9, atol=1e-10)
    of_means = torch.func.vmap(lambda mean: score(law, mean, *given))(means)
    wanted = torch.stack([score(law, mean, *given) for mean in means])
    torch.testing.assert_close(of_means, wanted, rtol=1e-9, atol=1e-10)


def test_a_law_that_is_not_linear_refuses_to_be_mapped_over_its_value():
    """It ended in an error of torch."""

    def mean(value):
        return pc.condition(pc.Diagonal(MEAN, 1.0), pc.nonlinear(torch.sum, value)).mean

    with pytest.raises(pc.errors.InputError, match=r"`laws`.*not inside `torch\.func`"):
        torch.func.vmap(mean)(TOTAL)


def test_a_closed_mesh_is_known_to_be_closed_inside_a_transform():
    """Its check looked at values."""
    mesh = pc.Mesh(x=EDGES, periodic=("x",))

    def mean(t):
        return pc.condition(pc.Diagonal(MEAN, 1.0), pc.budget(mesh, t, of="")).mean

    torch.testing.assert_close(torch.func.vmap(mean)(TIMES[None])[0], mean(TIMES))
