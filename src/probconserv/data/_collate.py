"""Samples of fields and laws as one batch: what a DataLoader calls."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from ..conditioning.draws import Draws
from ..conditioning.posterior import Posterior
from ..fields.gaussian import Field
from ..fields.state import State
from ..laws.inequalities import Inequality
from ..laws.law import Law
from ..laws.nonlinear import NonlinearLaw
from ..support.errors import InputError
from ..support.tree import Node

OF_EACH = "value", "noise_variance", "exact", "rounding"  # of a linear law, in each sample


def collate(batch: Sequence[Any]) -> Any:
    """Samples as one batch, with fields, states and laws among them: `collate_fn` of a DataLoader.

    Fields and states are stacked on a new first axis, as independent entries. Linear laws must
    be the same but for `value` and `noise`, which are stacked where they differ; for that they need
    an axis for each axis of a sample before those that the law reads, as ``value=[0.5]`` for one of
    shape (1, points). Other laws must be the same. Anything else goes to
    `torch.utils.data.default_collate`.

    Parameters
    ----------
    batch : sequence
        The samples: fields, states, laws, what torch collates, and tuples, lists and dicts of
        these.

    Returns
    -------
    object
        One of the same kind; a list for tuples, as torch gives it.

    Raises
    ------
    InputError
        If the fields or the laws do not fit each other.

    Examples
    --------
    >>> import probconserv as pc
    >>> samples = [(pc.Diagonal([0.0, i], 1.0), pc.integral([0.0, 1.0], 2.0)) for i in (1.0, 2.0)]
    >>> field, law = collate(samples)
    >>> pc.condition(field, law).mean
    tensor([[1.5000, 2.5000],
            [1.0000, 3.0000]], dtype=torch.float64)
    """
    first = batch[0]
    if isinstance(first, Field | State):
        return _fields(batch)
    if isinstance(first, Law | NonlinearLaw | Inequality):
        return _laws(batch)
    if isinstance(first, Mapping):
        return {key: collate([sample[key] for sample in batch]) for key in first}
    if isinstance(first, tuple | list):
        parts = [collate(part) for part in zip(*batch, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else parts
    return default_collate(list(batch))


def _fields(batch: Sequence[Any]) -> Any:
    if isinstance(batch[0], Posterior | Draws):
        raise InputError(
            "`batch`: what laws left is not collated. Collate the fields before, and condition "
            "the batch."
        )
    return _joined(batch, 0, "the field")


def _laws(batch: Sequence[Any]) -> Any:
    """The law that all samples share, with a value for each where values differ."""
    first, law = batch[0], copy.copy(batch[0])
    vars(law).update(
        _parts(batch, None, f"`{first.label}`", apart=OF_EACH if isinstance(first, Law) else ())
    )
    if isinstance(first, NonlinearLaw):
        law.batch_dims += 1
    if isinstance(first, Law):
        law.value = _of_each(first, "value", [one.value for one in batch])
        law.noise_variance = _of_each(first, "noise", [one.noise_variance for one in batch])
        law.exact = all(one.exact for one in batch)
        law.rounding = max(one.rounding for one in batch)
    return law


def _of_each(law: Law, name: str, values: list[Tensor]) -> Tensor:
    """A number for each row of each sample; that of all where it is the same."""
    if all(torch.equal(values[0], other) for other in values):
        return values[0]
    shapes = sorted({tuple(v.shape) for v in values})
    if len(shapes) > 1 or len(shapes[0]) <= len(law.row_names):
        raise InputError(
            f"`{name}` of `{law.label}` is not the same in all samples, and has the shapes "
            f"{shapes}: it needs an axis for each axis of the field before those that the law "
            "reads, as value=[1.0] for one of shape (1, points). Or collate the totals, and make "
            "one law of the batch."
        )
    return torch.stack(values)


def _parts(
    batch: Sequence[Any], axis: int | None, what: str, apart: Sequence[str] = ()
) -> dict[str, Any]:
    """What objects of one kind hold, joined; but for what only some have computed so far."""
    if len(kinds := sorted({type(one).__name__ for one in batch})) > 1:
        raise InputError(f"`batch`: {' and '.join(kinds)} do not go into one.")
    first, found = batch[0], {}
    for name in vars(first):
        if name in (*apart, "_there") or not all(name in vars(one) for one in batch):
            continue
        place = axis
        if axis is not None:
            place = None if name in first.loose else axis + (name in first.stacked)
        found[name] = _joined([vars(one)[name] for one in batch], place, f"{name} of {what}")
    return found


def _joined(values: Sequence[Any], axis: int | None, what: str) -> Any:
    """All on a new axis; with None they must be the same."""
    values = [one._whole() if isinstance(one, Node) else one for one in values]
    first: Any = values[0]
    if isinstance(first, Node | Law | NonlinearLaw):
        found: Any = type(first).__new__(type(first))
        vars(found).update(_parts(values, axis, what))
        if any(getattr(one, "_endless", False) for one in values):
            found._endless = True  # some variance is infinite
        return found
    if isinstance(first, tuple) and len({len(one) for one in values}) == 1:
        return tuple(_joined(part, axis, what) for part in zip(*values, strict=True))
    if isinstance(first, dict):
        return {k: _joined([one[k] for one in values], axis, what) for k in first}
    if isinstance(first, Tensor):
        return _tensors(values, axis, what)
    if what.startswith("bare of"):  # whether there is no variance beside the directions
        return all(values)
    if any(one != first for one in values):
        raise InputError(f"`batch`: {what} differs: {first} and others.")
    return first


def _tensors(values: Sequence[Tensor], axis: int | None, what: str) -> Tensor:
    shapes = sorted({tuple(t.shape) for t in values})
    if len(shapes) > 1:
        raise InputError(f"`batch`: {what} differs in shape: {', '.join(map(str, shapes))}.")
    if axis is not None:
        return torch.stack(list(values), axis)
    first = values[0]
    if any(not torch.equal(_dense(first), _dense(other)) for other in values if other is not first):
        raise InputError(
            f"`batch`: {what} differs. Only linear laws may differ in one batch, in value and "
            "noise."
        )
    return first


def _dense(t: Tensor) -> Tensor:
    """Of a sparse tensor, where its entries are and what they are."""
    if not t.is_sparse:
        return t
    return torch.cat([t.indices().double(), t.values()[None].double()])
