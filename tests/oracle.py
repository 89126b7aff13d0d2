"""The slow and independent way: dense matrices in NumPy, information form and KKT conditions."""

import numpy as np
import torch

import probconserv as pc


def normal(*shape, rng):
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def uniform(*shape, rng, low=0.2, high=1.5):
    return low + (high - low) * torch.rand(shape, generator=rng, dtype=torch.float64)


def grid(points, rng):
    """Non-uniform, increasing."""
    return uniform(points, rng=rng).cumsum(0)


def basis(shape):
    size = int(np.prod(shape))
    return torch.eye(size, dtype=torch.float64).reshape(size, *shape)


def matrix(law, shape):
    """G as rows over the flattened field, with value and noise variance, by applying to a basis."""
    columns = law.apply(basis(shape))
    like = law.apply(torch.zeros(shape, dtype=torch.float64))
    spread = [t.double().expand(like.shape).flatten() for t in (law.value, law.noise_variance)]
    return (columns.reshape(columns.shape[0], -1).T.numpy(), *(t.numpy() for t in spread))


def stacked(laws, shape):
    parts = zip(*(matrix(law, shape) for law in laws), strict=True)
    return [np.concatenate(part) for part in parts]


def covariance(field):
    """Over all axes of a field without batch axes."""
    size = field.mean.numel()
    return field.covariance_times(basis(field.shape)).reshape(size, size).numpy()


def posterior(mean, sigma, laws, shape):
    """Mean and covariance given the laws: precision for the noisy rows, KKT for the exact ones."""
    G, b, r = stacked(laws, shape)
    noisy = r > 0
    precision = np.linalg.inv(sigma) + G[noisy].T @ (G[noisy] / r[noisy, None])
    pull = np.linalg.solve(sigma, mean) + G[noisy].T @ (b[noisy] / r[noisy])
    exact, size = G[~noisy], len(mean)
    if not len(exact):
        return np.linalg.solve(precision, pull), np.linalg.inv(precision)
    zero = np.zeros((len(exact), len(exact)))
    kkt = np.block([[precision, exact.T], [exact, zero]])
    solved = np.linalg.solve(kkt, np.concatenate([pull, b[~noisy]]))[:size]
    null = np.linalg.svd(exact)[2][np.linalg.matrix_rank(exact) :].T
    return solved, null @ np.linalg.solve(null.T @ precision @ null, null.T)


def field_of(kind, shape, rng):
    """A field of full rank of each kind, without batch axes.

    Twice as many directions as points: with as many, to invert Sigma can lose 8 digits.
    """
    mean, variance = normal(*shape, rng=rng), uniform(*shape, rng=rng)
    size = int(np.prod(shape))
    if kind == "diagonal":
        return pc.Diagonal(mean, variance)
    if kind.startswith("low rank"):
        rank = {"few": 2, "many": 2 * size, "bare": 2 * size}[kind.split()[2]]
        variance = 0.0 if "bare" in kind else variance
        return pc.LowRank(mean, normal(rank, *shape, rng=rng), variance, int(kind[-1]))
    event = shape[-int(kind[-1]) :]
    lead = () if "shared" in kind else shape[: len(shape) - len(event)]
    root = normal(*lead, int(np.prod(event)), 2 * size, rng=rng)
    return pc.Dense(mean, (root @ root.mT).reshape(*lead, *event, *event), len(event))


KINDS = [
    "diagonal",
    "low rank few 1",
    "low rank few 2",
    "low rank many 1",
    "low rank many 2",
    "low rank bare 1",
    "low rank bare 2",
    "dense 1",
    "dense 2",
    "dense shared 1",
]


def laws_of(name, shape, rng):
    """A list of laws with full row rank, by name, on a (T, M) field."""
    times, points = shape
    x = grid(points, rng)
    b = normal(times, rng=rng)
    whole = pc.integral(x, b)
    smooth = pc.smoothness(x, uniform(*shape, rng=rng), rho=0.8)
    ends = pc.boundary(left=normal(times, rng=rng), right=0.3)
    later = pc.integral(x, b[1:], rule="left", times=slice(1, None))
    return {
        "integral": [whole],
        "noisy integral": [pc.integral(x, b, noise=uniform(times, rng=rng))],
        "laws at some times": [
            pc.integral(x, b[:2], rule="simpson", times=[2, 0]),
            pc.smoothness(x, uniform(*shape, rng=rng), rho=0.8, times=[1, 0]),
        ],
        "smoothness": [smooth],
        "smoothness and integral": [whole, smooth],
        "all of the paper": [whole, smooth, ends],
        "initial and later integral": [later, pc.initial(normal(points, rng=rng))],
        "periodic and integral": [pc.periodic(), whole],
        "noisy ends": [pc.boundary(left=1.0, right=2.0, noise=0.4)],
        "rows": [pc.linear(normal(3, points, rng=rng), normal(times, 3, rng=rng))],
        "sparse rows and integral": [
            pc.linear(normal(2, points, rng=rng).to_sparse(), normal(2, rng=rng), noise=0.2),
            whole,
        ],
    }[name]


LAWS = [
    "integral",
    "noisy integral",
    "laws at some times",
    "smoothness",
    "smoothness and integral",
    "all of the paper",
    "initial and later integral",
    "periodic and integral",
    "noisy ends",
    "rows",
    "sparse rows and integral",
]


def exact_residual(law, u):
    """|G u - b| of the exact rows relative to the terms |G| |u| + |b|: the promise is 1e-12."""
    u = u.double()
    miss = law.residual(u).abs() * (law.noise == 0)
    size = law.magnitude(u) + law.value.abs()
    return float((miss / size.clamp_min(1e-300)).max())


def kalman(mean, sigma, G, b, noise=0.0):
    """Mean and covariance given G u = b up to noise, dense; laws that follow from others are fine.

    noise: standard deviation, one or one per row.
    """
    S = G @ sigma @ G.T + np.diag(np.broadcast_to(noise, len(G)) ** 2)
    gain = sigma @ G.T @ np.linalg.pinv(S, rcond=1e-11, hermitian=True)
    return mean + gain @ (b - G @ mean), sigma - gain @ G @ sigma
