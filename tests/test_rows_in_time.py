"""Rows that reach from one time to the next, many, against the dense matrix of all rows."""

import mpmath
import pytest
import torch

import probconserv as pc
from probconserv.solvers import engine as _engine
from probconserv.solvers import tridiagonal as _tridiagonal

D = torch.float64


def made(batch=(), seed=0, noise=0.0, low_rank=False, wide=1.0, extra=()):
    """A state on 5 cells at 4 times, and laws: budgets, and those that are named."""
    rng = torch.Generator().manual_seed(seed)
    mesh = pc.Mesh(x=[0.0, 0.5, 1.5, 1.8, 3.0, 3.1], periodic="x" if "ring" in extra else ())
    faces, t = mesh.face_shapes[0][0], torch.tensor([0.0, 0.2, 0.7, 1.0], dtype=D)

    def normal(*shape):
        return torch.randn(*shape, generator=rng, dtype=D)

    u, flux = normal(*batch, 4, 5), normal(*batch, 3, faces)
    rest = wide * (normal(*batch, 4, 5).square() + 0.1)
    field = pc.Diagonal(u, rest)
    if low_rank:
        field = pc.LowRank(u, normal(2, *batch, 4, 5), rest, event_dims=2)
    state = pc.State(u=field, F=pc.Diagonal(flux, normal(*batch, 3, faces).square() + 0.1))
    laws = [pc.cell_budgets(mesh, t, fluxes="F", noise=noise)]
    if "start" in extra:
        laws.append(pc.initial(normal(*batch, 5), of="u"))
    if "totals" in extra:
        laws.append(pc.integral(mesh, normal(*batch, 4), noise=0.1, of="u"))
    return state, laws


CASES = {
    "alone": {},
    "batch": {"batch": (2,)},
    "ring": {"extra": ("ring",)},
    "noise": {"noise": 0.3},
    "start and totals": {"extra": ("start", "totals")},
    "ensemble": {"low_rank": True, "batch": (3,), "extra": ("start",)},
}


@pytest.fixture(params=[256, 0], ids=["blocks", "factor"], autouse=True)
def way(request, monkeypatch):
    """Rows that are too many for a dense matrix are solved by blocks along time, or as others."""
    monkeypatch.setattr(_tridiagonal, "WIDEST", request.param)


@pytest.fixture
def many(monkeypatch):
    """All rows are solved as if they were too many for a dense matrix."""
    monkeypatch.setattr(_engine, "MOST_DENSE", 0)


@pytest.fixture(params=CASES.values(), ids=CASES)
def both(request, way, monkeypatch):
    """The posterior as of many rows, and by one dense matrix."""
    state, laws = made(**request.param)
    dense = pc.condition(state, *laws)
    monkeypatch.setattr(_engine, "MOST_DENSE", 0)
    return pc.condition(state, *laws), dense, laws


def test_blocks_are_used_where_a_time_has_few_rows(many, request):
    state, laws = made()
    last = pc.condition(state, *laws)._solved.way.stages[-1]
    by_blocks = request.node.name.endswith("[blocks]")
    assert isinstance(last, _tridiagonal.Tridiagonal) == by_blocks


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
def test_mean_variance_and_evidence_are_those_of_the_dense_matrix(both):
    post, dense, _ = both
    for name in ("u", "F"):
        torch.testing.assert_close(post[name].mean, dense[name].mean, rtol=1e-11, atol=1e-12)
        found, wanted = post[name].variance, dense[name].variance
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(post.log_evidence, dense.log_evidence, rtol=1e-10, atol=1e-9)
    assert post["u"].variance_estimate is None


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
def test_covariances_are_those_of_the_dense_matrix(both):
    post, dense, _ = both
    v = torch.randn(post["F"].shape, dtype=D, generator=torch.Generator().manual_seed(1))
    found, wanted = (p["F"].covariance_times(v) for p in (post, dense))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


