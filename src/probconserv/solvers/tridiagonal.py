"""Rows that reach from one time to the next: S is block tridiagonal along time.

One block holds the rows of one time, or of the interval that starts with it. All is direct: the
variance and the evidence are exact. Worth it where a time has few rows, as in one dimension.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..fields.covariances import Fields, Independent
from ..laws.law import Rows
from ..support.checks import any_of
from ..support.tolerances import LEAKED
from ..support.tree import once
from .factor import LOG_2PI, Factor
from .filters import smoothed
from .stages import Together, minus, summed

WIDEST = 256  # rows of one time
LARGEST = 20_000_000  # numbers in the blocks of S
AT_ONCE = 1 << 21  # numbers that are worked on at a time


class Tridiagonal(Together):
    """Independent points; the rows of each law have time as their first axis."""

    def __init__(
        self, rows: tuple[Rows, ...], prior: Independent, root: Independent, lead: int
    ) -> None:
        self._bundle(_in_time(rows, root.shapes, lead), root.shapes, lead)
        self.prior = prior
        self.slots = max(tail[0] for tail in self.tails)
        diagonal, lower = self._blocks(prior)
        squares = [r.entrywise(2).apply(root.variance).detach() for r in self.rows]
        self.before = self._slotted(self.flat(squares) + self.noise.detach())
        noise = self._slotted(self.noise)
        factors: list[Factor] = []
        across: list[Tensor] = []
        for s in range(self.slots):
            own = noise[..., s, :]
            matrix = self._slot(diagonal, s) + own.diag_embed()
            if s:
                last = factors[-1].whiten(self._slot(lower, s - 1))  # (*lead, next, m)
                matrix = matrix - last @ last.mT
                across.append(last)
            factors.append(Factor(matrix, self.before[..., s, :], own))
        self.factors, self.across = tuple(factors), tuple(across)
        keep = torch.stack([f.keep for f in self.factors], -2)
        self.dropped = ~self._unslotted(keep)
        self.seen = self._unslotted(torch.stack([f.pivots for f in self.factors], -2))

    def _slot(self, blocks: Tensor, s: int) -> Tensor:
        return blocks.select(blocks.ndim - 3, s)

    def _slotted(self, v: Tensor) -> Tensor:  # (*more, *lead, K) -> (*more, *lead, slots, m)
        """Rows side by side for each time; 0 where a law has none."""
        parts = []
        for part, tail in zip(self.parts(v), self.tails, strict=True):
            flat = part.flatten(1 - len(tail)) if len(tail) > 1 else part[..., None]
            parts.append(pad(flat, (0, 0, 0, self.slots - tail[0])))
        return torch.cat(parts, -1)

    def _unslotted(self, v: Tensor) -> Tensor:
        widths = [math.prod(tail[1:]) for tail in self.tails]
        pairs = zip(v.split(widths, -1), self.tails, strict=True)
        return torch.cat([part[..., : tail[0], :].flatten(-2) for part, tail in pairs], -1)

    @property
    def _width(self) -> int:
        return sum(math.prod(tail[1:]) for tail in self.tails)

    def _units(self, some: Tensor, colours: int) -> Tensor:  # (colours, P, 1, ..., 1, K)
        """Rows `some` of every time of one colour, one after the other."""
        units = torch.zeros(
            colours, len(some), *[1] * self.lead, self.slots, self._width, dtype=torch.float64
        )
        for colour in range(colours):
            for i, p in enumerate(some.tolist()):
                units[colour, i, ..., colour::colours, p] = 1.0
        return self._unslotted(units.to(self.noise.device))

    def _blocks(self, prior: Independent) -> tuple[Tensor, Tensor]:  # (*lead, slots, m, m) each
        """The blocks of G Sigma G^T on the diagonal and below.

        Rows of every third time do not see each other, so that a few products tell all.
        """
        size, diagonal, lower = math.prod(self.noise.shape), [], []
        for some in torch.arange(self._width).split(max(1, AT_ONCE // (3 * max(size, 1)))):
            cross = prior.times(self.adjoint(self._units(some, 3)))
            seen = self._slotted(self.flat([r.apply(cross) for r in self.rows]))
            seen = seen.expand(*seen.shape[:2], *self.noise.shape[:-1], -1, -1)
            slots = torch.arange(self.slots, device=seen.device)
            diagonal.append(self._picked(seen, slots, slots))
            lower.append(self._picked(seen, slots[:-1], slots[1:]))
        return torch.cat(diagonal, -1), torch.cat(lower, -1)

    def _picked(self, seen: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
        """Of products (3, P, *lead, slots, m) the blocks (*lead, slots, m, P)."""
        found = seen.movedim(-2, 1)[columns % 3, rows]  # (slots, P, *lead, m)
        return found.movedim((0, 1), (-3, -1))

    def whiten(self, r: Tensor) -> Tensor:
        white = self._forward(r)
        pairs = zip(self.factors, white.unbind(-2), strict=True)
        return self._unslotted(torch.stack([self.each(f.in_rows, w) for f, w in pairs], -2))

    def _forward(self, r: Tensor) -> Tensor:  # (*more, *lead, slots, m)
        slotted, found = self._slotted(r), []
        carry: Tensor | None = None
        for s, factor in enumerate(self.factors):
            here = slotted[..., s, :]
            here = here if carry is None else here - carry
            white = self.each(factor.whiten, here)
            if s < self.slots - 1:
                carry = self.each(partial(torch.matmul, other=self.across[s].mT), white)
            found.append(white)
        return torch.stack(found, -2)

    def multiplier(self, r: Tensor) -> Tensor:
        white = self._forward(r)
        found: list[Tensor] = []
        for s in reversed(range(self.slots)):
            here = white[..., s, :]
            if found:
                here = here - self.each(partial(torch.matmul, other=self.across[s]), found[-1])
            found.append(self.each(self.factors[s].back, here))
        return self._unslotted(torch.stack(found[::-1], -2))

    def shift(self, u: Fields, r: Tensor) -> Fields:
        return minus(u, self.prior.times(self.adjoint(self.multiplier(r))))

    def log_norm(self, lead: int) -> Tensor:
        total = torch.stack([f.log_det for f in self.factors]).sum(0)
        return summed(total + LOG_2PI * (~self.dropped).double().sum(-1), lead)

    @once
    def variance(self) -> Fields:
        read = [self._coefficients(number) for number in range(len(self.prior.variance))]
        fields, noise = self.prior.variance, self._slotted(self.noise)
        carried = [i for i, c in enumerate(read) if c is not None and any_of(c[1])]
        alone = [i for i, c in enumerate(read) if c is not None and i not in carried]
        lead, n = noise.shape[:-2], self.slots

        def side_by_side(kind: list[int], side: int, count: int) -> Tensor:
            empty = noise.new_zeros(*lead, count, self._width, 0)
            sides = [c[side] for i in kind if (c := read[i]) is not None]
            parts = [_until(x, count).expand(*lead, -1, -1, -1) for x in sides]
            return torch.cat([empty, *parts], -1)

        def variances(kind: list[int], count: int) -> Tensor:
            flat = [fields[i].reshape(*lead, fields[i].shape[self.lead], 1, -1) for i in kind]
            empty = noise.new_zeros(*lead, count, 1, 0)
            return torch.cat([empty, *(_until(x, count) for x in flat)], -1)[..., 0, :]

        own, old = (side_by_side(carried, side, n + 1) for side in (0, 1))
        both = smoothed(
            noise,
            self.before,
            own,
            old,
            variances(carried, n + 1),
            side_by_side(alone, 0, n),
            variances(alone, n),
        )
        left = list(fields)
        for kind, found in zip((carried, alone), both, strict=True):
            sizes = [math.prod(fields[i].shape[self.lead + 1 :]) for i in kind]
            for i, part in zip(kind, found.split(sizes, -1), strict=True):
                left[i] = self._put(fields[i], part)
        if not any_of(self.exact):
            return tuple(left)
        pairs = zip(left, fields, strict=True)
        return tuple(torch.where(v <= LEAKED * d, 0.0, v) for v, d in pairs)

    def _put(self, field: Tensor, part: Tensor) -> Tensor:
        """The variance of a field: at the times that rows read what is left, else as before."""
        times, read = field.shape[self.lead], part.shape[-2]
        if read >= times:
            return part[..., :times, :].reshape(field.shape)
        flat = field.reshape(*part.shape[:-2], times, -1)
        return torch.cat([part, flat[..., read:, :]], -2).reshape(field.shape)

    def _coefficients(self, number: int) -> tuple[Tensor, Tensor] | None:
        """Of the points of a field in rows of their own time, and of the time before.

        (*lead or 1s, times, m, P) each; None if no row reads the field.
        """
        units = self.adjoint(self._units(torch.arange(self._width), 2))[number]
        if units is None:
            return None
        flat = units.flatten(self.lead + 3) if units.ndim > self.lead + 3 else units[..., None]
        flat = flat.movedim(2 + self.lead, 1)  # (2, times, m, *lead, P)
        index = torch.arange(flat.shape[1], device=flat.device)
        own, old = (flat[(index + o) % 2, index].movedim((0, 1), (-3, -2)) for o in (0, 1))
        return own, old


def _until(x: Tensor, count: int) -> Tensor:
    """Of (*lead, times, a, b) the first `count` times, 0 for those that are not there."""
    return pad(x, (0, 0, 0, 0, 0, max(count - x.shape[-3], 0))).narrow(-3, 0, count)


def _in_time(laws: Sequence[Rows], shapes: Sequence[Sequence[int]], lead: int) -> tuple[Rows, ...]:
    """The laws, with the rows of one time among rows of all times."""
    return tuple(rows.over(shapes, lead + 1) for rows in laws)


def chained(laws: Sequence[Rows], shapes: Sequence[Sequence[int]], lead: int) -> bool:
    """Whether the rows of each law have time as their first axis, and not too many of them."""
    laws = _in_time(laws, shapes, lead)
    tails = [rows.row_shape(shapes)[lead:] for rows in laws]
    if not laws or not all(tails):
        return False
    slots, width = max(t[0] for t in tails), sum(math.prod(t[1:]) for t in tails)
    parts = math.prod(laws[0].row_shape(shapes)[:lead])
    small = width <= WIDEST and parts * slots * width**2 <= LARGEST
    return small and all(_along_time(rows, shapes, lead, slots) for rows in laws)


def _along_time(rows: Rows, shapes: Sequence[Sequence[int]], lead: int, slots: int) -> bool:
    count = rows.row_shape(shapes)[lead]
    read = [(m, shape) for m, shape in zip(rows.maps, shapes, strict=True) if m is not None]
    apart = all(len(shape) - m.dims > lead and shape[lead] == count for m, shape in read)
    pairs = all(m.row_names[:1] == ("interval",) for m, _ in read)
    return (apart or pairs) and count in (slots, slots - 1)
