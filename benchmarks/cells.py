"""What laws for every cell cost: `OMP_NUM_THREADS=2 python benchmarks/cells.py [--gpu]`.

A periodic square, 16 intervals, fluxes unknown; log10 of the variances is a smooth bump over four
decades. Prints a Markdown table. The yardstick is SciPy's conjugate gradients on the assembled
matrix, scaled by its diagonal, on one core. Both sides of a ratio run in turn. Use an idle machine.
"""

import argparse
import math
import os
import resource
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import probconserv as pc
from probconserv.solvers.iterative import Iterative

INTERVALS = 16


def narrow(*sizes: int) -> Tensor:
    """A Gaussian of width 0.1 in the middle."""
    places = [(torch.arange(n, dtype=torch.float64) + 0.5) / n - 0.5 for n in sizes]
    return (-(places[0][:, None] ** 2 + places[1] ** 2) / (2 * 0.1**2)).exp()


def bump(*sizes: int) -> Tensor:
    """From 0 in the corner to 1 in the middle."""
    waves = [(2 * math.pi * torch.arange(n, dtype=torch.float64) / n).cos() for n in sizes]
    return 0.5 - 0.25 * (waves[0][:, None] + waves[1][None])


def square(
    n: int,
    decades: float = 4.0,
    intervals: int = INTERVALS,
    batch: tuple[int, ...] = (),
    rough: bool = False,
    shape_of: Callable[..., Tensor] = bump,
    device: str = "cpu",
    aspect: float = 1.0,
) -> tuple[pc.State, pc.laws.Law, pc.Mesh]:
    """A state on n x n cells, and the law for each of them."""
    rng = torch.Generator().manual_seed(0)
    edges = torch.linspace(0, 1, n + 1, dtype=torch.float64)
    mesh = pc.Mesh(x=edges, y=edges / aspect, periodic=("x", "y"))
    t = torch.linspace(0, 1, intervals + 1, dtype=torch.float64)
    fields = {}
    for name, times in (("u", intervals + 1), ("fx", intervals), ("fy", intervals)):
        shape = (*batch, times, n, n)
        size = torch.rand(shape, generator=rng, dtype=torch.float64) if rough else shape_of(n, n)
        variance = (10 ** (decades * (size - 1))).expand(shape)
        mean = torch.randn(shape, generator=rng, dtype=torch.float64) * variance.sqrt()
        fields[name] = pc.Diagonal(mean.to(device), variance.to(device))
    law = pc.cell_budgets(mesh, t, fluxes=("fx", "fy"))
    return pc.State(**fields), law.to(device), mesh


def iterations(post: pc.Posterior) -> int:
    (stage,) = [s for s in post._solved.way.stages if isinstance(s, Iterative)]
    return stage.iterations


def assembled(state: pc.State, n: int):
    """S as a SciPy matrix, and the residual of the mean, by another route."""
    import scipy.sparse as sp

    dt, volume, size = 1 / INTERVALS, 1 / n**2, 1 / n
    ring = sp.eye(n) - sp.eye(n, k=-1) - sp.eye(n, k=n - 1)  # flux at i less flux at i - 1
    step = sp.eye(INTERVALS, INTERVALS + 1, k=1) - sp.eye(INTERVALS, INTERVALS + 1)
    one, every = sp.eye(n), sp.eye(INTERVALS)
    parts = (
        volume * sp.kron(step, sp.eye(n * n)),
        dt * size * sp.kron(every, sp.kron(-ring.T, one)),
        dt * size * sp.kron(every, sp.kron(one, -ring.T)),
    )
    matrix = sp.hstack(parts).tocsr()
    mean = np.concatenate([state[k].mean.numpy().ravel() for k in ("u", "fx", "fy")])
    variance = np.concatenate([state[k].variance.numpy().ravel() for k in ("u", "fx", "fy")])
    return matrix, (matrix @ sp.diags(variance) @ matrix.T).tocsr(), mean, variance


