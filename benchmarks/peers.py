"""Step 2 beside what others take for the same work, on one core: `make bench-peers`.

A field of 201 points at 201 times, independent points, one integral for each time, float64. All
tools take turns; seconds are those of the processor, so that other work does not count. Prints a
Markdown table; a tool whose answer is another one gets no row. The last columns are the largest
sizes, doubled from one function and from one row of 201 points; `--times` leaves them out, and
`--largest NAME functions` finds one of them.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version

if hasattr(os, "sched_setaffinity"):  # before any library counts the cores
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**40), "MALLOC_TRIM_THRESHOLD_": str(2**40)}
if __name__ == "__main__" and "--largest" not in sys.argv and KEEP.keys() - os.environ.keys():
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP})
os.environ |= {"OMP_NUM_THREADS": "1", "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}

import numpy as np
import torch
from torch import Tensor

import probconserv as pc

SAME = 1e-6  # of a standard deviation, and of the largest gradient
SECONDS, GIB = 10, 2  # what is reasonable
Update = Callable[[Tensor, Tensor, "Work"], object]


@dataclass
class Work:
    """Functions of `times` rows of `points` points, given their integrals; the loss is a sum."""

    functions: int = 1
    times: int = 201
    points: int = 201

    def __post_init__(self) -> None:
        rng = torch.Generator().manual_seed(0)
        shape = self.functions, self.times, self.points
        self.mean = torch.randn(shape, generator=rng, dtype=torch.float64)
        self.variance = torch.rand(shape, generator=rng, dtype=torch.float64) + 0.1
        self.x = torch.linspace(0, 1, self.points, dtype=torch.float64)
        self.b = 0.05 * torch.rand(self.times, generator=rng, dtype=torch.float64)
        self.law = pc.integral(self.x, self.b)
        self.w = self.law.map.weights
        self.slope = torch.cos(7 * self.x)  # d loss / d updated mean

    @cached_property
    def ours(self) -> tuple[Tensor, Tensor]:
        leaf = self.mean.clone().requires_grad_()
        mean = pc.condition((leaf, self.variance), self.law).mean
        return mean.detach(), torch.autograd.grad((mean * self.slope).sum(), leaf)[0]

    def residual(self, mean: Tensor) -> float:
        """What is left of the law, relative to its terms."""
        off = ((mean * self.w).sum(-1) - self.b).abs()
        return float((off / (mean * self.w).abs().sum(-1)).max())

    def off(self, mean: Tensor, gradient: Tensor) -> tuple[float, float]:
        ours, slope = self.ours
        away = ((mean - ours) / self.variance.sqrt()).abs().max()
        return float(away), float((gradient - slope).abs().max() / slope.abs().max())


@dataclass
class Jobs:
    """The same work as calls without arguments."""

    mean: Callable[[], object]
    gradient: Callable[[], object]
    both: Callable[[], object] | None = None


def in_torch(mean: Update, both: Update | None = None) -> Callable[[Work], Jobs]:
    """Jobs of functions of mean and variance; gradients by autograd."""

    def jobs(work: Work) -> Jobs:
        leaf = work.mean.clone().requires_grad_()

        def gradient() -> Tensor:
            loss = (mean(leaf, work.variance, work) * work.slope).sum()
            return torch.autograd.grad(loss, leaf)[0]

        return Jobs(
            lambda: mean(work.mean, work.variance, work),
            gradient,
            both and (lambda: both(work.mean, work.variance, work)),
        )

    return jobs


def ours_mean(mean: Tensor, variance: Tensor, work: Work) -> Tensor:
    return pc.condition((mean, variance), work.law).mean


def ours(mean: Tensor, variance: Tensor, work: Work) -> tuple[Tensor, Tensor]:
    post = pc.condition((mean, variance), work.law)
    return post.mean, post.variance


def compiled(work: Work) -> Jobs:
    law = work.law  # closed over: a law is no tensor
    first = torch.compile(lambda m, v: pc.condition((m, v), law).mean, fullgraph=True)

    def moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        post = pc.condition((m, v), law)
        return post.mean, post.variance

    second = torch.compile(moments, fullgraph=True)
    return in_torch(lambda m, v, _: first(m, v), lambda m, v, _: second(m, v))(work)


def by_hand_mean(mean: Tensor, variance: Tensor, work: Work) -> Tensor:
    shared = variance * work.w  # Sigma G^T
    return mean - shared * ((mean @ work.w - work.b) / (shared @ work.w))[..., None]


def by_hand(mean: Tensor, variance: Tensor, work: Work) -> tuple[Tensor, Tensor]:
    shared = variance * work.w  # Sigma G^T
    s = (shared @ work.w)[..., None]
    moved = mean - shared * ((mean @ work.w - work.b)[..., None] / s)
    return moved, variance - shared.square() / s


def gain_of(variance: Tensor, work: Work) -> tuple[Tensor, Tensor, Tensor]:
    """Sigma, one matrix for each time; G; and Sigma G^T (G Sigma G^T)^-1."""
    sigma, G = variance.diag_embed(), work.w[None]
    return sigma, G, sigma @ G.mT @ torch.linalg.inv(G @ sigma @ G.mT)


def dense_mean(mean: Tensor, variance: Tensor, work: Work) -> Tensor:
    """Eq. (8) with matrices."""
    _, G, gain = gain_of(variance, work)
    return mean - (gain @ (G @ mean[..., None] - work.b[:, None, None]))[..., 0]


def printed(mean: Tensor, variance: Tensor, work: Work) -> tuple[Tensor, Tensor]:
    """Eq. (8) as it is printed, from left to right."""
    sigma, G, gain = gain_of(variance, work)
    moved = mean - (gain @ (G @ mean[..., None] - work.b[:, None, None]))[..., 0]
    return moved, sigma - gain @ G @ sigma


def cheaper(mean: Tensor, variance: Tensor, work: Work) -> tuple[Tensor, Tensor]:
    """The same without products of two square matrices."""
    sigma, G, gain = gain_of(variance, work)
    moved = mean - (gain @ (G @ mean[..., None] - work.b[:, None, None]))[..., 0]
    return moved, sigma - gain @ (G @ sigma)


def pinet(work: Work) -> Jobs:
    """The nearest point with A y = b of y = mean / std, by the layer's own pseudo-inverse of A."""
    import jax
    import jax.numpy as jnp
    from pinet import (
        EqualityConstraint,
        EqualityConstraintsSpecification,
        Project,
        ProjectionInstance,
    )

    shape = work.mean.shape
    mean, variance, w, b, slope = (
        jnp.asarray(t.numpy()) for t in (work.mean, work.variance, work.w, work.b, work.slope)
    )
    rows = jnp.broadcast_to(b, shape[:-1]).reshape(-1, 1, 1)
    blank = jnp.ones((len(rows), 1, shape[-1]))
    layer = Project(EqualityConstraint(blank, rows, var_b=True, var_a_mat=True))

    @jax.jit
    def update(mean, variance):
        std = jnp.sqrt(variance)
        spec = EqualityConstraintsSpecification(b=rows, a_mat=(w * std).reshape(blank.shape))
        point = ProjectionInstance(x=(mean / std).reshape(-1, shape[-1], 1), eq=spec)
        return layer.call(y_raw=point, n_iter=1)[0].x.reshape(shape) * std

    slopes = jax.jit(jax.grad(lambda m, v: (update(m, v) * slope).sum()))
    return Jobs(
        lambda: update(mean, variance).block_until_ready(),
        lambda: slopes(mean, variance).block_until_ready(),
    )


