"""Four processes condition fields in shards; the first writes what came out as JSON.

Run by `test_sharded.py`: one import of torch, then four forks.
"""

import functools
import json
import math
import os
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.multiprocessing import start_processes

import probconserv as pc

CASES = {}
B, T, M = 3, 5, 7


def case(work):
    CASES[work.__name__] = work
    return work


def normal(*shape, seed=0):
    made = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=made, dtype=torch.float64)


def put(x, mesh, placements, more=0):
    """more: axes before those that the placements speak of."""
    cut = [Shard(p.dim + more) if isinstance(p, Shard) else p for p in placements]
    return distribute_tensor(x, mesh, cut)


def whole(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


def off(found, wanted):
    found, wanted = whole(found).detach(), wanted.detach()
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-9))


X, TIMES = torch.linspace(0, 1, M), torch.linspace(0, 1, T)
MEAN, VARIANCE = normal(B, T, M), normal(B, T, M, seed=1).square() + 0.1
MEMBERS, TOTALS = normal(4, B, T, M, seed=8), 0.1 * normal(T, seed=3)
LABELS = [0, 1, 1, 2, 0, 2, -1]


def laws():
    inside = normal(T, M, seed=1) > 0
    each = normal(T, M, seed=5)
    whole_time = pc.weighted_sum(each, 0.3)
    total = pc.integral(X, TOTALS, noise=0.1)
    return {
        "integral": [pc.integral(X, TOTALS)],
        "noise": [pc.integral(X, TOTALS, noise=normal(T, seed=2).abs())],
        "two axes, where": [pc.integral((TIMES, X), 0.3, where=inside)],
        "three axes": [pc.weighted_sum(normal(B, T, M, seed=5), 0.3)],
        "weights of each time": [pc.weighted_sum(each, TOTALS, space_dims=1, where=inside)],
        "two laws": [total, pc.weighted_sum(normal(M, seed=5), 0.3)],
        "one over time": [total, whole_time],
        "times": [pc.integral(X, TOTALS[:2], times=[1, 3]), whole_time],
        "regions": [pc.regions(LABELS, 0.1 * normal(T, 3, seed=3), noise=0.1)],
        "ends": [pc.regions(LABELS, 0.1 * normal(T, 3, seed=3), noise=0.1), pc.boundary(0.1)],
        "start": [pc.linear(normal(2, M, seed=9), 0.1, noise=0.2), pc.initial(normal(M, seed=4))],
        "start alone": [pc.initial(normal(M, seed=4), noise=0.3)],
        "smooth": [pc.smoothness(X, VARIANCE, 0.9), pc.integral(X, TOTALS)],
        "periodic": [pc.periodic(), pc.integral(X, TOTALS)],
    }


def priors(kind, place):
    def many(x):
        return place(x, 1)

    return {
        "Diagonal": lambda: pc.Diagonal(place(MEAN), place(VARIANCE)),
        "std": lambda: pc.Diagonal(place(MEAN), std=place(VARIANCE)),
        "one variance": lambda: (place(MEAN), 0.7),
        "float32": lambda: pc.Diagonal(place(MEAN.float()), place(VARIANCE.float())),
        "Ensemble": lambda: pc.Ensemble(many(MEMBERS)),
        "Ensemble by entry": lambda: pc.Ensemble(many(MEMBERS), 0.3, batch_dims=1),
        "LowRank": lambda: pc.LowRank(place(MEAN), many(MEMBERS), place(VARIANCE)),
        "LowRank over time": lambda: pc.LowRank(place(MEAN), many(MEMBERS), 0.5, event_dims=2),
    }[kind]()


@functools.cache
def known(kind):
    """What one process finds."""
    every = laws().items()
    return {n: pc.condition(priors(kind, lambda x, more=0: x), *given) for n, given in every}


