import numpy as np
import pytest
import torch
from seeds import generator, seeded
from torch import nn

import probconserv as pc

X = np.linspace(0, 1, 7)
RNG = np.random.default_rng(0)
MEANS = 1 + RNG.normal(size=(5, 3, 7))  # 5 members, 3 times, 7 places
VARIANCES = RNG.uniform(0.1, 0.2, size=(5, 3, 7))


def check_field(field, means, variances):
    """Against NumPy, each time by itself."""
    np.testing.assert_allclose(field.mean, means.mean(0), atol=1e-14)
    for i, sigma in enumerate(field.covariance()):
        expected = np.cov(means[:, i].T) + np.diag(variances[:, i].mean(0))
        np.testing.assert_allclose(sigma, expected, atol=1e-14)


def test_means_alone_give_their_own_covariance():
    for kind in (MEANS, torch.from_numpy(MEANS)):
        field = pc.Ensemble(kind, batch_dims=1)
        assert isinstance(field, pc.LowRank)
        assert field.event_dims == 1
        check_field(field, MEANS, 0 * MEANS)


def test_predicted_variances_are_averaged_onto_the_diagonal():
    check_field(pc.Ensemble(MEANS, VARIANCES.mean(0), batch_dims=1), MEANS, VARIANCES)


def test_the_moments_are_those_of_the_mixture_of_the_members():
    mixture = pc.Mixture(pc.Diagonal(MEANS, VARIANCES))
    field = pc.Ensemble(MEANS, VARIANCES.mean(0), batch_dims=1)
    torch.testing.assert_close(field.mean, mixture.mean)
    bessel = torch.from_numpy(MEANS.var(0, ddof=1) - MEANS.var(0))
    torch.testing.assert_close(field.variance - bessel, mixture.variance)


def test_a_map_moves_as_a_whole_unless_its_first_axes_are_said_to_be_a_batch(rng):
    """Each row of a map was taken by itself, in silence."""
    maps = np.asarray(torch.randn(9, 2, 3, 4, generator=rng, dtype=torch.float64))
    for batch_dims in range(3):
        lead, size = maps.shape[1 : 1 + batch_dims], int(np.prod(maps.shape[1 + batch_dims :]))
        found = pc.Ensemble(maps, batch_dims=batch_dims).covariance().reshape(*lead, size, size)
        for index in np.ndindex(*lead):
            wanted = np.cov(maps[(slice(None), *index)].reshape(9, size).T)
            np.testing.assert_allclose(found[index], wanted, atol=1e-14)


def test_time_and_space_move_together():
    field = pc.Ensemble(MEANS)
    expected = np.cov(MEANS.reshape(5, 21).T)
    np.testing.assert_allclose(field.covariance().reshape(21, 21), expected, atol=1e-14)


@pytest.mark.parametrize("variances", [None, VARIANCES.mean(0)])
def test_an_ensemble_goes_straight_into_condition(variances):
    field = pc.Ensemble(MEANS, variances, batch_dims=1)
    law = pc.integral(X, np.array([0.9, 1.0, 1.1]))
    post = pc.condition(field, law)
    assert law.residual(field).abs().max() > 0.01
    assert law.residual(post).abs().max() < 1e-12
    assert law.residual(post.sample(4, generator=generator())).abs().max() < 1e-12


def test_passes_of_a_network_with_dropout_are_members():
    with seeded():
        network = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1), nn.Flatten(-2))
    places = torch.rand(3, 7, 2, generator=generator())
    network.train()
    with seeded(1):
        passes = torch.stack([network(places).detach() for _ in range(6)])
    field = pc.Ensemble(passes)
    rounding = 8 * np.finfo(np.float32).eps * float(passes.abs().max())  # of a mean near 0
    np.testing.assert_allclose(field.mean, passes.numpy().mean(0), rtol=1e-6, atol=rounding)
    np.testing.assert_allclose(field.variance, passes.numpy().var(0, ddof=1), rtol=1e-5)


def test_members_that_all_say_the_same_cannot_be_moved():
    """Such as passes of a network whose dropout is off."""
    law = pc.integral(X, np.array([0.9, 1.0, 1.1]))
    with pytest.raises(pc.ProbConservError, match="varian"):
        pc.condition(pc.Ensemble(np.stack([MEANS[0]] * 3), batch_dims=1), law)


def test_bad_predictions_are_refused():
    with pytest.raises(ValueError, match=r"`members` must have at least two members .*\(1, 3, 7\)"):
        pc.Ensemble(MEANS[:1])
    with pytest.raises(ValueError, match="`members` must have at least two members"):
        pc.Ensemble(X)
    with pytest.raises(ValueError, match="`members` must be finite"):
        pc.Ensemble(MEANS * np.nan)
    with pytest.raises(ValueError, match=r"`variance` must be >= 0; .* squared first"):
        pc.Ensemble(MEANS, -VARIANCES[0])
    with pytest.raises(ValueError, match=r"`variance` of shape \(5, 3, 7\) does not fit the mean"):
        pc.Ensemble(MEANS, VARIANCES)
    with pytest.raises(ValueError, match="`variance` by names goes with `members` by names"):
        pc.Ensemble(MEANS, {"u": 1.0})
    for wrong in (-1, 2, 0.5):
        with pytest.raises(ValueError, match="`batch_dims` must"):
            pc.Ensemble(MEANS, batch_dims=wrong)


def test_a_list_is_an_array():
    rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]  # two times
    assert pc.Ensemble([rows, [[0.0] * 3] * 2]).shape == (2, 3)


def test_networks_of_this_library_are_members():
    network = pc.models.load("stefan")
    t, x, u = torch.rand(3, 10, generator=torch.Generator().manual_seed(0))
    parts = network.predict((t / 10, x, u), ([0.05], [0.0, 0.5, 1.0]), 3, generator())
    field = pc.Ensemble(parts.mean, parts.variance.mean(0))
    assert field.shape == (1, 3)
