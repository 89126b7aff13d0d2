"""How far b may lie from what a prior expects, if the prior is right.

A diagnosis raises a false alarm in about a share `LEVEL` of cases, over all of its rows. Rows by
themselves take the quantile of the normal distribution at `LEVEL` divided by their number
(Bonferroni). N members estimate the variance that they are judged by: theirs is the quantile of
Student's t with N - 1 degrees of freedom. Rows of one part are judged jointly as well, by the
quantiles of chi squared or of Hotelling's T squared; each of the two tests has half of the level.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

LEVEL = 0.005
FULL = (
    5.0  # standard deviations if all points err together; of networks, 1 right b in 160 is beyond
)


def row_limit(rows: int, members: int | None, estimated: Any, level: float) -> Any:
    """In standard deviations, for each row; of arrays or tensors.

    estimated: the share of a row's variance that members estimate. The rest is known. The squares
    of the two quantiles, weighed by these shares, keep the level wherever it was simulated.
    """
    from scipy.special import ndtri, stdtrit  # a tenth of a second, so not for everybody

    tail = level / max(2 * rows, 1)
    normal = float(ndtri(tail) ** 2)
    student = normal if members is None else float(stdtrit(members - 1, tail) ** 2)
    return (normal + (student - normal) * estimated) ** 0.5


def joint_limit(rank: "Tensor", members: int | None, level: float) -> "Tensor":
    """Of the Mahalanobis square of each part, by the rank of its rows.

    Infinite where the rows are too many for the members.
    """
    from scipy.special import chdtri, fdtri

    k, tail = rank.numpy(force=True), level / max(rank.numel(), 1)
    if members is None:
        limit = chdtri(np.maximum(k, 1), tail)
    else:
        left = np.maximum(members - k, 1)
        limit = k * (members - 1) / left * fdtri(np.maximum(k, 1), left, 1 - tail)
        limit = np.where(k < members - 1, limit, np.inf)
    return rank.new_tensor(np.where(k > 0, limit, np.inf), dtype=rank.double().dtype)
