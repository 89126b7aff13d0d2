"""The law of every cell, added up over square blocks of cells."""

import torch
from torch import Tensor

import probconserv as pc


def of_blocks(law: pc.laws.Law, cells: int, side: int) -> pc.laws.Law:
    """side x side blocks: what each gains is what flows in through the faces around it."""
    at = torch.arange(cells) * side // cells
    blocks = (side * at[:, None] + at).flatten()

    def gains(fields: dict[str, Tensor]) -> Tensor:
        rows = law.apply(fields).flatten()
        return rows.new_zeros(side**2).index_add(0, blocks, rows)

    def none(times: int) -> Tensor:
        return torch.zeros(times, cells, cells, dtype=torch.float64)

    matrices = torch.func.jacrev(gains)({"u": none(2), "fx": none(1), "fy": none(1)})
    return pc.linear(matrices, torch.zeros(side**2, dtype=torch.float64))
