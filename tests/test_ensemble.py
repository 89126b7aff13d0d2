import numpy as np
import pytest
import torch
from seeds import generator, made, seeded
from torch import nn

import probconserv as pc
from probconserv.models import ModelEnsemble

X = np.linspace(0, 1, 7)
RNG = np.random.default_rng(0)
MEANS = 1 + RNG.normal(size=(5, 3, 7))  # 5 members, 3 times, 7 places
VARIANCES = RNG.uniform(0.1, 0.2, size=(5, 3, 7))


def members(*predictions):
    """Models that give these, whatever they are asked."""
    return [lambda prediction=p: prediction for p in predictions]


def check_field(field, means, variances):
    """Against NumPy, each time by itself."""
    np.testing.assert_allclose(field.mean, means.mean(0), atol=1e-14)
    for i, sigma in enumerate(field.covariance()):
        expected = np.cov(means[:, i].T) + np.diag(variances[:, i].mean(0))
        np.testing.assert_allclose(sigma, expected, atol=1e-14)


def test_means_alone_give_their_own_covariance():
    for kind in (MEANS, torch.from_numpy(MEANS)):
        field = ModelEnsemble(members(*kind), batch_dims=1).predict()
        assert isinstance(field, pc.LowRank)
        assert field.event_dims == 1
        check_field(field, MEANS, 0 * MEANS)
    check_field(pc.Ensemble(MEANS, batch_dims=1), MEANS, 0 * MEANS)


def test_predicted_variances_are_averaged_onto_the_diagonal():
    pairs = list(zip(MEANS, VARIANCES, strict=True))
    fields = [pc.Diagonal(*pair) for pair in pairs]
    normals = [
        torch.distributions.Normal(*(torch.from_numpy(a) for a in (mean, variance**0.5)))
        for mean, variance in pairs
    ]
    for kind in (pairs, [list(pair) for pair in pairs], fields, normals):
        check_field(ModelEnsemble(members(*kind), batch_dims=1).predict(), MEANS, VARIANCES)
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
    field = ModelEnsemble(members(*MEANS)).predict()
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


class Model:
    def __init__(self, slope):
        self.slope = slope

    def predict(self, t, x, shift=0.0):
        return self.slope * x + t[:, None] + shift

    def __call__(self, *inputs):
        raise AssertionError("a model with `predict` is asked for that")


def test_members_are_called_with_inputs_and_options():
    t = np.array([0.0, 1.0])
    field = ModelEnsemble([Model(1.0), Model(3.0)]).predict(t, X, shift=0.5)
    np.testing.assert_allclose(field.mean, 2 * X + t[:, None] + 0.5)


def test_a_stochastic_member_many_times_is_mc_dropout():
    with seeded():
        network = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1), nn.Flatten(-2))
    places = torch.rand(3, 7, 2, generator=generator())
    network.train()
    with seeded(1):
        field = ModelEnsemble([network] * 6).predict(places)
    with seeded(1):
        passes = np.stack([network(places).detach().numpy() for _ in range(6)])
    rounding = 8 * np.finfo(np.float32).eps * np.abs(passes).max()  # of a mean near 0
    np.testing.assert_allclose(field.mean, passes.mean(0), rtol=1e-6, atol=rounding)
    np.testing.assert_allclose(field.variance, passes.var(0, ddof=1), rtol=1e-5)
    assert network.training
    network.eval()
    with pytest.raises(ValueError, match=r"all predict the same and no variance.*network.train"):
        ModelEnsemble([network] * 6).predict(places)
    assert not network.training


def test_a_list_of_modules_is_a_list_and_a_network_is_not():
    networks = nn.ModuleList(made(nn.Linear, 2, 7, seed=seed) for seed in range(3))
    field = ModelEnsemble(networks).predict(torch.rand(5, 2, generator=generator()))
    assert field.factor.shape == (3, 5, 7)
    assert not field.mean.requires_grad
    assert all(p.grad is None for p in networks.parameters())
    with pytest.raises(ValueError, match=r"a list of models, got Sequential.*\[model\] \* 50"):
        ModelEnsemble(nn.Sequential(*networks))
    with pytest.raises(ValueError, match="`members` must be a list of models, got NoneType"):
        ModelEnsemble(None)


def test_a_reused_buffer_is_copied():
    buffer = torch.zeros(3, 7, dtype=torch.float64)
    field = ModelEnsemble([lambda: buffer.add_(1)] * 3).predict()
    assert torch.equal(field.mean, torch.full_like(buffer, 2))
    assert torch.equal(buffer, torch.full_like(buffer, 3))


def test_bad_members_are_refused():
    with pytest.raises(ValueError, match="`members` must hold at least two members, got 1"):
        ModelEnsemble(members(MEANS[0]))
    with pytest.raises(ValueError, match=r"`members\[1\]` must have a method `predict`.*ndarray"):
        ModelEnsemble([*members(MEANS[0]), MEANS[1]])
    with pytest.raises(ValueError, match=r"members\[0\] gave the shape \(3, 7\) and members\[1\]"):
        ModelEnsemble(members(MEANS[0], MEANS[1][:2])).predict()
    with pytest.raises(ValueError, match=r"`members\[1\]` is torch.float32 but `members\[0\]`"):
        ModelEnsemble(members(MEANS[0], MEANS[1].astype(np.float32))).predict()
    with pytest.raises(ValueError, match=r"variances, or none of them; members\[1\] gave none"):
        ModelEnsemble(members((MEANS[0], VARIANCES[0]), MEANS[1])).predict()
    with pytest.raises(ValueError, match=r"`members\[1\]` gave .* `mean` must be finite; 21 of"):
        ModelEnsemble(members(MEANS[0], MEANS[1] * np.nan)).predict()
    with pytest.raises(ValueError, match=r"`members\[0\]` gave .* `variance` must be >= 0"):
        ModelEnsemble(members((MEANS[0], -VARIANCES[0]), (MEANS[1], VARIANCES[1]))).predict()
    with pytest.raises(ValueError, match=r"`members\[0\]` gave .* type str is not a field"):
        ModelEnsemble(members("a", "b")).predict()
    with pytest.raises(ValueError, match="`batch_dims` must leave the last axis of `members`"):
        ModelEnsemble(members(*MEANS), batch_dims=2).predict()


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


def test_a_list_is_an_array_and_a_tuple_a_pair():
    rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]  # two times
    field = ModelEnsemble([lambda: rows, lambda: [[0.0] * 3] * 2]).predict()
    assert field.shape == (2, 3)
    pair = ModelEnsemble([lambda: (rows, [[1.0] * 3] * 2)] * 2).predict()
    assert pair.shape == (2, 3)
    assert (pair.variance == 1).all()


def test_networks_of_this_library_are_members_as_mixtures():
    network = pc.models.load("stefan")
    t, x, u = torch.rand(3, 10, generator=torch.Generator().manual_seed(0))
    members = [lambda *i: pc.Mixture(network.predict(*i, samples=3, generator=generator()))] * 2
    field = ModelEnsemble(members).predict((t / 10, x, u), ([0.05], [0.0, 0.5, 1.0]))
    assert field.shape == (1, 3)