def scipy_seconds(state: pc.State, n: int) -> tuple[float, np.ndarray]:
    """Conjugate gradients on the assembled matrix, to the same accuracy."""
    from scipy.sparse import diags
    from scipy.sparse.linalg import cg

    matrix, system, mean, variance = assembled(state, n)
    inverse = diags(1 / system.diagonal())
    start = time.perf_counter()
    found, failed = cg(system, matrix @ mean, rtol=1e-13, maxiter=20_000, M=inverse)
    moved = mean - variance * (matrix.T @ found)
    assert not failed
    return time.perf_counter() - start, moved


def against_scipy(n: int, repeats: int) -> str:
    state, law, _ = square(n)
    ours, theirs = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        post = pc.condition(state, law)
        ours.append(time.perf_counter() - start)
        seconds, moved = scipy_seconds(state, n)
        theirs.append(seconds)
    mine = torch.cat([post[k].mean.flatten() for k in ("u", "fx", "fy")])
    assert float((mine - torch.from_numpy(moved)).abs().max()) < 1e-8
    one, other = np.median(ours), np.median(theirs)
    return f"{one / other:.2f} ({one:.2f} s, {other:.2f} s)"


def report(what: str, measured: object, asked: str, goal: str) -> None:
    print(f"| {what} | {measured} | {asked} | {goal} |", flush=True)


def counts() -> None:
    found = []
    for n in (32, 64, 128, 256):
        state, law, _ = square(n)
        found.append(iterations(pc.condition(state, law)))
    report("iterations, 32 x 32 to 256 x 256", found, "at most 120", "40")
    state, law, _ = square(64, decades=8)
    report("iterations, eight decades", iterations(pc.condition(state, law)), "260", "60")
    found = [
        iterations(pc.condition(*square(64, decades, shape_of=narrow)[:2])) for decades in (4, 8)
    ]
    report("iterations, a bump of width 0.1, four and eight decades", found, "", "")
    state, law, _ = square(64, rough=True)
    report("iterations, rough", iterations(pc.condition(state, law)), "on record", "")