def worst(kind, mesh, placements, most):
    """The largest difference to one process, for each of some laws."""
    found = {}
    for name, given in list(laws().items())[:: -(-len(laws()) // most)]:
        want = known(kind)[name]
        field = priors(kind, lambda x, more=0: put(x, mesh, placements, more))
        post = pc.condition(field, *given)
        each = [off(getattr(post, one), getattr(want, one)) for one in ("mean", "variance", "std")]
        each.append(off(post.log_evidence, want.log_evidence))
        if kind == "Ensemble" and all(law.exact for law in given):
            each.append(off(post.members(), want.members()))
        found[name] = max(each)
        assert post.mean.placements == tuple(placements)
    return found


def over(kind, *where, most=20):
    def work(four, pair):
        grid = four["grid"]
        found = {}
        for placements in where:
            mesh = grid if len(placements) == 2 else four["line"]
            found[str(placements)] = worst(kind, mesh, placements, most)
        return found

    CASES[f"same {kind}"] = work


SPACE, TIME, BATCH, NONE = Shard(2), Shard(1), Shard(0), Replicate()
over("Diagonal", (SPACE,), (BATCH, SPACE), (TIME, SPACE))
over("LowRank over time", (BATCH,), (SPACE, SPACE), most=5)
over("std", (SPACE, NONE), most=7)
over("one variance", (BATCH, SPACE), most=7)
over("float32", (TIME,), most=7)
over("Ensemble", (SPACE,), (TIME, BATCH), most=5)
over("Ensemble by entry", (BATCH, TIME), most=7)
over("LowRank", (TIME,), most=7)


@case
def uneven(four, pair):
    """201 points on two and on four processes."""
    mean, variance, x = normal(T, 201), normal(T, 201, seed=1).square(), torch.linspace(0, 1, 201)
    law = pc.integral(x, TOTALS)
    want, found = pc.condition((mean, variance), law), []
    for mesh in (pair, four["line"]):
        post = pc.condition((put(mean, mesh, [TIME]), put(variance, mesh, [TIME])), law)
        size = post.mean.to_local().shape[1]
        rows = law.residual(post.mean.full_tensor()).abs().max()
        again = pc.condition(post, pc.boundary(0.0))
        twice = pc.condition(want, pc.boundary(0.0))
        found.append([off(post.mean, want.mean), off(post.variance, want.variance), float(rows)])
        found[-1] += [off(again.mean, twice.mean), size]
        found[-1].append(off(pc.project(post.prior, law).mean, pc.project(want.prior, law).mean))
    return found


@case
def one_point_has_most(four, pair):
    """The variance where one point has nearly all of a row: a look at values, on all processes."""
    variance = VARIANCE.clone()
    variance[..., 2] = 1e6
    field = put(MEAN, pair, [SPACE]), put(variance, pair, [SPACE])
    law = pc.integral(X, TOTALS)
    want = pc.condition((MEAN, variance), law).variance
    return float(((whole(pc.condition(field, law).variance) - want) / want).abs().max())


def gradients(place, given, kind="Diagonal"):
    """Of a number made of all that comes out."""
    value, noise = (0.1 * normal(T, seed=3)).requires_grad_(), torch.tensor(0.1).requires_grad_()
    mean = place(MEAN).requires_grad_()
    second = place(VARIANCE).requires_grad_() if kind == "Diagonal" else place(MEMBERS, 1)
    second.requires_grad_()
    field = pc.Diagonal(mean, second) if kind == "Diagonal" else pc.LowRank(mean, second, 0.2)
    post = pc.condition(field, *given(value, noise.double()))
    total = (whole(post.mean) * normal(B, T, M, seed=6)).sum()
    total = total + (whole(post.variance) * normal(B, T, M, seed=7)).sum()
    total = total + (whole(post.log_evidence) * 0.1).sum() + (whole(post.std) ** 3).sum()
    return torch.autograd.grad(total, (mean, second, value, noise))


@case
def same_gradients(four, pair):
    def one(value, noise):
        return [pc.integral(X, value, noise=noise)]

    def several(value, noise):
        return [pc.integral(X, value, noise=noise), pc.weighted_sum(normal(T, M, seed=5), 0.3)]

    found = {}
    for name, given in (("one", one), ("several", several)):
        for kind in ("Diagonal", "LowRank"):
            want = gradients(lambda x, more=0: x.clone(), given, kind)
            for placements in ((SPACE,), (BATCH, SPACE), (NONE, SPACE)):
                mesh = four["line"] if len(placements) == 1 else four["grid"]
                some = gradients(
                    lambda x, more=0, m=mesh, p=placements: put(x, m, p, more), given, kind
                )
                pairs = zip(some, want, strict=True)
                found[f"{name} {kind} {placements}"] = max(off(a, b) for a, b in pairs)
    return found


def state(place):
    rain = pc.Diagonal(place(MEAN, 2), place(VARIANCE, 2))
    snow = pc.Diagonal(place(normal(B, T, 4, seed=2), 2), 0.5)
    inflow = pc.Diagonal(place(normal(B, T, 1, seed=4), None), 0.3)
    return pc.State(rain=rain, snow=snow, inflow=inflow)


def state_laws():
    areas = {"rain": normal(M, seed=5), "snow": normal(4, seed=6), "inflow": torch.ones(1)}
    return [pc.weighted_sum(areas, TOTALS), pc.integral(X, 0.2, noise=0.1, of="rain")]


@case
def states(four, pair):
    """Fields of different sizes over space, one of which all processes hold."""
    found = []

    def over_space(x, axis):
        return put(x, four["grid"], [NONE, NONE if axis is None else Shard(axis)])

    def over_both(x, axis):
        return put(x, four["grid"], [BATCH, NONE if axis is None else Shard(axis)])

    def by_field(x, axis):
        cut = NONE if axis is None else Shard(axis)
        return put(x, four["grid"], [cut, NONE] if x.shape[-1] == M else [NONE, cut])

    for place in (over_space, over_both, by_field):
        for count in (1, 2):
            want = pc.condition(state(lambda x, axis: x), *state_laws()[:count])
            post = pc.condition(state(place), *state_laws()[:count])
            found += [off(post[n].mean, want[n].mean) for n in post.names]
            found += [off(post[n].variance, want[n].variance) for n in post.names]
            found.append(off(post.log_evidence, want.log_evidence))
            drawn = {n: whole(u) for n, u in post.sample(3, torch.Generator()).items()}
            found.append(float(state_laws()[0].residual(drawn).abs().max()))
    return found


@case
def state_gradients(four, pair):
    def graded(place):
        a, b = place(MEAN[0], 1), place(normal(T, 1, seed=4), None)
        a.requires_grad_(), b.requires_grad_()
        field = pc.State(u=pc.Diagonal(a, 1.0), f=pc.Diagonal(b, 0.5))
        law = pc.weighted_sum({"u": normal(M, seed=5), "f": torch.ones(1)}, TOTALS, noise=0.1)
        post = pc.condition(field, law)
        total = (whole(post["u"].mean) ** 2).sum() + (whole(post["f"].mean) ** 3).sum()
        return torch.autograd.grad(total + whole(post.log_evidence).sum(), (a, b))

    want = graded(lambda x, axis: x.clone())
    some = graded(lambda x, axis: put(x, pair, [NONE if axis is None else Shard(axis)]))
    return [off(a, b) for a, b in zip(some, want, strict=True)]


@case
def draws(four, pair):
    """Draws obey exact laws, have the right moments, and no two points the same numbers."""
    found = {}
    law = pc.integral(X, TOTALS)
    for name, made, exact in (
        ("Diagonal", lambda d: pc.Diagonal(d(MEAN), d(VARIANCE)), law),
        ("noise", lambda d: pc.Diagonal(d(MEAN), d(VARIANCE)), pc.integral(X, TOTALS, noise=0.5)),
        ("LowRank", lambda d: pc.LowRank(d(MEAN), d(MEMBERS, 1), d(VARIANCE), event_dims=3), law),
    ):
        want = pc.condition(made(lambda x, more=0: x), exact)
        for placements in ((SPACE, BATCH), (NONE, SPACE), (TIME, NONE)):
            post = pc.condition(
                made(lambda x, more=0, p=placements: put(x, four["grid"], p, more)), exact
            )
            n, made_by = 4000, torch.Generator().manual_seed(3)
            u = whole(post.sample(n, made_by))
            missed = float(exact.residual(u).abs().max()) * exact.exact
            flat = (u - want.mean).reshape(n, -1)
            true = unit(want).reshape(len(flat.mT), -1)
            size = true.diagonal().sqrt()
            wrong = (flat.mT @ flat / n - true) / (size[:, None] * size)
            found[f"{name} {placements}"] = [missed, float(wrong.abs().max())]
            again = whole(post.sample(2, torch.Generator().manual_seed(3)))
            assert torch.equal(again, whole(post.sample(2, torch.Generator().manual_seed(3))))
    return found


def unit(post):
    """The covariance over all points, row by row."""
    size = B * T * M
    return post.covariance_times(torch.eye(size, dtype=torch.float64).reshape(size, B, T, M))


@case
def covariance(four, pair):
    v, found = normal(2, B, T, M, seed=6), []
    for kind in ("Diagonal", "LowRank", "Ensemble by entry"):
        for name in ("integral", "one over time"):
            want = pc.condition(priors(kind, lambda x, more=0: x), *laws()[name])
            field = priors(kind, lambda x, more=0: put(x, pair, [SPACE], more))
            post = pc.condition(field, *laws()[name])
            spread = put(v, pair, [SPACE], 1)
            found.append(off(post.covariance_times(spread), want.covariance_times(v)))
            low, high = post.interval(0.9) if kind == "Diagonal" else (post.mean, post.mean)
            wanted = want.interval(0.9) if kind == "Diagonal" else (want.mean, want.mean)
            found += [off(low, wanted[0]), off(high, wanted[1])]
    u = put(MEAN + 0.1, pair, [SPACE])
    noisy = laws()["noise"]
    post = pc.condition((put(MEAN, pair, [SPACE]), 1.0), *noisy)
    score = pc.condition((MEAN, 1.0), *noisy).marginal_log_prob(MEAN + 0.1)
    return [*found, off(post.marginal_log_prob(u), score)]


def said(work):
    """What every process says of it: an error, or warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            work()
            own = "; ".join(f"{one.category.__name__}: {one.message}" for one in caught)
        except Exception as error:
            own = f"{type(error).__name__}: {error}"
    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, own)
    assert len(set(each)) == 1, each
    return each[0]


def from_parts(mesh, axis, change, x=MEAN):
    """A DTensor of which the last process has changed its part."""
    whole_ = put(x, mesh, [Shard(axis)])
    here = whole_.to_local().clone()
    if mesh.get_local_rank() == mesh.size() - 2 and here.numel():
        change(here)
    return DTensor.from_local(
        here, mesh, [Shard(axis)], run_check=False, shape=x.shape, stride=x.stride()
    )


@case
def bad_values_on_one_process(four, pair):
    line, law = four["line"], pc.integral(X, TOTALS)

    def first(number):
        return lambda t: t.view(-1)[:1].fill_(number)

    def field(axis, change, of="mean"):
        mean, variance = put(MEAN, line, [Shard(axis)]), put(VARIANCE, line, [Shard(axis)])
        if of == "mean":
            return from_parts(line, axis, change), variance
        return mean, from_parts(line, axis, change, VARIANCE)

    def std():
        pc.Diagonal(put(MEAN, line, [SPACE]), std=from_parts(line, 2, first(-1.0), VARIANCE))

    moved, none = (lambda t: t.add_(1e3)), (lambda t: t.zero_())
    far = pc.integral(X, 3e2)
    return {
        "nan": said(lambda: pc.condition(field(2, first(math.nan)), law)),
        "infinite": said(lambda: pc.Diagonal(*field(0, first(math.inf)))),
        "negative": said(lambda: pc.condition(field(2, first(-1.0), "variance"), law)),
        "std": said(std),
        "members": said(lambda: pc.Ensemble(put(MEMBERS, line, [Shard(3)]) * math.nan)),
        "far": said(lambda: pc.condition(field(1, moved), law)),
        "far in space": said(lambda: pc.condition(field(2, first(0.0)), far)),
        "infeasible": said(lambda: pc.condition(field(1, none, "variance"), law)),
        "infeasible entry": said(lambda: pc.condition(field(0, none, "variance"), law)),
        "contradiction": said(
            lambda: pc.condition(field(2, none), law, pc.integral(X, TOTALS + 1, label="other"))
        ),
        "endless": said(lambda: pc.condition(field(2, first(math.inf), "variance"), law)),
        "endless draws": said(
            lambda: pc.condition(field(0, lambda t: t.fill_(math.inf), "variance"), law).sample(2)
        ),
    }


@case
def refusals(four, pair):
    law, mean = pc.integral(X, TOTALS), put(MEAN, pair, [SPACE])
    field, line = (mean, put(VARIANCE, pair, [SPACE])), four["line"]
    halves = DTensor.from_local(MEAN, pair, [Partial()], run_check=False)
    odd = DTensor.from_local(
        MEAN[..., : 2 if pair.get_local_rank() else 5], pair, [SPACE], run_check=False,
        shape=MEAN.shape, stride=MEAN.stride(),
    )  # fmt: skip
    post = pc.condition(field, law)
    two_states = pc.State(a=field, b=(MEAN, VARIANCE))
    many = put(MEMBERS, pair, [Shard(2)])
    joint = pc.State(a=pc.Ensemble(many), b=pc.Ensemble(many, batch_dims=2))
    wide = put(normal(20_000), pair, [Shard(0)])
    smooth = pc.smoothness(torch.arange(20_000.0), torch.ones(20_000), 0.5)
    members = pc.Ensemble(put(MEMBERS, pair, [Shard(3)]))
    square = pc.nonlinear(lambda u: u.square().sum(-1), 5.0)
    return {
        "partial": said(lambda: pc.condition((halves, 1.0), law)),
        "odd": said(lambda: pc.condition((odd, 1.0), law)),
        "plain variance": said(lambda: pc.Diagonal(mean, VARIANCE)),
        "plain mean": said(lambda: pc.Diagonal(MEAN, field[1])),
        "meshes": said(lambda: pc.Diagonal(mean, put(VARIANCE, line, [SPACE]))),
        "law": said(lambda: pc.integral(X, put(TOTALS, pair, [Shard(0)]))),
        "read": said(lambda: law.residual(post)),
        "audit": said(lambda: pc.audit(post)),
        "mixture": said(lambda: pc.condition(pc.Mixture(pc.Diagonal(mean, 1.0)), law)),
        "dense": said(lambda: pc.Dense(mean, torch.eye(mean.shape[-1]))),
        "nonlinear": said(lambda: pc.condition(field, square)),
        "bounds": said(lambda: pc.condition(field, law, pc.bounds(low=0.0))),
        "members": said(lambda: pc.Ensemble(put(MEMBERS, pair, [Shard(0)]))),
        "mixed state": said(lambda: pc.condition(two_states, law)),
        "joint state": said(lambda: pc.condition(joint, pc.integral(X, TOTALS, of="a"))),
        "many rows": said(lambda: pc.condition((wide, 1.0), smooth)),
        "log_prob": said(lambda: post.log_prob(mean)),
        "save": said(lambda: post.save("x")),
        "index": said(lambda: post[0]),
        "diagnose": said(lambda: pc.diagnose(post.prior, law)),
        "inflate": said(lambda: pc.inflate(post, law)),
        "evaluate": said(lambda: pc.evaluate(post, MEAN)),
        "save prior": said(lambda: post.prior.save("x")),
        "draws": said(lambda: post.prior.sample(2)),
        "generator": said(lambda: post.sample(2, 3)),
        "interval": said(lambda: pc.condition(members, law).interval(0.9)),
    }  # fmt: skip


def run(rank, path, names):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{path}.store", rank=rank, world_size=4,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    four = {"line": init_device_mesh("cpu", (4,)), "grid": grid}
    found = {}
    for name in names or CASES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[name] = CASES[name](four, grid["b"])
    if rank == 0:
        with open(path, "w") as file:
            json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    start_processes(run, (sys.argv[1], sys.argv[2:]), nprocs=4, start_method="fork")
