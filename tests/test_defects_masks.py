"""A wrong number of version 0.1.0: masked NumPy arrays lost their mask. Each test failed there."""

import numpy as np
import pytest
import torch

import probconserv as pc

FIELD = np.ones((2, 3))
LAW = pc.weighted_sum([1.0, 1.0, 1.0], 3.0)


def seeded():
    return torch.Generator().manual_seed(0)


TAKERS = {
    "Diagonal mean": lambda m: pc.Diagonal(m(2, 3), 1.0),
    "Diagonal variance": lambda m: pc.Diagonal(FIELD, m(2, 3)),
    "LowRank mean": lambda m: pc.LowRank(m(2, 3), np.ones((4, 2, 3))),
    "LowRank factor": lambda m: pc.LowRank(FIELD, m(4, 2, 3)),
    "LowRank variance": lambda m: pc.LowRank(FIELD, np.ones((4, 2, 3)), m(2, 3)),
    "Ensemble members": lambda m: pc.Ensemble(m(4, 2, 3), batch_dims=1),
    "Ensemble variance": lambda m: pc.Ensemble(np.eye(6).reshape(6, 2, 3), m(2, 3), batch_dims=1),
    "Dense mean": lambda m: pc.Dense(m(2, 3), np.stack([np.eye(3)] * 2)),
    "Dense covariance": lambda m: pc.Dense(FIELD[0], m(3, 3)),
    "Mixture weights": lambda m: pc.Mixture(pc.Diagonal(np.ones((4, 2, 3)), 1.0), m(4)),
    "as_field": lambda m: pc.fields.as_field((m(2, 3), FIELD)),
    "condition": lambda m: pc.condition((m(2, 3), FIELD), LAW),
    "diagnose": lambda m: pc.diagnose((m(2, 3), FIELD), LAW),
    "project": lambda m: pc.project((m(2, 3), FIELD), LAW),
    "integral coords": lambda m: pc.integral(m(3), 1.0),
    "integral of two coords": lambda m: pc.integral((np.arange(2.0), m(3)), 1.0),
    "integral value": lambda m: pc.integral([0.0, 1.0, 2.0], m(2)),
    "integral noise": lambda m: pc.integral([0.0, 1.0, 2.0], [1.0, 1.0], noise=m(2)),
    "cells volumes": lambda m: pc.weighted_sum(m(3), 1.0),
    "cells value": lambda m: pc.weighted_sum([1.0, 1.0, 1.0], m(2)),
    "cells noise": lambda m: pc.weighted_sum([1.0, 1.0, 1.0], [1.0, 1.0], noise=m(2)),
    "linear matrix": lambda m: pc.linear(m(2, 3), [1.0, 1.0]),
    "linear value": lambda m: pc.linear(np.eye(3)[:2], m(2)),
    "linear noise": lambda m: pc.linear(np.eye(3)[:2], [1.0, 1.0], noise=m(2)),
    "boundary left": lambda m: pc.boundary(left=m(2)),
    "boundary right": lambda m: pc.boundary(right=m(2)),
    "boundary noise": lambda m: pc.boundary(left=[1.0, 1.0], noise=m(2)),
    "initial values": lambda m: pc.initial(m(3)),
    "initial noise": lambda m: pc.initial(np.ones(3), noise=m(3)),
    "periodic noise": lambda m: pc.periodic(noise=m(2)),
    "smoothness x": lambda m: pc.smoothness(m(3), np.ones(3), 0.5),
    "smoothness variance": lambda m: pc.smoothness(np.arange(3.0), m(2, 3), 0.5),
    "balance t": lambda m: pc.laws.balance(m(3), 1.0),
    "balance initial": lambda m: pc.laws.balance([0.0, 1.0], m(2)),
    "balance inflow": lambda m: pc.laws.balance([0.0, 1.0], 1.0, inflow=m(2)),
    "balance outflow": lambda m: pc.laws.balance([0.0, 1.0], 1.0, outflow=m(2)),
    "apply": lambda m: LAW.apply(m(2, 3)),
    "residual": lambda m: LAW.residual(m(2, 3)),
    "adjoint": lambda m: LAW.adjoint(m(2), (2, 3)),
    "evaluate truth": lambda m: pc.evaluate(pc.Diagonal(FIELD, 1.0), m(2, 3), LAW, 9, seeded()),
    "log_prob": lambda m: pc.Diagonal(FIELD, 1.0).log_prob(m(2, 3)),
    "marginal_log_prob": lambda m: pc.Diagonal(FIELD, 1.0).marginal_log_prob(m(2, 3)),
    "quadrature_noise prior": lambda m: pc.diagnostics.quadrature_noise(
        (m(2, 3), FIELD), [0.0, 1.0, 2.0]
    ),
    "quadrature_noise x": lambda m: pc.diagnostics.quadrature_noise((FIELD, FIELD), m(3)),
    "learned_noise": lambda m: pc.diagnostics.learned_noise(m(4, 2, 3), LAW),
}


def array_with(masked):
    """Makes numpy.ma arrays with no entry masked, or with the last one; increasing on one axis."""

    def make(*shape):
        values = 1.0 + np.arange(*shape) if len(shape) == 1 else np.ones(shape)
        array = np.ma.masked_array(values, np.zeros(shape, bool))
        if masked:
            array.data.flat[-1], array.mask.flat[-1] = 9999.0, True
        return array

    return make


def contents(made):
    if hasattr(made, "apply"):
        return made.value, made.noise, made.apply(FIELD.cumsum(1))
    return (made.mean, made.variance) if isinstance(made, pc.fields.Field) else made


@pytest.mark.parametrize("taker", TAKERS.values(), ids=TAKERS)
def test_an_array_with_masked_entries_is_refused(taker):
    with pytest.raises(pc.errors.InputError, match="mask"):
        taker(array_with(masked=True))


@pytest.mark.parametrize("taker", TAKERS.values(), ids=TAKERS)
def test_a_masked_array_without_masked_entries_is_an_array(taker):
    found = contents(taker(array_with(masked=False)))
    wanted = contents(taker(lambda *shape: array_with(masked=False)(*shape).data))
    assert repr(found) == repr(wanted)
