"""Every check of an argument, and its message; those of plain values stand in `values.py`."""

import functools
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import InputError
from .shards import count_of, ends_of, is_sharded, replicated
from .tolerances import EPS
from .values import between as between
from .values import choice as choice
from .values import event_dims as event_dims
from .values import index as index
from .values import is_whole as is_whole
from .values import name as name
from .values import path as path
from .values import samples as samples
from .values import shape as shape
from .values import span as span
from .values import unravelled as unravelled
from .values import whole as whole

ArrayLike: TypeAlias = Tensor | NDArray[Any] | np.generic | Sequence[Any] | float
LOOKS = ContextVar("looks", default=True)
LARGEST = sys.float_info.max
AT_POINTS = ("mean", "variance", "samples", "factor", "u", "field", "draws", "truth", "volumes")
FILL = "Leave those points out, or fill them and leave them out with `where`."
WIDEN = "Convert one of them: only what loses no digit is converted here."


def concrete(*tensors: Tensor) -> bool:
    """Whether values can be looked at.

    Not while compiling, inside `torch.func` transforms, nor inside `unlooked`.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing() or not LOOKS.get():
        return False
    return not any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors))


def untraced(*tensors: Tensor) -> bool:
    """Whether what is done is done now: not compiled, traced, nor inside `torch.func`."""
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return False
    return not any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors))


@contextmanager
def unlooked() -> Iterator[None]:
    """Inside, nothing looks at values, as in compiled code: a GPU is not waited for."""
    before = LOOKS.set(False)
    try:
        yield
    finally:
        LOOKS.reset(before)


def in_numpy(*tensors: Tensor) -> bool:
    """Whether NumPy can read the memory of the tensors: on a CPU, and without gradients.

    Inside `torch.func` transforms it cannot, also where a tensor comes from outside.
    """
    if not concrete(*tensors) or torch._C._functorch.maybe_current_level() is not None:
        return False
    for t in tensors:
        if not t.is_cpu or t.requires_grad or t.dtype == torch.bfloat16 or t.is_neg():
            return False
    return True


def numbers(*scalars: Tensor) -> list[float]:
    """Tensors without axes as numbers; a GPU is waited for once."""
    if scalars[0].is_cuda:
        return torch.stack(scalars).tolist()
    return [*map(Tensor.item, scalars)]


def ends(name: str, x: Tensor) -> tuple[float, float]:
    """The least and the largest number, of shards those of all processes."""
    if is_sharded(x):
        return ends_of(name, x)
    low, high = numbers(*x.aminmax())
    return low, high


def any_of(x: Tensor) -> bool:
    """Whether some entry is true; yes, where values cannot be looked at."""
    return not concrete(x) or (count(x) > 0 if is_sharded(x) else bool(x.any()))


def count(x: Tensor) -> int:
    """How many entries are true, of shards on all processes."""
    return count_of(x) if is_sharded(x) else int(x.sum())


def tensor(name: str, x: ArrayLike, like: Tensor | None = None, of: str = "") -> Tensor:
    """`x` as a finite floating-point tensor with the dtype and device of `like`, named `of`.

    Numbers, NumPy arrays and what loses no digit are converted; the rest must have them.
    """
    t = as_tensor(name, x, like, of)
    finite(name, t)
    return t


def as_tensor(name: str, x: ArrayLike, like: Tensor | None = None, of: str = "") -> Tensor:
    given = isinstance(x, Tensor)
    if not given and isinstance(x, bool | int | float):
        try:
            number = torch.tensor(float(x), dtype=torch.float64)
        except OverflowError:
            raise InputError(f"`{name}` must be a number that float64 holds.") from None
        return number if like is None else number.to(like)
    t = raw(name, x)
    if t.layout != torch.strided:
        raise InputError(f"`{name}` must be dense, got a sparse tensor. Use .to_dense().")
    if not t.is_floating_point():
        if t.is_complex() or t.dtype == torch.bool:
            raise InputError(f"`{name}` must hold real numbers, got {t.dtype}.")
        t = t.double()
    elif t.dtype.itemsize == 1:
        raise InputError(f"`{name}` is {t.dtype}, which torch only keeps. Convert it to float32.")
    if like is None:
        return t
    if not given:
        t = t.to(like.device)
    if t.ndim == 0 or torch.promote_types(t.dtype, like.dtype) == like.dtype:
        t = t.to(like.dtype)
    same_kind(name, t, f"`{of}`", like)
    return t


def raw(name: str, x: ArrayLike) -> Tensor:
    """`x` as a tensor of whatever it holds: numbers, whole numbers or booleans."""
    if isinstance(x, Tensor):
        return x
    if _is_masked(x):
        raise InputError(
            f"`{name}` is a masked array with masked values, which are no data. Fill them, and "
            "leave the points out with `where`."
        )
    if not torch.compiler.is_compiling() and isinstance(x, np.ndarray) and not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(np.array(x))  # a copy: buffers of prediction loops get reused
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"`{name}` must be a tensor, an array or numbers, got {type(x).__name__}: {error}"
        ) from None


def _is_masked(x: object) -> bool:
    """Whether an array, or one of those in a list, has masked values, which NumPy would unmask."""
    if isinstance(x, list | tuple):
        return any(map(_is_masked, x))
    return isinstance(x, np.ma.MaskedArray) and bool(np.ma.getmaskarray(x).any())


def mask(given: ArrayLike, what: str = "point") -> Tensor:
    """`where`, true for what counts."""
    counts = raw("where", plain("where", given))
    if counts.dtype != torch.bool or counts.layout != torch.strided:
        raise InputError(f"`where` must be boolean, True where a {what} counts; got {given!r:.60}.")
    return counts


def integers(name: str, given: ArrayLike, what: str) -> Tensor:
    """Whole numbers, as int64."""
    found = raw(name, plain(name, given))
    real = found.is_floating_point() or found.is_complex() or found.dtype == torch.bool
    if real or found.layout != torch.strided:
        raise InputError(f"`{name}` must be whole numbers {what}; got {found.dtype}.")
    return found.long()


def wide(name: str, x: ArrayLike, least: float = -np.inf, hint: str = "") -> Tensor:
    """`x` as a finite float64 tensor of its own, nowhere below `least`: what a law is made of."""
    if isinstance(x, float | int) and least <= x <= LARGEST:  # a number that is fine
        return torch.from_numpy(np.array(x, float))  # faster than a tensor made by torch
    found = as_tensor(name, plain(name, x))
    finite(name, found, least, hint)
    return own(found, x)


def plain(name: str, x: Any) -> Any:
    """`x`, which is no DTensor."""
    if is_sharded(x):
        raise InputError(
            f"`{name}` is a DTensor; here it must be a plain tensor, the whole and the same on "
            "every process. Use .full_tensor()."
        )
    return x


def rounding_of(given: Any) -> float:
    """What numbers are rounded by when they are stored, as a share: that of their dtype."""
    if torch.compiler.is_compiling() and not isinstance(given, Tensor):
        return EPS  # compiled code does not know the dtype of an array
    dtype = getattr(given, "dtype", None)
    if isinstance(dtype, torch.dtype):
        return torch.finfo(dtype).eps if dtype.is_floating_point else EPS
    known = isinstance(dtype, np.dtype) and np.issubdtype(dtype, np.floating)
    return float(np.finfo(dtype).eps) if known else EPS


def own(found: Tensor, given: object) -> Tensor:
    """`found` in float64, in memory of its own; what was converted from `given` has its own."""
    if found is given and found.dtype == torch.float64:
        return found.clone()
    return found.double()


def alike(**given: ArrayLike) -> list[Tensor]:
    """Floating-point tensors of the widest dtype of those given, on the device of the first."""
    tensors = {name: as_tensor(name, x) for name, x in given.items()}
    (first_name, first), *rest = tensors.items()
    kind = first.dtype, first.device
    if any(map(is_sharded, tensors.values())):
        tensors = replicated(tensors)
        (first_name, first), *rest = tensors.items()
    if not [t for _, t in rest if not t.ndim or (t.dtype, t.device) != kind]:
        return [*tensors.values()]
    sized = [t.dtype for t in tensors.values() if t.ndim] or [first.dtype]
    dtype = functools.reduce(torch.promote_types, sized)
    for argument, t in rest:
        if t.ndim and isinstance(given[argument], Tensor):
            same_device(argument, t.device, f"`{first_name}`", first.device)
    return [t.to(first.device, dtype) for t in tensors.values()]


def same_kind(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    if x.dtype != other.dtype:
        raise InputError(f"`{name}` is {x.dtype} but {other_name} is {other.dtype}. {WIDEN}")
    same_device(name, x.device, other_name, other.device)


def same_device(name: str, device: torch.device, other_name: str, other: torch.device) -> None:
    if device != other:
        raise InputError(
            f"`{name}` is on {device} but {other_name} is on {other}. "
            "Move one of them with .to(device)."
        )


def finite(name: str, x: Tensor, least: float = -np.inf, hint: str = "") -> None:
    """`x` is finite and nowhere below `least`; one pass over the data where all is well."""
    if not (x.numel() and concrete(x)):
        return
    x = x.detach() if x.requires_grad else x
    if least == -np.inf and not is_sharded(x):
        one = x if x.numel() == 1 else x.sum()  # cheaper; a sum may overflow, see below
        if math.isfinite(one.item()):
            return
    low, high = ends(name, x)
    if not (math.isfinite(low) and math.isfinite(high)):
        bad = count(~x.isfinite())
        raise InputError(
            f"`{name}` must be finite; {bad} of its {x.numel()} values are NaN or infinite. "
            + (FILL if name in AT_POINTS else "Correct those entries, or leave them out.")
        )
    if low < least:
        text = f"`{name}` must be >= {least:g}; its smallest value is {low:.6g}. {hint}"
        raise InputError(text.rstrip())


def moments(mean: Tensor, variance: Tensor, hint: str) -> bool:
    """Means are finite, and no variance is negative; whether some variance is infinite.

    One look, which a GPU is waited for once.
    """
    if is_sharded(variance) and variance.numel():
        finite("mean", mean)
        low, high = ends_of("variance", variance)
        if low >= 0:
            return high == math.inf
    elif mean.numel() and variance.numel() and concrete(mean, variance):
        total, low, high = numbers(mean.sum(), *variance.aminmax())
        if math.isfinite(total) and low >= 0:
            return high == math.inf
    finite("mean", mean)
    endless = bool(variance.numel()) and concrete(variance) and count(variance == math.inf) > 0
    finite("variance", variance.nan_to_num(math.nan, 0.0) if endless else variance, 0, hint)
    return endless


def axis(name: str, given: ArrayLike, least: int = 2) -> tuple[Tensor, Any]:
    """The points of an axis in float64, and the steps between them, which are above 0.

    The steps are an array of NumPy where they can be: short arrays are faster there.
    """
    x = as_tensor(name, plain(name, given))
    if x.ndim == 1 and x.shape[0] >= max(least, 2) and in_numpy(x):
        points = x.numpy().astype(float)  # a copy
        with np.errstate(all="ignore"):
            steps = points[1:] - points[:-1]
        if steps.min() > 0 and points[-1] - points[0] < math.inf:
            return torch.from_numpy(points), steps
    x = own(x, given)
    finite(name, x)
    increasing(name, x, least)
    return x, x.diff()


def increasing(name: str, x: Tensor, least: int = 2) -> None:
    if x.ndim != 1 or x.shape[0] < least:
        raise InputError(
            f"`{name}` must be one axis of at least {least} points, got shape {tuple(x.shape)}."
        )
    if concrete(x) and x.shape[0] > 1:
        steps = x.detach().diff()
        if not float(steps.min()) > 0:
            i = int((steps <= 0).nonzero()[0])
            raise InputError(
                f"`{name}` must increase strictly; entry {i} is {x[i]:.6g} and entry {i + 1} is "
                f"{x[i + 1]:.6g}. Sort the points (and the field with them) and drop duplicates."
            )


def broadcast(**given: Tensor) -> tuple[Tensor, ...]:
    """All in one shape."""
    try:
        return torch.broadcast_tensors(*given.values())
    except RuntimeError:
        names = " and ".join(f"`{name}`" for name in given)
        shapes = " and ".join(str(tuple(t.shape)) for t in given.values())
        raise InputError(f"{names} of shapes {shapes} do not broadcast.") from None


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """The shape of all together; torch's own function imports SymPy, which takes a second."""
    if torch.compiler.is_compiling():
        return torch.broadcast_shapes(*shapes)
    try:
        return torch.Size(np.broadcast_shapes(*map(tuple, shapes)))
    except ValueError as error:
        raise RuntimeError(error) from None  # as torch does


