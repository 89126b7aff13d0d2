"""Laws of cells on input that broke them once."""

import numpy as np
import pytest
import torch
from seeds import generator

import probconserv as pc
from probconserv.solvers import engine as _engine
from probconserv.solvers import tridiagonal as _tridiagonal

MESH = pc.Mesh(x=np.linspace(0, 1, 6) ** 2, y=[0.0, 1.0, 3.0, 4.0])


@pytest.fixture(autouse=True)
def iterated(monkeypatch):
    """All laws of cells are solved by conjugate gradients."""
    monkeypatch.setattr(_engine, "MOST_DENSE", 0)
    monkeypatch.setattr(_tridiagonal, "WIDEST", 0)


def made(scale=1.0, batch=()):
    rng = np.random.default_rng(0)
    shapes = {"u": (3, 5, 3), "fx": (2, 6, 3), "fy": (2, 5, 4)}
    fields = {
        k: (scale * rng.normal(size=(*batch, *s)), scale**2 * rng.uniform(0.1, 1, (*batch, *s)))
        for k, s in shapes.items()
    }
    return pc.State(**fields), pc.cell_budgets(MESH, [0.0, 1.0, 1.5], ("fx", "fy"))


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
def test_covariances_do_not_depend_on_units(scale):
    """The covariance times numbers of any size is the same, but for the units of u."""
    v = torch.from_numpy(np.random.default_rng(1).normal(size=(3, 5, 3)))
    one = pc.condition(*made())["u"].covariance_times(v)
    other = pc.condition(*made(scale))["u"].covariance_times(v) / scale**2
    torch.testing.assert_close(other, one, rtol=1e-8, atol=1e-9)


def test_most_cells_may_be_missing():
    land = np.random.default_rng(0).random((5, 3)) < 0.7
    law = pc.cell_budgets(MESH, [0.0, 1.0], fluxes=(0.0, 0.0), where=~land, of="")
    post = pc.condition((np.random.default_rng(1).normal(size=(2, 5, 3)), 1.0), law)
    assert law.residual(post).abs().max() < 1e-12
    torch.testing.assert_close(post.mean[0][~land], post.mean[1][~land])


@pytest.mark.parametrize("periodic", [(), ("x", "y")])
def test_draws_can_be_made_of_given_numbers(periodic):
    mesh = pc.Mesh(x=np.linspace(0, 1, 6), y=[0.0, 1.0, 3.0, 4.0], periodic=periodic)
    shapes = {"u": (3, 5, 3)} | {
        k: (2, *s) for k, s in zip(("fx", "fy"), mesh.face_shapes, strict=True)
    }
    state = pc.State(**{k: (np.zeros(s), 1.0) for k, s in shapes.items()})
    post = pc.condition(state, pc.cell_budgets(mesh, [0.0, 1.0, 1.5], ("fx", "fy")))
    count = post["u"].normals_per_draw
    draw = post["u"].sample_with(torch.randn(2, count, dtype=torch.float64, generator=generator()))
    assert draw.shape == (2, 3, 5, 3)


def test_an_empty_batch_has_an_empty_variance():
    state, law = made(batch=(0,))
    assert pc.condition(state, law)["fx"].variance.shape == (0, 2, 6, 3)


def test_a_file_says_what_it_holds(tmp_path):
    state, law = made()
    pc.condition(state, law).save(tmp_path / "post.safetensors")
    with pytest.raises(pc.errors.InputError, match=r"holds a Posterior. Use `Posterior.load`"):
        pc.fields.Field.load(tmp_path / "post.safetensors")
    for kind in (pc.State, pc.Posterior):
        assert "u" in kind.load(tmp_path / "post.safetensors").names
