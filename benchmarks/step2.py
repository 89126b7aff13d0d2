"""Speed and memory of Step 2, as ratios within one run: `make bench`. Prints a Markdown table.

Both sides of a ratio run in turn and the medians are compared. Freed memory is kept by the
allocator on both sides, so that page faults do not swamp the figures.
"""

import os
import sys
import weakref
from collections.abc import Callable

KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**40), "MALLOC_TRIM_THRESHOLD_": str(2**40)}
if __name__ == "__main__" and os.environ.get("MALLOC_TRIM_THRESHOLD_") is None:
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP})

import torch
from timing import seconds
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import probconserv as pc

Job = Callable[[], object]
T = M = 201
rng = torch.Generator().manual_seed(0)
x = torch.linspace(0, 1, M, dtype=torch.float64)
total = 0.05 * torch.rand(T, generator=rng, dtype=torch.float64)  # no surprise to any field
law = pc.integral(x, total)


def random_field(functions: int) -> tuple[Tensor, Tensor]:
    mean = torch.randn(functions, T, M, generator=rng, dtype=torch.float64)
    return mean, torch.rand(functions, T, M, generator=rng, dtype=torch.float64) + 0.1


def tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class LiveBytes(TorchDispatchMode):
    """The most bytes of tensors, made inside, that are alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        old = {
            t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)
        }
        for t in tree_leaves(out):
            if isinstance(t, Tensor) and t.untyped_storage()._cdata not in old | self.seen:
                self._add(t.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self.seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size


def peak(job: Job) -> int:
    with LiveBytes() as live:
        kept = job()
    del kept
    return live.peak


def step2(mean: Tensor, variance: Tensor, *laws: pc.laws.Law) -> tuple[Tensor, Tensor]:
    post = pc.condition(pc.Diagonal(mean, variance), *(laws or (law,)))
    return post.mean, post.variance


def dense(mean: Tensor, variance: Tensor, G: Tensor, b: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. (8) with matrices, in its cheapest order: mean (T, M), G (K, M), b and r (T, K)."""
    sigma = variance.diag_embed()
    cross = G @ sigma
    root = torch.linalg.cholesky(cross @ G.T + r.diag_embed())
    gain = torch.cholesky_solve(cross, root).mT
    return mean - (gain @ (mean @ G.T - b)[..., None])[..., 0], sigma - gain @ cross


def as_written(
    mean: Tensor, variance: Tensor, G: Tensor, b: Tensor, r: Tensor
) -> tuple[Tensor, Tensor]:
    """Eq. (8) with matrices, from left to right."""
    sigma = variance.diag_embed()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(G @ sigma @ G.T + r.diag_embed()))
    moved = mean - (sigma @ G.T @ inverse @ (mean @ G.T - b)[..., None])[..., 0]
    return moved, sigma - sigma @ G.T @ inverse @ G @ sigma


def report(what: str, ratio: float, bound: str) -> None:
    print(f"| {what} | {ratio:.2f} | {bound} |", flush=True)


