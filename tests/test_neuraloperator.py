"""A Fourier neural operator of the package `neuraloperator` as a guest."""

import warnings

import pytest
import torch
from torch.nn import functional as F

import probconserv as pc
from probconserv.data import Grids
from probconserv.problems import Advection
from probconserv.training import Kind, train

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    neuralop = pytest.importorskip("neuralop.models", reason="needs neuraloperator and tensorly")

T, X = Advection.grid(times=5, points=16)


class Guest(torch.nn.Module):
    """Their network, with a mean and a standard deviation as its two channels."""

    def __init__(self):
        super().__init__()
        self.network = neuralop.FNO(
            n_modes=(3, 6), in_channels=1, out_channels=2, hidden_channels=8, n_layers=2
        )

    def forward(self, inputs, coordinates):
        grid = [len(axis) for axis in coordinates]
        given = inputs[..., None, None].expand(-1, -1, *grid)
        mean, raw = self.network(given).split(1, dim=1)  # they add the coordinates themselves
        return mean[None], F.softplus(raw)[None] + 1e-3


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
def test_a_network_of_neuraloperator_trains_and_conserves(tmp_path):
    data = Grids.of_problem(Advection, T, X, n=20)
    lines = []
    guest = Kind("neuralop", build=lambda source, recipe, sizes: Guest())
    network = train(data, tmp_path, guest, device="cpu", steps=30, batch=6, report=lines.append)
    scores = [line["validation_crps"] for line in lines if "validation_crps" in line]
    assert scores[-1] < scores[0]
    again = train(data, tmp_path, guest, device="cpu", steps=30, batch=6)
    mine, theirs = dict(network.named_parameters()), dict(again.named_parameters())
    assert any(p.is_complex() for p in mine.values())
    assert all(torch.equal(p, theirs[name]) for name, p in mine.items())
    with torch.no_grad():
        mean, std = network(data.inputs.float(), [T.float(), X.float()])
    law = pc.integral(X, data.totals)
    post = pc.condition(pc.Diagonal(mean[0, :, 0].double(), std[0, :, 0].double() ** 2), law)
    assert law.residual(post.mean).abs().max() < 1e-12