def fits(lead: Sequence[int], places: Sequence[int]) -> bool:
    """Whether axes broadcast to the last ones of `places`."""
    pairs = zip(lead[::-1], places[::-1], strict=False)
    return len(lead) <= len(places) and all(n in (1, size) for n, size in pairs)


def broadcasts(name: str, x: Tensor, shape: Sequence[int], what: str) -> None:
    """`x` broadcasts to `shape` and does not enlarge it."""
    for axis in range(1, x.ndim + 1):
        size = shape[-axis] if axis <= len(shape) else 0
        if axis > len(shape) or x.shape[-axis] not in (1, size):
            raise InputError(
                f"`{name}` of shape {tuple(x.shape)} does not fit {what} of shape {tuple(shape)}: "
                f"axis {-axis} has {x.shape[-axis]} entries and should have "
                + (f"{size}." if size else f"no counterpart; expand {what} first.")
            )


def device(name: str, index: int = 0) -> torch.device:
    """auto is a GPU where there is one; index: of the GPU, where `name` has none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    choice("device", name.split(":")[0], ["auto", "cpu", "cuda"])
    found = place("device", name)
    return torch.device("cuda", index) if name == "cuda" else found


def place(name: str, given: torch.device | str) -> torch.device:
    """A device that torch knows."""
    try:
        found = torch.device(given)
    except (RuntimeError, TypeError):
        raise InputError(f"`{name}` must be a device such as cpu or cuda; got {given!r}.") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"`{name}` is {given}, but torch finds no GPU here. Use cpu.")
    return found


def generator(given: torch.Generator | None) -> None:
    if given is not None and not isinstance(given, torch.Generator):
        raise InputError(
            "`generator` must be a torch.Generator, such as torch.Generator().manual_seed(0); got "
            f"{given!r}."
        )


def sparse(name: str, matrix: Any) -> Tensor | None:
    """Any sparse matrix, of torch or SciPy, as a torch COO tensor; None for a dense one."""
    from_scipy = hasattr(matrix, "tocoo")
    if not from_scipy and (not isinstance(matrix, Tensor) or matrix.layout == torch.strided):
        return None
    real = matrix.dtype.kind in "iuf" if from_scipy else matrix.is_floating_point()
    if matrix.ndim != 2 or not real:
        raise InputError(
            f"a sparse `{name}` must hold real numbers (of torch, floating-point ones) and have "
            f"two axes, got {matrix.dtype} and shape {tuple(matrix.shape)}."
        )
    if from_scipy:
        coo = matrix.tocoo()
        index = torch.from_numpy(np.stack([coo.row, coo.col]).astype(np.int64))
        entries = torch.from_numpy(coo.data.astype(float))
        return torch.sparse_coo_tensor(index, entries, coo.shape, check_invariants=True).coalesce()
    return (matrix if matrix.is_sparse else matrix.to_sparse_coo()).coalesce()