def test_a_prior_that_knows_nothing_leaves_the_right_variance(many):
    """1e-12 of the prior is left: a difference would have four digits. The oracle has 60."""
    state, (law,) = made(wide=1e10, noise=0.01)
    sizes = {name: state[name].mean.numel() for name in state}
    eye = torch.eye(sum(sizes.values()), dtype=D).split(list(sizes.values()), -1)
    units = {k: e.reshape(-1, *state[k].shape) for k, e in zip(sizes, eye, strict=True)}
    with mpmath.workdps(60):
        g = mpmath.matrix(law.apply(units).flatten(1).T.tolist())
        d = mpmath.diag(torch.cat([state[k].variance.flatten() for k in sizes]).tolist())
        for i in range(5):  # the first time is known
            d[i, i] = 0
        system = g * d * g.T + mpmath.mpf(0.01) ** 2 * mpmath.eye(g.rows)
        left = d - d * g.T * mpmath.inverse(system) * g * d
        wanted = torch.tensor([float(left[i, i]) for i in range(5, d.rows)], dtype=D)
    post = pc.condition(state, law, pc.initial(torch.zeros(5, dtype=D), of="u"))
    found = torch.cat([post[k].variance.flatten() for k in sizes])[5:]
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=0)
    assert float((found[:15] / state["u"].variance.flatten()[5:]).min()) < 1e-9


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
@pytest.mark.parametrize("wide", [1.0, 1e10])
@pytest.mark.parametrize("noise", [1e-3, 1e-6])
def test_a_start_that_was_measured_is_no_row_of_other_times(wide, noise, monkeypatch):
    """All but exact, it stays with the budgets; its rows are cells, not times."""
    mesh, t = pc.Mesh(x=torch.linspace(0, 1, 5)), torch.linspace(0, 1, 7)
    state = pc.State(u=(torch.zeros(7, 4, dtype=D), wide))
    laws = pc.cell_budgets(mesh, t, velocity=1.0), pc.initial(torch.ones(4), noise=noise, of="u")
    dense = pc.condition(state, *laws)
    monkeypatch.setattr(_engine, "MOST_DENSE", 0)
    post = pc.condition(state, *laws)
    torch.testing.assert_close(post["u"].mean, dense["u"].mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(post["u"].variance, dense["u"].variance, rtol=1e-7, atol=0)


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
def test_rows_that_nearly_follow_from_others_leave_the_right_variance(monkeypatch):
    state, (law,) = made()
    mesh = pc.Mesh(x=[0.0, 0.5, 1.5, 1.8, 3.0, 3.1])
    totals = pc.integral(mesh, torch.zeros(4), of="u")
    seen = pc.linear(torch.eye(5), torch.zeros(4, 5), noise=1e-5, of="u")
    dense = pc.condition(state, law, totals, seen)
    monkeypatch.setattr(_engine, "MOST_DENSE", 0)
    post = pc.condition(state, law, totals, seen)
    for name in ("u", "F"):
        torch.testing.assert_close(post[name].variance, dense[name].variance, rtol=1e-6, atol=1e-18)


def test_a_flux_that_no_row_reads_keeps_its_variance(many):
    """Around a ring of one cell what leaves comes back."""
    mesh = pc.Mesh(x=[0.0, 1.0, 2.0], y=[0.0, 1.0], periodic=("x", "y"))
    state = pc.State(**{k: (torch.zeros(3, 2, 1).double(), 0.7) for k in ("u", "fx", "fy")})
    post = pc.condition(state, pc.cell_budgets(mesh, [0.0, 1.0, 2.0], ("fx", "fy")))
    assert (post["fy"].variance == 0.7).all()
    assert (post["fx"].variance < 0.7).all()


def test_every_draw_obeys_exact_budgets(many):
    state, (law, start) = made(batch=(2,), extra=("start",))
    draws = pc.condition(state, law, start).sample(7, torch.Generator().manual_seed(0))
    assert float((law.residual(draws).abs() / law.magnitude(draws)).max()) < 1e-12


def test_an_entry_is_the_posterior_of_that_entry(many):
    state, laws = made(batch=(3,))
    one = pc.condition(state, *laws)[1]
    alone = pc.condition(state[1], *laws)
    torch.testing.assert_close(one["u"].mean, alone["u"].mean)
    torch.testing.assert_close(one["F"].variance, alone["F"].variance)


def test_a_saved_posterior_answers_as_before(many, tmp_path):
    state, laws = made()
    post = pc.condition(state, *laws)
    post.save(tmp_path / "post.safetensors")
    again = pc.Posterior.load(tmp_path / "post.safetensors")
    draws = [p.sample(2, torch.Generator().manual_seed(0))["u"] for p in (post, again)]
    torch.testing.assert_close(*draws)
    torch.testing.assert_close(again["F"].variance, post["F"].variance)


def test_totals_that_follow_from_the_budgets_change_nothing(many):
    """The total of a ring cannot change: at later times it follows from that of the first."""
    state, (law,) = made(extra=("ring",))
    mesh = pc.Mesh(x=[0.0, 0.5, 1.5, 1.8, 3.0, 3.1], periodic="x")
    first = pc.integral(mesh, [2.0], times=[0], of="u")
    every = pc.integral(mesh, 2.0, of="u")
    once, always = pc.condition(state, law, first), pc.condition(state, law, every)
    torch.testing.assert_close(once["u"].mean, always["u"].mean, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(once["F"].variance, always["F"].variance, rtol=1e-9, atol=1e-11)


def test_totals_that_contradict_the_budgets_are_refused(many):
    state, (law,) = made(extra=("ring",))
    mesh = pc.Mesh(x=[0.0, 0.5, 1.5, 1.8, 3.0, 3.1], periodic="x")
    with pytest.raises(pc.errors.InfeasibleError, match="integral"):
        pc.condition(state, law, pc.integral(mesh, [2.0, 2.0, 2.5, 2.0], of="u"))


def test_gradients_are_right(many):
    state, (law,) = made()
    mean, flux = state["u"].mean, state["F"].mean

    def moments(u, variance):
        given = pc.State(u=pc.Diagonal(u, variance), F=pc.Diagonal(flux, 0.5))
        post = pc.condition(given, law)
        return post["u"].mean, post["F"].variance

    inputs = mean.clone().requires_grad_(), state["u"].variance.clone().requires_grad_()
    assert torch.autograd.gradcheck(moments, inputs, atol=1e-6)
