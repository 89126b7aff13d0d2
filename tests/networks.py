"""Random networks of flows that balance at every node, some of which nobody measured."""

import numpy as np
import torch


def network(rng, unmeasured=0.3):
    """The incidence matrix, what was measured, and which streams were not.

    The sum of all rows is 0, as in every closed network: one balance follows from the others.
    """
    nodes = int(rng.integers(5, 31))
    tail = np.concatenate([np.arange(nodes), rng.integers(0, nodes, nodes)])
    head = np.concatenate([rng.permutation(nodes), rng.integers(0, nodes, nodes)])
    some = tail != head
    tail, head = tail[some], head[some]
    count = len(tail)
    matrix = np.zeros((nodes, count))
    matrix[tail, np.arange(count)] -= 1
    matrix[head, np.arange(count)] += 1
    truth = rng.uniform(0, 20, count)
    truth -= np.linalg.pinv(matrix) @ (matrix @ truth)
    measured = np.round(truth + rng.normal(0, 0.5, count), 1)
    missing = rng.random(count) < unmeasured
    return matrix, np.where(missing, 0.0, measured), missing


def given(matrix, mean, missing, variance=0.25, wide=np.inf):
    """The same as a field's mean and variance, and the coefficients of a law."""
    spread = np.where(missing, wide, variance)
    return torch.tensor(mean), torch.tensor(spread), torch.tensor(matrix)
