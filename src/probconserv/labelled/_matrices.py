"""Small matrices, one for each index: those of the rows of all laws, (I, K, K)."""

import numpy as np

from ._terms import Array

NONE_LEFT = 1e-13  # share of the largest variance below which rows are decided by others


def dense(square: Array) -> Array:  # (I, K) or (I, K, K) -> (I, K, K)
    return square if square.ndim == 3 else square[:, :, None] * np.eye(square.shape[-1])


def times(matrix: Array, vector: Array) -> Array:
    return np.matmul(matrix, vector[..., None])[..., 0]


def inverses(matrix: Array, noise: Array | None = None) -> tuple[Array, Array]:
    """S^-1, and V^-1 (V + W)^-1 with V V = S and W = diag(noise).

    Directions without variance, such as those of a law that follows from others, are left out.
    """
    size = np.sqrt(np.einsum("ikk->ik", matrix))
    size = np.where(size > 0, size, 1.0)
    units = size[:, :, None] * size[:, None, :]  # laws may be of kilograms and of joules
    scaled = matrix / units
    inverse = _spectral(scaled, -1) / units
    if noise is None or not noise.any():
        return inverse, inverse
    both = _spectral(scaled, 0.5) + dense(noise / size)
    return inverse, _spectral(scaled, -0.5) @ _spectral(both, -1) / units


def _spectral(matrix: Array, power: float) -> Array:
    """A power of a symmetric matrix, on the directions in which it is not 0."""
    values, vectors = np.linalg.eigh(matrix)
    kept = values > NONE_LEFT * values.shape[-1] * values[:, -1:]
    powers = np.where(kept, np.where(kept, values, 1.0) ** power, 0.0)
    return (vectors * powers[:, None]) @ vectors.swapaxes(-1, -2)
