"""The same numbers on a GPU. Run where one is: `pytest tests/test_cuda.py`."""

import warnings

import pytest
import sweeping
import torch
from oracle import KINDS, LAWS, exact_residual, field_of, laws_of, normal, uniform
from runs import Killed, killed_after, weights

import probconserv as pc
from probconserv.conditioning.loop import linearised as _linearised
from probconserv.conditioning.swept import Swept
from probconserv.data import Grids, Stream, draw
from probconserv.experiments.paper import reproduce
from probconserv.models import AttentiveNeuralProcess
from probconserv.problems import PROBLEMS, ClosedForm
from probconserv.solvers import engine as _engine
from probconserv.solvers import sweeps as _sweeps
from probconserv.solvers import tridiagonal as _tridiagonal
from probconserv.training import RECIPES, train

SHAPE = (4, 7)
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_equals_cpu(kind, law, rng):
    field, laws = field_of(kind, SHAPE, rng), laws_of(law, SHAPE, rng)
    here = pc.condition(field, *laws)
    moved = [one.to("cuda") for one in laws]
    there = pc.condition(field.to("cuda"), *moved)
    torch.testing.assert_close(there.mean.cpu(), here.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(there.variance.cpu(), here.variance, rtol=1e-9, atol=1e-9)
    assert there.to("cpu").mean.device.type == "cpu"
    draws = there.sample(5, torch.Generator("cuda").manual_seed(1))
    for one in moved:
        assert exact_residual(one, there.mean) < 1e-12
        assert exact_residual(one, draws) < 1e-12


def test_laws_of_bare_numbers_follow_the_field(rng):
    field = field_of("diagonal", SHAPE, rng).to("cuda")
    post = pc.condition(field, pc.boundary(left=1.0, right=0.0), pc.periodic(noise=0.1))
    assert (post.mean[:, 0] == 1).all()


def test_mixtures_on_cuda(rng):
    components = field_of("diagonal", (5, *SHAPE), rng)
    law = laws_of("integral", SHAPE, rng)[0]
    here = pc.condition(pc.Mixture(components), law)
    there = pc.condition(pc.Mixture(components.to("cuda")), law.to("cuda"))
    torch.testing.assert_close(there.weights.cpu(), here.weights)
    torch.testing.assert_close(there.mean.cpu(), here.mean)
    draws = there.sample(6, torch.Generator("cuda").manual_seed(1))
    assert law.to("cuda").residual(draws).abs().max() < 1e-12


@pytest.mark.parametrize("mesh", ["grid", "list"])
@pytest.mark.parametrize("way", ["dense", "blocks", "iterated"])
def test_budgets_of_cells_are_the_same_on_cuda(way, mesh, rng, monkeypatch):
    monkeypatch.setattr(_engine, "MOST_DENSE", 10**6 if way == "dense" else 0)
    monkeypatch.setattr(_tridiagonal, "WIDEST", 256 if way == "blocks" else 0)
    cells = pc.Mesh(x=[0.0, 1.0, 1.5, 3.0], y=[0.0, 1.0, 2.0, 4.0, 5.0], periodic="y")
    names = ("fx", "fy")
    if mesh == "list":
        cells, names = pc.Mesh.unstructured([1.0, 2.0, 3.0], [[0, 1], [1, 2], [2, -1]], 1.0), "fx"
    law = pc.cell_budgets(cells, [0.0, 0.5, 2.0], fluxes=names, noise=0.1)
    shapes = {"u": (3, *cells.shape)} | {
        name: (2, *shape) for name, shape in zip(("fx", "fy"), cells.face_shapes, strict=False)
    }
    state = pc.State(**{k: (normal(*s, rng=rng), uniform(*s, rng=rng)) for k, s in shapes.items()})
    here, there = pc.condition(state, law), pc.condition(state.to("cuda"), law)
    for name in shapes:
        torch.testing.assert_close(there[name].mean.cpu(), here[name].mean)
        if way != "iterated":  # whose variance is an estimate from other draws
            torch.testing.assert_close(there[name].variance.cpu(), here[name].variance)
    draws = there.sample(3, torch.Generator("cuda").manual_seed(0))
    assert float(law.residual(draws).abs().max()) < 1.0  # ten times the noise


@pytest.mark.parametrize("most", [1024, 0])
def test_laws_that_are_not_linear_are_the_same_on_cuda(most, rng, monkeypatch):
    monkeypatch.setattr(_linearised, "MOST_DENSE", most)
    field = pc.Diagonal(1 + 0.1 * normal(*SHAPE, rng=rng), 0.1 + 0.1 * uniform(*SHAPE, rng=rng))
    laws = (
        pc.nonlinear(lambda u: u.square().sum(), 7.5, batch_dims=1),
        pc.weighted_sum([1.0] * 7, 7.1),
    )
    here = pc.condition(field, *laws)
    there = pc.condition(field.to("cuda"), *laws)
    torch.testing.assert_close(there.point.cpu(), here.point, rtol=1e-7, atol=1e-9)
    draws = there.sample(5, torch.Generator("cuda").manual_seed(1))
    assert max(float(laws[0].residual(u).abs().max()) for u in draws) < 1e-10


INSIDE = {
    "bounds": (pc.bounds(0.9, 1.1),),
    "falling": (pc.monotone(decreasing=True),),
    "both": (pc.bounds(0.9), pc.monotone()),
    "general": (
        pc.bounds(0.9),
        pc.boundary(left=0.95, noise=0.1),
        pc.smoothness(range(7), [1.0] * 7, 0.5),
    ),
    "truncated": (pc.bounds(0.9, truncated=True),),
}


@pytest.mark.parametrize("name", INSIDE)
def test_inequalities_are_the_same_on_cuda(name, rng):
    field, law = (
        pc.Diagonal(1 + 0.1 * normal(*SHAPE, rng=rng), 0.01),
        pc.weighted_sum([1.0] * 7, 7.0),
    )
    own = torch.Generator().manual_seed(1)
    here = pc.condition(field, law, *INSIDE[name], draws=3, generator=own)
    own = torch.Generator("cuda").manual_seed(1)
    there = pc.condition(field.to("cuda"), law, *INSIDE[name], draws=3, generator=own)
    assert there.draws.is_cuda
    torch.testing.assert_close(there.point.cpu(), here.point, rtol=1e-9, atol=1e-9)
    assert max(float(law.residual(u).abs().max()) for u in there.draws) < 1e-12


def _water() -> tuple:
    air = pc.State(
        p=(torch.full((2, 7), 100.0, dtype=torch.float64), 4.0),
        q=(torch.linspace(-1e-3, 9e-3, 7, dtype=torch.float64).repeat(2, 1), 4e-6),
    )
    water = pc.nonlinear(lambda u: (u["p"] * u["q"]).sum(-1), 3.2, batch_dims=1, label="water")
    return air, (
        water,
        pc.bounds(low=0.0, of="q"),
        pc.at_most(pc.weighted_sum([1.0] * 7, 699.0, of="p")),
    )


def _members() -> tuple:
    rng = torch.Generator().manual_seed(2)
    members = 0.3 + 0.4 * torch.randn(5, 12, 31, generator=rng, dtype=torch.float64)
    total = pc.weighted_sum(torch.ones(12, 31), 130.0)
    return pc.Ensemble(members), (total, pc.bounds(low=0.0), pc.monotone())  # 360 rows: sparse


def _unmeasured() -> tuple:
    flows = pc.Diagonal([0.0, 10.2, 9.7, 1.0], [float("inf"), 0.25, 0.25, 1.0])
    balance = pc.linear([[1.0, -1.0, 0.0, -1.0], [0.0, 1.0, -1.0, 0.0]], [0.0, 0.0])
    return flows, (balance, pc.bounds(low=0.0))


LOOP = {"water": _water, "members": _members, "unmeasured": _unmeasured}


@pytest.mark.parametrize("draws", [0, 3])
@pytest.mark.parametrize("name", LOOP)
def test_the_loop_is_the_same_on_cuda(name, draws):
    field, laws = LOOP[name]()
    here = pc.condition(field, *laws, draws=draws, generator=torch.Generator().manual_seed(1))
    own = torch.Generator("cuda").manual_seed(1)
    there = pc.condition(field.to("cuda"), *laws, draws=draws, generator=own)
    parts = here.parts if isinstance(field, pc.State) else (here,)
    others = there.parts if isinstance(field, pc.State) else (there,)
    for one, other in zip(parts, others, strict=True):
        assert other.point.is_cuda
        torch.testing.assert_close(other.point.cpu(), one.point, rtol=1e-7, atol=1e-9)
        assert other.std.isfinite().all()


def test_gradients_of_the_loop_are_the_same_on_cuda():
    field, laws = _members()
    found = []
    for place in ("cpu", "cuda"):
        mean = field.mean.to(place).clone().requires_grad_()
        moved = pc.LowRank(mean, field.factor.to(place), 0.1)
        point = pc.condition(moved, *laws, draws=0).point
        found += torch.autograd.grad(point.square().sum(), mean)
    torch.testing.assert_close(found[1].cpu(), found[0], rtol=1e-7, atol=1e-9)


@pytest.mark.draws_freely("of a field without variance all draws are the same")
def test_fronts_on_cuda(rng):
    field, x = field_of("diagonal", SHAPE, rng), torch.arange(7.0)
    here = pc.diagnostics.front_position(field, x)
    there = pc.diagnostics.front_position(field.to("cuda"), x.to("cuda"))
    torch.testing.assert_close(there.probabilities.cpu(), here.probabilities)
    torch.testing.assert_close(there.quantile(0.5).cpu(), here.quantile(0.5))
    for rule in ("point", "crossing"):
        sure = pc.Diagonal(field.mean, 0.0)
        here = pc.diagnostics.front_position(sure, x, 0.1, rule, samples=3)
        there = pc.diagnostics.front_position(sure.to("cuda"), x.to("cuda"), 0.1, rule, samples=3)
        torch.testing.assert_close(there.positions.cpu(), here.positions, equal_nan=True)


def test_the_fast_path_compiles_on_cuda(rng):
    law = laws_of("integral", SHAPE, rng)[0].to("cuda")

    def step2(mean, variance):
        post = pc.condition(pc.Diagonal(mean, variance), law)
        return post.mean, post.variance

    field = field_of("diagonal", (3, *SHAPE), rng).to("cuda")
    got = torch.compile(step2, fullgraph=True)(field.mean, field.variance)
    for a, b in zip(got, step2(field.mean, field.variance), strict=True):
        torch.testing.assert_close(a, b)


FAMILIES = [cls for cls in PROBLEMS.values() if issubclass(cls, ClosedForm)]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda cls: cls.name)
def test_problems_are_the_same_on_cuda(family):
    functions = draw(family, "test", n=5)
    there = functions.to("cuda")
    u = there.problem[:, None].solution(there.context.t, there.context.x)
    torch.testing.assert_close(u.cpu(), functions.context.u, rtol=1e-12, atol=1e-12)
    t, x = family.grid(times=7, points=11)
    for problem in (functions.problem, family(family.example[0])):
        moved = problem.to("cuda")
        grid = moved.on_grid(t.cuda(), x.cuda())
        torch.testing.assert_close(grid.cpu(), problem.on_grid(t, x), rtol=1e-12, atol=1e-12)
        total = moved[..., None].total(t.cuda())
        torch.testing.assert_close(total.cpu(), problem[..., None].total(t), rtol=1e-12, atol=1e-12)
    alone = family(family.example[0])  # a number follows t and x to the device
    assert alone.solution(t.cuda(), 0.5).device.type == "cuda"
    assert alone.residual(u, u, u, u).device.type == "cuda"


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("layout", [30, (5, 6)], ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda cls: cls.name)
def test_a_stream_needs_nothing_from_the_host(family, layout):
    near = 0.5 if isinstance(layout, int) else 0.0
    options = {"n": 8, "context": layout, "target": layout, "near": near}
    stream = Stream(family, device="cuda", **options)
    stream(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = stream(3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    here = Stream(family, **options)(3)
    for a, b in zip((*batch.context, *batch.target), (*here.context, *here.target), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-6, atol=1e-6)


def test_a_stream_can_be_captured_in_a_graph():
    stream = Stream(PROBLEMS["stefan"], n=8, device="cuda")
    step = torch.zeros((), dtype=torch.int64, device="cuda")
    stream(step)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = stream(step)
        step += 1
    for expected in (0, 1, 2):
        graph.replay()
        fresh = stream(expected)
        assert torch.equal(batch.target.x, fresh.target.x)
        torch.testing.assert_close(batch.target.u, fresh.target.u)


@pytest.mark.parametrize("change", [{}, {"through": "crps"}, {"loss": "ll"}], ids=str)
def test_an_operator_trains_resumes_and_agrees_with_the_cpu(change, tmp_path):
    t, x = PROBLEMS["stefan"].grid(times=6, points=21)
    data = Grids.of_problem(PROBLEMS["stefan"], t, x, n=20)
    sizes = {"width": 4, "layers": 2, "members": 2, "modes": [0, 4], "heads": 2}
    plan = {"model": "fno", "sizes": sizes, "steps": 20, "batch": 4, "times": 2} | change
    whole = train(data, tmp_path / "whole", device="cuda", **plan)
    with pytest.raises(Killed):
        train(data, tmp_path / "torn", device="cuda", report=killed_after(7), **plan)
    resumed = train(data, tmp_path / "torn", device="cuda", **plan)
    torch.testing.assert_close(weights(resumed), weights(whole), rtol=0, atol=1e-3)
    here = train(data, tmp_path / "cpu", device="cpu", **plan)
    torch.testing.assert_close(weights(whole).cpu(), weights(here), rtol=0, atol=1e-2)


LOSSES = [{"model": "anp"}, {"model": "softc"}, {"through": "ll"}, {"through": "crps"}]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: next(iter(loss.values())))
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_killed_run_resumes_on_the_same_path(recipe, loss, tmp_path):
    """Up to the order of additions: other masks or functions would move weights by the rate."""
    changes = {"steps": 20, "batch": 16, "sizes": {"hidden": 16, "latent": 16}, **loss}
    changes |= {"recipe": recipe, "schedule": "constant", "learning_rate": 1e-3}
    changes |= {"functions": 64} if recipe == "paper" else {}
    whole = train(PROBLEMS["pme"], tmp_path / "whole", device="cuda", **changes)
    with pytest.raises(Killed):
        train(PROBLEMS["pme"], tmp_path / "torn", device="cuda", report=killed_after(9), **changes)
    resumed = train(PROBLEMS["pme"], tmp_path / "torn", device="cuda", **changes)
    for a, b in zip(resumed.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-3)


def test_a_killed_emulator_resumes_and_infers_as_on_a_cpu(tmp_path):
    changes = {"steps": 20, "batch": 16, "model": "emulator", "sizes": {"hidden": 16, "layers": 2}}
    changes |= {"schedule": "constant", "learning_rate": 1e-3, "device": "cuda"}
    whole = train("stefan", tmp_path / "whole", **changes)
    with pytest.raises(Killed):
        train("stefan", tmp_path / "torn", report=killed_after(9), **changes)
    resumed = train("stefan", tmp_path / "torn", **changes)
    torch.testing.assert_close(weights(resumed), weights(whole), rtol=0, atol=1e-3)
    network, seen = (
        pc.models.load("stefan", "emulator"),
        tuple(draw(PROBLEMS["stefan"], "test", 2).context),
    )
    here, there = (
        network.to(d).predict(seen, ([0.05], [0.1, 0.6]), 50, torch.Generator().manual_seed(0))
        for d in ("cpu", "cuda")
    )
    torch.testing.assert_close(there.mean.mean(0).cpu(), here.mean.mean(0), rtol=0, atol=1e-3)


def test_a_gpu_and_a_cpu_train_alike(tmp_path):
    """Adam takes whole steps along small gradients too, and those differ in sign by rounding."""
    changes = {"steps": 5, "batch": 16, "schedule": "constant", "learning_rate": 1e-4}
    torch.manual_seed(0)
    start = weights(AttentiveNeuralProcess())
    there, here = (
        weights(train("pme", tmp_path / device, device=device, **changes).cpu()) - start
        for device in ("cuda", "cpu")
    )
    assert there @ here > 0.95 * there.norm() * here.norm()


@pytest.mark.parametrize("protocol", ["ours", "paper"])
def test_a_gpu_and_a_cpu_reproduce_the_same_table(protocol):
    """With dropout on, only about: the masks are other ones."""
    options = {"protocol": protocol, "recipe": "paper", "n": 3, "samples": 20, "figures": False}
    there, here = (reproduce(["stefan"], device=d, **options)[0].records for d in ("cuda", "cpu"))
    for a, b in zip(there, here, strict=True):
        assert a["LL"] == pytest.approx(b["LL"], abs=1e-3 if protocol == "ours" else 0.5)
        assert a["MSE"] == pytest.approx(b["MSE"], rel=1e-3 if protocol == "ours" else 0.5)
        assert (abs(a["CE"]) < 1e-12) == (abs(b["CE"]) < 1e-12)


def test_a_gpu_makes_figures_of_more_times_and_functions():
    cell = reproduce(["advection"], device="cuda", n=2, samples=5)[0]
    assert all(mse.shape == (201,) for mse in cell.of_methods("MSE over time").values())
    assert all(not curve.is_cuda for curve in cell.curves.values())
    assert {record["rule"] for record in cell.fronts} == {"point", "crossing"}


# Large fields in few passes.


@pytest.fixture(params=["kernels", "without Triton"])
def triton(request, monkeypatch):
    if request.param == "without Triton":
        monkeypatch.setattr(_sweeps, "has_triton", lambda device: False)
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("points", [37, 20_000])
@pytest.mark.parametrize("name", sweeping.CASES)
def test_sweeps_equal_the_engine_on_cuda(name, points, dtype, triton, rng, monkeypatch):
    law, mean, variance = sweeping.case(name, rng, points)
    field, law = (mean.to("cuda", dtype), variance.to("cuda", dtype)), law.to("cuda")
    post = pc.condition(field, law)
    assert isinstance(post._solved, Swept)
    want = sweeping.by_the_engine(monkeypatch, field, law)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(post.mean, want.mean, rtol=8 * eps, atol=400 * eps)
    torch.testing.assert_close(post.variance, want.variance, rtol=8 * eps, atol=8 * eps)


@pytest.mark.parametrize("points", [37, 20_000])
@pytest.mark.parametrize("name", ["noisy for each row", "regions"])
def test_gradients_of_sweeps_equal_those_of_the_engine(name, points, triton, rng, monkeypatch):
    law, mean, variance = sweeping.case(name, rng, points)
    given = [x.cuda().requires_grad_() for x in (mean, variance, law.value)]
    law = law.to("cuda")
    law.value, g = given[2], torch.randn(mean.shape, generator=rng, dtype=mean.dtype).cuda()
    posts = pc.condition(given[:2], law), sweeping.by_the_engine(monkeypatch, given[:2], law)
    found, want = (
        torch.autograd.grad((p.mean * g).sum() + (p.variance * g.cos()).sum(), given) for p in posts
    )
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [2, 8])
def test_rows_on_the_same_points_equal_the_engine_on_cuda(count, dtype, rng, monkeypatch):
    mean, variance = normal(3, 5000, rng=rng), uniform(3, 5000, rng=rng)
    field = mean.to("cuda", dtype), variance.to("cuda", dtype)
    laws = [pc.weighted_sum(normal(5000, rng=rng), 0.1 * i).to("cuda") for i in range(count)]
    post, want = pc.condition(field, *laws), sweeping.by_the_engine(monkeypatch, field, *laws)
    assert isinstance(post._solved, Swept)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(post.mean, want.mean, rtol=8 * eps, atol=400 * eps)
    torch.testing.assert_close(post.variance, want.variance, rtol=8 * eps, atol=8 * eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ensembles_equal_the_engine_on_cuda(dtype, rng, monkeypatch):
    members = (normal(7, 1, 1, rng=rng) + normal(7, 3, 5000, rng=rng)).to("cuda", dtype)
    law = pc.weighted_sum(normal(5000, rng=rng), 0.3).to("cuda")
    post = pc.condition(pc.Ensemble(members, batch_dims=1), law)
    assert isinstance(post._solved, Swept)
    ready = pc.Ensemble(members, batch_dims=1)
    assert ready.mean.shape == (3, 5000)  # which makes it a field like any other
    want = pc.condition(ready, law)
    assert not isinstance(want._solved, Swept)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(post.mean, want.mean, rtol=8 * eps, atol=400 * eps)
    torch.testing.assert_close(post.members(), want.members(), rtol=8 * eps, atol=400 * eps)
    torch.testing.assert_close(post.variance, want.variance)


def _waits(job):
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            job()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    said = [str(each.message) for each in said]
    return sum("synchronizing CUDA operation" in words for words in said)


def test_a_gpu_is_waited_for_once(rng):
    x = torch.linspace(0, 1, 37, dtype=torch.float64, device="cuda")
    mean, variance = (torch.rand(3, 37, generator=rng).cuda() for _ in range(2))
    members = torch.rand(5, 3, 37, generator=rng).cuda()
    laws = pc.integral(x, 0.5), pc.weighted_sum(x, 0.3)
    jobs = [
        lambda: pc.condition((mean, variance), laws[0]).mean,
        lambda: pc.condition(pc.Diagonal(mean, variance), laws[0]).variance,
        lambda: pc.condition(pc.Diagonal(mean, variance), *laws).mean,
        lambda: pc.condition(pc.Ensemble(members, batch_dims=1), laws[0]).mean,
    ]
    for job in jobs:
        job()
        assert _waits(job) == 1


def test_large_fields_are_not_copied_and_who_changes_them_is_told(rng):
    law, mean, variance = sweeping.case("integral", rng, 20_000)
    mean, variance, law = mean.cuda(), variance.cuda(), law.to("cuda")
    size = mean.numel() * 8
    pc.condition((mean, variance), law)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    post = pc.condition((mean, variance), law)
    found = post.mean, post.variance
    assert torch.cuda.max_memory_allocated() - before < 2.5 * size
    assert all(torch.equal(a, b) for a, b in zip(found, (post.mean, post.variance), strict=True))
    post.mean.add_(1)
    with pytest.raises(pc.errors.InputError, match="was changed in place"):
        _ = post.mean
    post = pc.condition((mean, variance), law)
    mean.add_(1)
    with pytest.raises(pc.errors.InputError, match="was changed in place"):
        post.sample(2)
    with torch.inference_mode():  # where nobody counts
        post = pc.condition((mean.clone(), variance.clone()), law)
        kept = post.mean.clone()
        post.mean.add_(1)
        assert torch.equal(post.mean, kept)


def test_bad_values_on_cuda_are_named_when_the_field_is_first_used(rng):
    law, mean, variance = sweeping.case("integral", rng)
    mean[1, 0, 3] = torch.nan
    field = pc.Diagonal(mean.cuda(), variance.cuda())
    for use in (lambda: field.mean, lambda: pc.condition(field, law), lambda: field.sample(1)):
        with pytest.raises(pc.errors.InputError, match="`mean` must be finite"):
            use()
    members = torch.stack([mean, mean + 1]).cuda()
    with pytest.raises(pc.errors.InputError, match="`members` must be finite"):
        pc.condition(pc.Ensemble(members, batch_dims=2), law)


def layer_given(dtype=torch.float32):
    rng = torch.Generator("cuda").manual_seed(0)
    mean, variance = torch.rand(2, 5, *SHAPE, generator=rng, device="cuda", dtype=dtype)
    return mean.requires_grad_(), (variance + 0.1).requires_grad_()


LAYERS = {
    "integral": lambda: pc.integral(torch.linspace(0, 1, SHAPE[-1]), 0.5),
    "regions": lambda: pc.regions([0, 0, 1, 1, 2, 2, 2], [0.5, 1.0, 2.0], noise=0.1),
}


@pytest.mark.parametrize("law", LAYERS)
def test_a_layer_on_cuda_is_that_on_a_cpu_and_keeps_its_digits(law):
    layer, (mean, variance) = pc.ConstraintLayer(LAYERS[law]()), layer_given(torch.float64)
    wanted = layer((mean.cpu(), variance.cpu()))
    moved = layer.half().to("cuda", torch.bfloat16)
    assert all(b.is_cuda and b.dtype != torch.bfloat16 for b in moved.buffers())
    for got, each in zip(moved((mean, variance)), wanted, strict=True):
        torch.testing.assert_close(got.cpu(), each)
    with torch.autocast("cuda", torch.bfloat16):
        torch.testing.assert_close(moved((mean, variance))[0].cpu(), wanted[0])


@pytest.mark.parametrize("law", LAYERS)
def test_a_layer_is_captured_in_a_cuda_graph_with_its_backward(law):
    layer = pc.ConstraintLayer(LAYERS[law](), checks=False).cuda()
    mean, variance = layer_given()
    total = layer.laws[0].apply(mean).detach()

    def step():
        moved, left = layer((mean, variance), total)
        (moved.square() + left).sum().backward()
        return moved, left

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    mean.grad = variance.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    with torch.no_grad():
        mean.add_(0.5)
        total.add_(0.1)
    mean.grad.zero_()
    variance.grad.zero_()
    graph.replay()
    gradient = mean.grad.clone()
    mean.grad = variance.grad = None
    wanted = step()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradient, mean.grad)


def test_a_compiled_layer_runs_as_a_cuda_graph():
    torch._dynamo.reset()
    layer = pc.ConstraintLayer(LAYERS["integral"]()).cuda()
    fast = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    mean, variance = (t.detach() for t in layer_given())
    for shift in (0.0, 0.1, 0.2, 0.3):
        given = mean + shift, variance
        found = [t.clone() for t in fast(given)]
        torch.testing.assert_close(found, [*layer(given)])