def cvxpylayers(work: Work) -> Jobs:
    """The shortest z with a'z = r, as a cone; mean + std z. Of the ways tried the fastest."""
    import cvxpy as cp
    from cvxpylayers.torch import CvxpyLayer

    z, a, r = cp.Variable(work.points), cp.Parameter(work.points), cp.Parameter()
    problem = cp.Problem(cp.Minimize(cp.norm(z)), [a @ z == r])
    options = {"eps": 1e-10, "n_jobs_forward": 1}
    layer = CvxpyLayer(problem, parameters=[a, r], variables=[z], solver_args=options)
    backward = {"n_jobs_backward": 1}  # refused where there is no gradient

    def update(mean: Tensor, variance: Tensor, work: Work) -> Tensor:
        std = variance.sqrt()
        rows, rest = (work.w * std).flatten(0, 1), (work.b - mean @ work.w).flatten()
        more = backward if mean.requires_grad else {}
        return mean + std * layer(rows, rest, solver_args=more)[0].view_as(std)

    return in_torch(update)(work)


def qpth(work: Work) -> Jobs:
    """The same as a quadratic programme; it wants an inequality, and gets 0 <= 1."""
    from qpth.qp import QPFunction

    none = torch.zeros(work.points, dtype=torch.float64)
    solve = QPFunction(verbose=-1, check_Q_spd=False)

    def update(mean: Tensor, variance: Tensor, work: Work) -> Tensor:
        std = variance.sqrt()
        rows, rest = (work.w * std).flatten(0, 1), (work.b - mean @ work.w).flatten()
        Q, one = torch.eye(work.points, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        z = solve(Q, none, none[None], one, rows[:, None], rest[:, None])
        return mean + std * z.view_as(std)

    return in_torch(update)(work)


PEERS = {
    "ours": (in_torch(ours_mean, ours), "variance, draws, gradients"),
    "ours, compiled": (compiled, "variance, draws, gradients"),
    "plain torch by hand": (in_torch(by_hand_mean, by_hand), "variance, gradients"),
    "the same, compiled": (in_torch(*map(torch.compile, (by_hand_mean, by_hand))), "the same"),
    "Eq. (8), dense, as printed": (in_torch(dense_mean, printed), "covariance, gradients"),
    "Eq. (8), dense, cheapest order": (in_torch(dense_mean, cheaper), "covariance, gradients"),
    "pinet": (pinet, "gradients"),
    "cvxpylayers": (cvxpylayers, "gradients"),
    "qpth": (qpth, "gradients"),
}
PACKAGES = "torch", "jax", "pinet-hcnn", "cvxpylayers", "diffcp", "scs", "qpth"


def tensor(array: object) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(np.array(array))


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux


def largest(name: str, axis: str) -> int:
    """Doubled until the mean takes more than SECONDS or the process, inputs included, GIB more."""
    setup, best, size = PEERS[name][0], 0, {"functions": 1, "points": 201}[axis]
    setup(Work(1, 1)).mean()  # imports
    before = peak()
    while True:
        mean = setup(Work(size) if axis == "functions" else Work(1, 1, size)).mean
        mean()  # compiles
        if peak() - before > GIB * 2**20:
            return best
        if spent(mean) > SECONDS:
            return best
        best, size = size, 2 * size


def in_a_process(name: str, axis: str) -> int:
    """Without the memory that this process has, and keeps."""
    command = [sys.executable, __file__, "--largest", name, axis]
    env = {key: value for key, value in os.environ.items() if key not in KEEP}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return int(done.stdout.splitlines()[-1])


def spent(job: Callable[[], object], calls: int = 1) -> float:
    """Processor seconds of a call."""
    start = time.process_time()
    for _ in range(calls):
        job()
    return (time.process_time() - start) / calls


def checked(work: Work) -> dict[str, Jobs]:
    """The jobs of the tools that are here and give the same answer; says of others why not."""
    kept = {}
    for name, (setup, _) in PEERS.items():
        try:
            jobs = setup(work)
        except ImportError as error:
            print(f"{name}: not installed here ({error})")
            continue
        off = work.off(tensor(jobs.mean()), tensor(jobs.gradient()))
        if max(off) > SAME:
            print(f"{name}: another answer, off by {off[0]:.0e} and {off[1]:.0e}")
            continue
        kept[name] = jobs
    return kept


def times(jobs: dict[str, Jobs], rounds: int = 15) -> dict[str, list[float | None]]:
    """Milliseconds of the three jobs of each tool: medians, all in turn, 20 ms or a call a turn."""
    calls = {
        (name, kind): call
        for name, one in jobs.items()
        for kind in ("mean", "both", "gradient")
        if (call := getattr(one, kind))
    }
    for call in calls.values():
        call()  # compiles
    often = {key: 1 + int(0.02 / spent(call)) for key, call in calls.items()}
    turns = [{key: spent(calls[key], often[key]) for key in calls} for _ in range(rounds)]
    found = {key: 1e3 * statistics.median(turn[key] for turn in turns) for key in calls}
    return {name: [found.get((name, k)) for k in ("mean", "both", "gradient")] for name in jobs}


def cell(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.3g}"


def main() -> None:
    print(", ".join(f"{p} {version(p)}" for p in PACKAGES if _installed(p)))
    start, used = time.perf_counter(), time.process_time()
    one, many = Work(), Work(64)
    jobs = checked(one)
    small = times(jobs)
    able = {name: PEERS[name][0](many) for name in jobs if small[name][0] < 10}
    large = times(able)
    share = (time.process_time() - used) / (time.perf_counter() - start)
    print(f"load {os.getloadavg()[0]:.1f}; this process had {share:.0%} of its core\n")
    print(
        "| ms, one core | mean | and variance | and backward | 64: mean | and variance "
        "| and backward | residual | mean off | gradient off | comes with | functions | points |\n"
        f"|{'---|' * 13}"
    )
    for name, job in jobs.items():
        mean = tensor(job.mean())
        cells = [cell(t) for t in small[name] + large.get(name, [None] * 3)]
        off = one.off(mean, tensor(job.gradient()))
        cells += [f"{x:.0e}" for x in (one.residual(mean), *off)]
        cells.append(PEERS[name][1])
        sizes = ("functions", "points") if "--times" not in sys.argv else ()
        cells += [f"{in_a_process(name, axis):,}" for axis in sizes] or ["", ""]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _installed(package: str) -> bool:
    try:
        return bool(version(package))
    except ImportError:
        return False


if __name__ == "__main__":
    if "--largest" in sys.argv:
        print(largest(*sys.argv[2:]))
    else:
        main()
