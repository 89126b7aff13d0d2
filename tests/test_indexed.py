"""An entry of a posterior is the posterior of that entry, whatever axes a law has."""

import inspect
import re

import pytest
import torch

import probconserv as pc
from probconserv import api

B, T, M = 2, 4, 6
rng = torch.Generator().manual_seed(5)


def normal(*shape):
    return torch.randn(shape, generator=rng, dtype=torch.float64)


class At:
    """Reads the entries `index` of tensors (batch, time, ...)."""

    def __init__(self, *index):
        self.index = index
        self.lead = 2 - sum(isinstance(i, int) for i in index)

    def __call__(self, t):
        return t[self.index]

    def time(self, t):  # of tensors that have time, and no batch
        return t[self.index[1:]]


X, TIMES = torch.linspace(0, 1, M, dtype=torch.float64) ** 2, torch.arange(T)
LABELS, MASK = torch.tensor([0, 1, 1, 0, -1, 1]), normal(B, T, M) > -0.8
MASK[..., :2] = True  # each region keeps a point
TOTAL, PAIR, MATRIX = normal(B, T), normal(B, T, 2), normal(B, T, 2, M)
SIGMA, VOLUMES = normal(B, T).abs() + 0.1, normal(B, T, M).abs() + 0.2
MESH, SPEED = pc.Mesh(x=[0.0, 0.3, 1.0, 1.2, 1.5, 2.0, 2.1]), normal(T, M + 1)
FLUX, SOURCE = normal(B, T - 1, M + 1), normal(B, T - 1, M)

LAWS = {
    "integral": lambda at: pc.integral(X, at(TOTAL), noise=at.time(SIGMA[0])),
    "integral, mask": lambda at: pc.integral(X, at(TOTAL), where=at(MASK)),
    "integral, mask over time": lambda at: pc.integral(X, at(TOTAL), where=at.time(MASK[0])),
    "weighted_sum": lambda at: pc.weighted_sum(at(VOLUMES), at(TOTAL), at(SIGMA), space_dims=1),
    "weighted_sum over time": lambda at: pc.weighted_sum(
        at.time(VOLUMES[0]), at(TOTAL), where=at.time(MASK[0]), space_dims=1
    ),
    "regions": lambda at: pc.regions(LABELS, at(PAIR), noise=at.time(PAIR[0]).abs()),
    "regions, mask": lambda at: pc.regions(LABELS, at(PAIR), where=at(MASK)),
    "regions, mask over time": lambda at: pc.regions(LABELS, at(PAIR), where=at.time(MASK[0])),
    "smoothness": lambda at: pc.smoothness(X, at(VOLUMES), 0.5),
    "smoothness over time": lambda at: pc.smoothness(X, at.time(VOLUMES[0]), 0.5),
    "boundary": lambda at: pc.boundary(at(TOTAL), at.time(SIGMA[0]), noise=at(SIGMA)),
    "periodic": lambda at: pc.periodic(noise=at(SIGMA)),
    "linear": lambda at: pc.linear(at(MATRIX), at(PAIR), batch_dims=at.lead),
    "linear over time": lambda at: pc.linear(
        at.time(MATRIX[0]), at(PAIR), at(SIGMA)[..., None], batch_dims=at.time(MATRIX[0]).ndim - 2
    ),
}
OF_ALL_TIMES = {  # only the batch can be indexed
    "initial": lambda at: pc.initial(at(SOURCE)[..., 0, :]),
    "integral at some times": lambda at: pc.integral(X, at(TOTAL)[..., 1:], times=[1, 2, 3]),
    "budget": lambda at: pc.budget(X, TIMES, inflow=at(FLUX)[..., 0], of=""),
    "cell_budgets": lambda at: pc.cell_budgets(
        MESH, TIMES, at(FLUX), at(SOURCE), SPEED, noise=at(SOURCE).abs(), of=""
    ),
}
EVERY = (slice(None),)
ENTRIES = [(1,), (slice(0, 1),), (1, 2), (1, slice(1, 3)), (slice(None), 3)]
FIELDS = {
    "Diagonal": lambda at: pc.Diagonal(at(MEAN), at(VOLUMES)),
    "LowRank": lambda at: pc.LowRank(at(MEAN), FACTOR[(slice(None), *at.index)], at(VOLUMES)),
    "Dense": lambda at: pc.Dense(at(MEAN), at(COVARIANCE)),
}
MEAN, FACTOR, ROOT = normal(B, T, M), normal(3, B, T, M), normal(B, T, M, M)
COVARIANCE = ROOT @ ROOT.mT
CASES = [(law, index) for law in LAWS for index in ENTRIES]
CASES += [(law, index) for law in OF_ALL_TIMES for index in ENTRIES[:2]]


def test_every_function_that_makes_a_law_is_here():
    functions = [f for f in vars(api).values() if inspect.isfunction(f)]
    makers = {f.__name__ for f in functions if f.__annotations__["return"] is pc.laws.Law}
    assert makers == {re.split("[ ,]", name)[0] for name in LAWS | OF_ALL_TIMES}


def same(entry, wanted):
    """Two posteriors agree in everything that laws change."""
    v = torch.arange(wanted.mean.numel()).double().reshape(wanted.shape).cos()
    normals = torch.randn(3, wanted.normals_per_draw, generator=torch.Generator().manual_seed(1))
    for get in (
        lambda post: post.mean,
        lambda post: post.variance,
        lambda post: post.covariance_times(v),
        lambda post: post.log_evidence,
        lambda post: post.sample_with(normals.double()),
    ):
        torch.testing.assert_close(get(entry), get(wanted), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a total"])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(("law", "index"), CASES)
def test_an_entry_is_the_posterior_of_that_entry(law, index, field, beside):
    def posterior(at):
        more = [pc.weighted_sum(X + 0.1, at(TOTAL), noise=0.3)] if beside else []
        return pc.condition(FIELDS[field](at), (LAWS | OF_ALL_TIMES)[law](at), *more)

    same(posterior(At(*EVERY))[index], posterior(At(*index)))


@pytest.mark.parametrize("index", ENTRIES)
def test_an_entry_of_a_state_is_the_posterior_of_that_entry(index):
    def posterior(at):
        state = pc.State(u=FIELDS["Diagonal"](at), w=FIELDS["LowRank"](at))
        both, mask = {"u": at.time(VOLUMES[0]), "w": at(VOLUMES)}, at.time(MASK[0])
        total = pc.weighted_sum(both, at(TOTAL), where=mask, space_dims=1)
        return pc.condition(state, total, pc.regions(LABELS, at(PAIR), where=mask, of="w"))

    entry, wanted = posterior(At(*EVERY))[index], posterior(At(*index))
    same(entry["u"], wanted["u"])
    same(entry["w"], wanted["w"])


def test_a_mask_with_other_times_than_the_field_is_refused():
    law = pc.regions(LABELS, [0.0, 1.0], where=MASK[0, :3])
    with pytest.raises(pc.errors.InputError, match=r"`regions`.*axes \(3,\).*shape \(2, 4, 6\)"):
        pc.condition(FIELDS["Diagonal"](At(*EVERY)), law)
