"""Rows that reach from one time to the next: S is block tridiagonal along time.

One block holds the rows of one time, or of the interval that starts with it. All is direct: the
variance and the evidence are exact. Worth it where a time has few rows, as in one dimension.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._checks import concrete
from ._covariances import Independent
from ._factor import LOG_2PI, Factor
from ._filters import smoothed
from ._laws import Fields, Rows
from ._maps import Select
from ._once import once
from ._stages import Together, minus, summed

WIDEST = 256  # rows of one time
LARGEST = 20_000_000  # numbers in the blocks of S
AT_ONCE = 1 << 24  # numbers that are worked on at a time
ROUNDED = 1e-12  # share of a variance that is no more than rounding


class Tridiagonal(Together):
    """Independent points; the rows of each law have time as their first axis."""

    def __init__(
        self, rows: tuple[Rows, ...], prior: Independent, root: Independent, lead: int
    ) -> None:
        self._bundle(rows, root.shapes, lead)
        self.prior = prior
        self.slots = max(tail[0] for tail in self.tails)
        diagonal, self.lower = self._blocks(prior)
        squares = [r.entrywise(2).apply(root.variance).detach() for r in self.rows]
        before = self._slotted(self.flat(squares) + self.noise.detach())
        noise = self._slotted(self.noise)
        factors: list[Factor] = []
        across: list[Tensor] = []
        for s in range(self.slots):
            own = noise[..., s, :]
            matrix = self._slot(diagonal, s) + own.diag_embed()
            if s:
                last = factors[-1].whiten(self._slot(self.lower, s - 1))  # (*lead, next, m)
                matrix = matrix - last @ last.mT
                across.append(last)
            factors.append(Factor(matrix, before[..., s, :], own))
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
        """The blocks of G Sigma G^T on the diagonal and below: rows of one time in three do not
        see each other, so that a few products tell all."""
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
        return self._unslotted(torch.stack([self._each(f.in_rows, w) for f, w in pairs], -2))

    def _forward(self, r: Tensor) -> Tensor:  # (*more, *lead, slots, m)
        slotted, found = self._slotted(r), []
        carry: Tensor | None = None
        for s, factor in enumerate(self.factors):
            here = slotted[..., s, :]
            here = here if carry is None else here - carry
            white = self._each(factor.whiten, here)
            if s < self.slots - 1:
                carry = self._each(lambda y, s=s: y @ self.across[s].mT, white)
            found.append(white)
        return torch.stack(found, -2)

    def _each(self, work: object, r: Tensor) -> Tensor:
        """Work on (*lead, N, m) done on (*more, *lead, m)."""
        lead = self.noise.shape[:-1]
        more = r.shape[: r.ndim - 1 - self.lead]
        flat = r.expand(*more, *lead, -1).reshape(math.prod(more), *lead, r.shape[-1])
        found: Tensor = work(flat.movedim(0, -2)).movedim(-2, 0)  # type: ignore[operator]
        return found.reshape(*more, *found.shape[1:])

    def multiplier(self, r: Tensor) -> Tensor:
        """lambda = S^-1 r."""
        white = self._forward(r)
        found: list[Tensor] = []
        for s in reversed(range(self.slots)):
            here = white[..., s, :]
            if found:
                here = here - self._each(lambda y, s=s: y @ self.across[s], found[-1])
            found.append(self._each(self.factors[s].back, here))
        return self._unslotted(torch.stack(found[::-1], -2))

    def shift(self, u: Fields, r: Tensor) -> Fields:
        return minus(u, self.prior.times(self.adjoint(self.multiplier(r))))

    def log_norm(self, lead: int) -> Tensor:
        total = torch.stack([f.log_det for f in self.factors]).sum(0)
        return summed(total + LOG_2PI * (~self.dropped).double().sum(-1), lead)

    @once
    def variance(self) -> Fields:
        read = [self._coefficients(number) for number in range(len(self.prior.variance))]
        return self._smoothed(read) or self._differences(read)

    def _smoothed(self, read: list[tuple[Tensor, Tensor] | None]) -> Fields | None:
        """From what past and future say; None where rows decide some points, and leave nothing."""
        noise, fields = self._slotted(self.noise), self.prior.variance
        carried = [i for i, c in enumerate(read) if c is not None and _any(c[1])]
        alone = [i for i, c in enumerate(read) if c is not None and i not in carried]
        if not carried or not concrete(*fields):
            return None
        lead = noise.shape[:-2]

        def side_by_side(kind: list[int], side: int, count: int) -> Tensor:
            empty = noise.new_zeros(*lead, count, self._width, 0)
            parts = [
                _until(c[side], count).expand(*lead, -1, -1, -1) for i in kind if (c := read[i])
            ]
            return torch.cat([empty, *parts], -1)

        def variances(kind: list[int], count: int) -> Tensor:
            flat = [
                _until(fields[i].reshape(*lead, fields[i].shape[self.lead], 1, -1), count)
                for i in kind
            ]
            return torch.cat([noise.new_zeros(*lead, count, 1, 0), *flat], -1)[..., 0, :]

        n = self.slots
        found = smoothed(
            noise,
            side_by_side(carried, 0, n + 1),
            side_by_side(carried, 1, n + 1),
            variances(carried, n + 1),
            side_by_side(alone, 0, n),
            variances(alone, n),
        )
        if found is None:
            return None
        left = list(fields)
        for kind, together in zip((carried, alone), found, strict=True):
            sizes = [math.prod(fields[i].shape[self.lead + 1 :]) for i in kind]
            for i, part in zip(kind, together.split(sizes, -1), strict=True):
                left[i] = part[..., : fields[i].shape[self.lead], :].reshape(fields[i].shape)
        return tuple(left)

    def _differences(self, read: list[tuple[Tensor, Tensor] | None]) -> Fields:
        """What is left, as a share of 1: few digits where little is left."""
        here, beside = self._inverse()
        found = []
        for d, both in zip(self.prior.variance, read, strict=True):
            if both is None:
                found.append(d)
                continue
            own, old = both
            times = own.shape[-3]
            inner = _first(here, times, 0) @ own + 2 * _first(beside, times, 0) @ old
            taken = (own * inner).sum(-2) + (old * (_first(here, times, 1) @ old)).sum(-2)
            share = 1 - d * taken.reshape(d.shape)
            found.append(d * torch.where(share > ROUNDED, share, 0.0))
        return tuple(found)

    def _inverse(self) -> tuple[Tensor, Tensor]:  # (*lead, slots, m, m) each
        """The blocks of S^-1 on the diagonal, and those between a time and the one before."""
        here: list[Tensor] = []
        beside: list[Tensor] = []
        eye = torch.eye(self._width, dtype=torch.float64, device=self.noise.device)
        for s in reversed(range(self.slots)):
            own = self.factors[s].solve(eye.expand(*self.noise.shape[:-1], -1, -1))
            if here:
                x = self.factors[s].solve(self._slot(self.lower, s))  # (*lead, next, m)
                beside.append(-here[-1] @ x)
                own = own - x.mT @ beside[-1]
            here.append(own)
        beside.append(torch.zeros_like(here[0]))
        return torch.stack(here[::-1], -3), torch.stack(beside[::-1], -3)

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


def _any(x: Tensor) -> bool:
    return not concrete(x) or bool(x.any())


def _until(x: Tensor, count: int) -> Tensor:
    """Of (*lead, times, a, b) the first `count` times, 0 for those that are not there."""
    return pad(x, (0, 0, 0, 0, 0, max(count - x.shape[-3], 0))).narrow(-3, 0, count)


def _first(blocks: Tensor, times: int, later: int) -> Tensor:
    """Blocks (*lead, slots, m, m) of `times` times, `later` by one or not; 0 beyond the ends."""
    more = max(times - later - blocks.shape[-3], 0)
    return pad(blocks, (0, 0, 0, 0, later, more)).narrow(-3, 0, times)


def chained(laws: Sequence[Rows], shapes: Sequence[Sequence[int]], lead: int) -> bool:
    """Whether the rows of each law have time as their first axis, and not too many of them."""
    laws = [rows for rows in laws if not isinstance(rows.map, Select)]
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