def memory() -> None:
    """Beyond the inputs, in arrays of the size of the state: run it in a process of its own."""
    state, law, _ = square(256)
    size = sum(8 * state[k].mean.numel() for k in ("u", "fx", "fy"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pc.condition(state, law)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    report("256 x 256, memory / state", f"{peak * 1024 / size:.1f}", "25", "12")


def sparse_rows() -> None:
    from scipy.sparse import csr_matrix

    rng = np.random.default_rng(0)
    rows, points, each = 10_000, 100_000, 10
    columns = (np.arange(rows)[:, None] * each + rng.integers(0, 3 * each, (rows, 2 * each))) % (
        points
    )
    entries = rng.normal(size=columns.size)
    matrix = csr_matrix((entries, columns.ravel(), np.arange(rows + 1) * 2 * each), (rows, points))
    field = pc.Diagonal(rng.normal(size=points), rng.uniform(0.1, 1.0, points))
    law = pc.linear(matrix, np.zeros(rows))
    pc.condition(field, law)
    start = time.perf_counter()
    pc.condition(field, law)
    report("10,000 sparse rows, s", f"{time.perf_counter() - start:.2f}", "0.5", "0.1")


class Spectral(nn.Module):
    """One layer of a Fourier neural operator, as a yardstick."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        shape = (2, width, width, modes, modes)
        self.weights = nn.Parameter(torch.randn(shape, dtype=torch.cfloat) / width)
        self.modes, self.inner = modes, nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        m, spectrum = self.modes, torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        for rows, w in ((slice(m), self.weights[0]), (slice(-m, None), self.weights[1])):
            out[:, :, rows, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, rows, :m], w)
        return nn.functional.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.inner(x))


def beside_a_network() -> None:
    torch.manual_seed(0)
    layers = [Spectral(32, 12) for _ in range(4)]
    network = nn.Sequential(nn.Conv2d(3, 32, 1), *layers, nn.Conv2d(32, 3, 1))
    inputs = torch.randn(24, 3, 32, 32)
    state, law, _ = square(32, intervals=1, batch=(24,))
    ours, theirs = [], []
    for _ in range(9):
        start = time.perf_counter()
        pc.condition(state, law)
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        with torch.no_grad():
            network(inputs)
        theirs.append(time.perf_counter() - start)
    one, other = np.median(ours), np.median(theirs)
    text = f"{one / other:.2f} ({one * 1e3:.0f} ms, {other * 1e3:.0f} ms)"
    report("24 x 32 x 32, two times, law / forward of an FNO", text, "3", "1")


def backward() -> None:
    state, law, _ = square(64)
    means = [state[k].mean.clone().requires_grad_() for k in ("u", "fx", "fy")]
    spreads = [state[k].variance.clone().requires_grad_() for k in ("u", "fx", "fy")]
    fields = zip(("u", "fx", "fy"), means, spreads, strict=True)
    prior = pc.State(**{k: pc.Diagonal(m, v) for k, m, v in fields})
    ratios = []
    for _ in range(5):
        start = time.perf_counter()
        post = pc.condition(prior, law)
        between = time.perf_counter()
        post["u"].mean.square().sum().backward()
        ratios.append((time.perf_counter() - between) / (between - start))
    report("64 x 64, backward / update", f"{np.median(ratios):.2f}", "3", "")


def by_the_factor() -> None:
    """Long cells with rough variances: conjugate gradients alone took 29 s for the mean."""
    state, law, _ = square(128, decades=1, intervals=1, rough=True, aspect=30)
    start = time.perf_counter()
    post = pc.condition(state, law)
    mean = time.perf_counter() - start
    assert post["u"].variance_estimate is None
    both = time.perf_counter() - start
    report("128 x 128, aspect 30, one decade, the mean, s", f"{mean:.2f}", "2", "0.7")
    report("the same, with the variance of every point", f"{both:.2f}", "", "")


def variances() -> None:
    """Against solves for single points, each of which gives the variance of one exactly."""
    state, law, _ = square(64)
    start = time.perf_counter()
    post = pc.condition(state, law)
    mean = time.perf_counter() - start
    start = time.perf_counter()
    found = {k: post[k].variance for k in ("u", "fx", "fy")}
    seconds = time.perf_counter() - start
    rng = torch.Generator().manual_seed(1)
    for name, variance in found.items():
        errors = []
        for at in torch.randint(variance.numel(), (40,), generator=rng).tolist():
            unit = torch.zeros(variance.numel(), dtype=torch.float64)
            unit[at] = 1.0
            exact = post[name].covariance_times(unit.reshape(variance.shape)).flatten()[at]
            errors.append(float(variance.flatten()[at] / exact) - 1)
        rms = math.sqrt(sum(e**2 for e in errors) / len(errors))
        report(
            f"rms error of the estimated variance of {name}, 64 x 64", f"{rms:.2%}", "5 %", "3 %"
        )
        said = post[name].variance_estimate
        assert said is not None
        report("what the posterior says of it", f"{said.relative_error:.2%}", "", "")
    report(f"{said.solves} solves / the mean", f"{seconds / mean:.1f} ({seconds:.1f} s)", "", "")


def on_gpu() -> None:
    """Ten million rows."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| | measured | asked | goal |\n|---|---|---|---|")
    for n in (256, 800):
        state, law, _ = square(n, device="cuda")
        pc.condition(state, law)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        post = pc.condition(state, law)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        most = torch.cuda.max_memory_allocated() / 2**30
        rows = INTERVALS * n * n
        worst = float((law.residual(post).abs() / law.magnitude(post)).max())
        text = f"{seconds:.2f} s, {iterations(post)} iterations, {most:.1f} GiB, off {worst:.0e}"
        report(f"{rows:,} rows", text, "runs", "5 s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--memory", action="store_true")
    given = parser.parse_args()
    if given.gpu:
        on_gpu()
    elif given.memory:
        memory()
    else:
        on_cpu()


def on_cpu() -> None:
    print(f"load {os.getloadavg()[0]:.1f}\n\n| | measured | at least | goal |\n|---|---|---|---|")
    report("64 x 64, mean / SciPy", against_scipy(64, 5), "2", "0.7")
    counts()
    report("256 x 256, mean / SciPy", against_scipy(256, 1), "0.6", "0.3")
    sparse_rows()
    beside_a_network()
    backward()
    by_the_factor()
    variances()


if __name__ == "__main__":
    main()