def linear_path() -> None:
    mean, variance = random_field(400)
    small = mean[:50].clone(), variance[:50].clone()
    compiled = torch.compile(step2, fullgraph=True)

    def three(m: Tensor, v: Tensor) -> list[float]:
        jobs = (lambda: (m.clone(), v.clone()), lambda: step2(m, v), lambda: compiled(m, v))
        return seconds(*jobs, repeats=max(31, 400 // len(m) * 31))  # the same work at each size

    clone, eager, fast = three(mean, variance)
    clone50, eager50, fast50 = three(*small)
    report("16 M points, eager with its checks / clone of both arrays", eager / clone, "<= 6")
    report("16 M points, compiled / clone of both arrays", fast / clone, "<= 4")
    grown = eager / clone / (eager50 / clone50)
    report("growth of the eager ratio from 2 M to 16 M points", grown, "<= 1.5")
    grown = fast / clone / (fast50 / clone50)
    report("growth of the compiled ratio from 2 M to 16 M points", grown, "<= 1.5")
    arrays = peak(lambda: step2(mean, variance)) / (mean.numel() * 8)
    report("16 M points, eager, extra memory in arrays of the field's size", arrays, "<= 4")


def against_dense() -> None:
    mean, variance = random_field(5)
    G, b, none = law.map.weights[None], total[:, None], torch.zeros(T, 1, dtype=torch.float64)

    def each(formula: Callable[..., object]) -> Job:
        return lambda: [formula(m, v, G, b, none) for m, v in zip(mean, variance, strict=True)]

    slow, better, fast = seconds(
        each(as_written), each(dense), lambda: step2(mean, variance), repeats=9
    )
    report("201 x 201 per function, dense as written / ours, time", slow / fast, ">= 100")
    report("201 x 201 per function, dense in its cheapest order / ours, time", better / fast, "")
    lean = peak(lambda: step2(mean[0], variance[0]))
    fat = peak(lambda: dense(mean[0], variance[0], G, b, none))
    report("201 x 201 per function, dense / ours, memory", fat / lean, ">= 50")


def smoothing() -> None:
    (mean,), (variance,) = random_field(1)
    smooth = pc.smoothness(x, variance, rho=0.9)
    basis = torch.eye(M, dtype=torch.float64)
    G = torch.cat([law.map.weights[None], smooth.apply(basis).T])
    b = torch.cat([total[:, None], torch.zeros(T, M - 2, dtype=torch.float64)], -1)
    r = torch.cat([torch.zeros(T, 1, dtype=torch.float64), smooth.noise_variance], -1)
    slow, fast = seconds(
        lambda: dense(mean, variance, G, b, r),
        lambda: step2(mean, variance, law, smooth),
        repeats=9,
    )
    report("smoothness + integral at 201 x 201, dense / ours, time", slow / fast, ">= 10")


def sampling() -> None:
    (mean,), (variance,) = random_field(1)
    post = pc.condition(pc.Diagonal(mean, variance), law)
    normals, draws = seconds(
        lambda: torch.randn(500, T, M, generator=rng, dtype=torch.float64),
        lambda: post.sample(500, rng),
        repeats=9,
    )
    report("500 posterior samples at 201 x 201 / drawing the normals", draws / normals, "<= 2")


def low_rank() -> None:
    (mean,), (variance,) = random_field(1)
    factor = torch.randn(100, T, M, generator=rng, dtype=torch.float64)
    square = torch.randn(100, 100, generator=rng, dtype=torch.float64)
    prior = pc.LowRank(mean, factor, variance, event_dims=2)

    def both() -> tuple[Tensor, Tensor]:
        post = pc.condition(prior, law)
        return post.mean, post.variance

    read, product, first, second = seconds(
        lambda: factor.sum(),
        lambda: square @ factor.flatten(1),
        lambda: pc.condition(prior, law).mean,
        both,
        repeats=15,
    )
    report("low rank 100, 201 times jointly, mean / reading the factor", first / read, "<= 10")
    report("low rank 100, mean and variance / factor times 100 x 100", second / product, "<= 4")


def latent_aware() -> None:
    """From the components of one function to mean and variance, by three updates."""
    parts = pc.Diagonal(*random_field(100))

    def moments(field: pc.fields.Field) -> tuple[Tensor, Tensor]:
        return field.mean, field.variance

    def low_rank_over(event_dims: int) -> tuple[Tensor, Tensor]:
        prior = pc.Ensemble(
            parts.mean,
            parts.variance.mean(0),
            batch_dims=parts.mean.ndim - 1 - event_dims,
            shrinkage=0.0,
        )
        return moments(pc.condition(prior, law))

    paper, each, joint = seconds(
        lambda: moments(pc.Mixture(pc.condition(parts, law))),
        lambda: low_rank_over(1),
        lambda: low_rank_over(2),
        repeats=9,
    )
    report("100 components, low rank jointly / low rank per time", joint / each, "<= 5")
    report("100 components, low rank jointly / the paper's update", joint / paper, "< 1")
    arrays = peak(lambda: low_rank_over(2)) / (parts.mean.numel() * 8)
    report("the same, extra memory in arrays of the components' size", arrays, "")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print("| ratio | measured | asked for |\n|---|---|---|")
    for part in (linear_path, against_dense, smoothing, sampling, low_rank, latent_aware):
        part()
