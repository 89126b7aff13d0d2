"""A wrong number of version 0.1.0: files and tensors had two engines and two answers."""

import numpy as np
import pytest
import xarray as xr

import probconserv as pc
from probconserv.files import FileLaw, enforce

pytestmark = pytest.mark.filterwarnings("ignore")  # some of these laws move fields very far


@pytest.fixture
def random():
    return np.random.default_rng(20)


def by_both(weights, totals, u, std):
    """What files and `condition` make of the same laws: mean and standard deviation of each."""
    data = xr.Dataset({"u": ("x", u), "s": ("x", std)})
    pairs = list(zip(weights, totals, strict=True))
    named = [FileLaw("u", "x", total=float(b), measure=xr.DataArray(w, dims="x")) for w, b in pairs]
    out = enforce(data, *named, std="s")
    post = pc.condition(pc.Diagonal(u, std**2), *(pc.weighted_sum(w, float(b)) for w, b in pairs))
    return (out.u.values, out.s.values), (post.mean.numpy(), post.std.numpy())


@pytest.mark.parametrize("std", [[1.0, 1.0, 1.0], [0.1, 0.2, 0.1]])
def test_files_and_tensors_agree_on_nearly_equal_laws(std):
    weights, totals = np.array([[1, 1, 1], [1, 1, 1.0001]]), [7.0, 7.1]
    files, tensors = by_both(weights, totals, np.array([1.0, 2.0, 3.0]), np.array(std))
    np.testing.assert_allclose(weights @ files[0], totals, rtol=0, atol=1e-12 * 2000)
    np.testing.assert_allclose(files[0], tensors[0], rtol=1e-7)
    np.testing.assert_allclose(files[1], tensors[1], rtol=1e-6, atol=1e-6)


def test_files_hold_nearly_equal_laws_as_exactly_as_tensors_do(random):
    u, std = random.normal(2, 1, 500), random.uniform(0.2, 1.5, 500)
    weights = np.stack([np.ones(500), 1 + 1e-5 * random.normal(size=500)])
    totals = weights @ (u + 0.1 * random.normal(size=500))
    for mean, _ in by_both(weights, totals, u, std):
        terms = np.abs(weights) @ np.abs(mean) + np.abs(totals)
        assert np.max(np.abs(weights @ mean - totals) / terms) < 1e-12
