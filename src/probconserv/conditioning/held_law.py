"""Laws as parts of a network: their tensors are buffers.

A law is kept as a shell, in which a `Slot` stands where a tensor was, and its tensors as buffers.
`forward` fills the shell again, so that what loads, moves or swaps buffers changes the law.
"""

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from ..laws.inequalities import Inequality, OneSided
from ..laws.law import Law
from ..laws.nonlinear import NonlinearLaw
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.tree import Node
from .condition import AnyLaw

NAMES = {"maps": "", "law": "", "quadrature": "x"}  # of what holds a tensor, where others say more
MADE_OF_TENSORS = (Node, Law, NonlinearLaw, Inequality)


@dataclass(frozen=True)
class Slot:
    """Where a tensor of a law was: the name of its buffer, or of the two of a sparse one."""

    name: str
    size: tuple[int, ...] | None = None  # of a sparse tensor


class Recipe(NamedTuple):
    """An object, as what it is made of: `torch.compile` reads tuples in every version of torch."""

    kind: Any
    names: tuple[str, ...]
    parts: tuple[Any, ...]


def emptied(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """`value` with slots in place of its tensors, which go into `tensors`."""
    if isinstance(value, Tensor):
        while name in tensors or f"{name}_values" in tensors:  # "a b" beside "a_b"
            name += "_"
    if isinstance(value, Tensor) and value.is_sparse:
        tensors[f"{name}_indices"], tensors[f"{name}_values"] = value.indices(), value.values()
        return Slot(name, tuple(value.shape))
    if isinstance(value, Tensor):
        tensors[name] = value
        return Slot(name)
    if isinstance(value, tuple):
        alone = sum(isinstance(x, Tensor) for x in value) == 1
        parts = enumerate(value)
        return tuple(emptied(x, name if alone else f"{name}_{i}", tensors) for i, x in parts)
    if isinstance(value, dict):
        return {k: emptied(x, _joined(name, str(k)), tensors) for k, x in value.items()}
    if isinstance(value, MADE_OF_TENSORS):
        shell = copy.copy(value)
        for k, x in [*vars(shell).items()]:
            part = _joined(name, NAMES.get(k, k))
            setattr(shell, k, emptied(x, part, tensors))
        return shell
    return value


def recipe_of(value: Any) -> Any:
    """How what `emptied` emptied is filled."""
    if isinstance(value, tuple):
        return tuple(map(recipe_of, value))
    if isinstance(value, dict):
        return Recipe(dict, tuple(value), tuple(map(recipe_of, value.values())))
    if isinstance(value, MADE_OF_TENSORS):
        held = vars(value)
        return Recipe(type(value), tuple(held), tuple(map(recipe_of, held.values())))
    return value


def filled(value: Any, tensors: Mapping[str, Any]) -> Any:
    """What a recipe makes of these tensors."""
    if isinstance(value, Slot):
        if value.size is None:
            return tensors[value.name]
        parts = tensors[f"{value.name}_indices"], tensors[f"{value.name}_values"]
        return torch.sparse_coo_tensor(
            *parts, value.size, is_coalesced=True, check_invariants=False
        )
    if isinstance(value, Recipe):
        made = [filled(x, tensors) for x in value.parts]
        if value.kind is dict:
            return dict(zip(value.names, made, strict=True))
        whole = value.kind.__new__(value.kind)
        for name, part in zip(value.names, made, strict=True):
            setattr(whole, name, part)
        return whole
    if isinstance(value, tuple):
        return tuple([filled(x, tensors) for x in value])
    return value


def _joined(*parts: str) -> str:
    """The name of a buffer: letters, digits and lines below."""
    return re.sub(r"\W", "_", "_".join(filter(None, parts)))


def free_name(module: nn.Module, label: str) -> str:
    """A label as the name of a part of a module, with a number where that is taken."""
    name, count = _joined(label), 0
    while hasattr(module, name):
        count += 1
        name = f"{_joined(label)}_{count}"
    return name


class Float64(nn.Module):
    """Buffers that keep their type and what they hold, to whatever type a module is converted.

    They follow a module to other devices, also with `to_empty`. What was on the device "meta" has
    nothing to keep: it is NaN until a state is loaded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(_widened)  # type: ignore[no-untyped-call]

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, kept in before.items():
            now = self._buffers[name]
            if kept is None or now is None:
                continue
            if kept.is_meta and not now.is_meta:
                now = torch.empty_like(kept, device=now.device)
                self._buffers[name] = now.fill_(torch.nan if now.is_floating_point() else 0)
            else:
                self._buffers[name] = kept.to(now.device)
        return self


def _widened(module: nn.Module, _: object) -> None:
    """`load_state_dict(assign=True)` puts what was saved in place of buffers, in any type."""
    for name, t in module._buffers.items():
        if t is not None and t.is_floating_point():
            module._buffers[name] = t.double()


class HeldLaw(Float64):
    """A law whose tensors are buffers."""

    def __init__(self, law: AnyLaw) -> None:
        super().__init__()
        tensors: dict[str, Tensor] = {}
        self.shell = emptied(law, "", tensors)
        self.recipe = recipe_of(self.shell)
        self._known: tuple[list[tuple[Tensor, int]], Any] = [], None
        for name, t in tensors.items():
            if t.requires_grad:
                raise InputError(
                    f"`laws`: `{law.label}` is made of a tensor that asks for a gradient, and a "
                    "layer keeps a copy. Give totals as inputs instead, as in layer(mean, total)."
                )
            self.register_buffer(name, t.clone(memory_format=torch.contiguous_format))
        function = getattr(law, "function", None)
        if isinstance(function, nn.Module):
            self.function = function  # its parameters are those of the layer
        _loaded(self)
        self.register_load_state_dict_post_hook(_loaded)  # type: ignore[no-untyped-call]

    def law(self, value: ArrayLike | None = None) -> Any:
        """The law that the buffers make, with another value."""
        if value is None:
            return self._law_as_it_is()
        law = filled(self.recipe, self._buffers)
        own = law.law if isinstance(law, OneSided) else law
        if isinstance(own, Inequality):
            raise InputError(f"`totals`: `{law.label}` takes none. Give None in its place.")
        given = check.as_tensor("totals", value)
        if given.is_cpu:  # a GPU is not waited for: there the result is looked at
            check.finite("totals", given)
        own.rounding = check.rounding_of(value)
        own.value = given.to(own.value.device, torch.float64)
        return law

    def _law_as_it_is(self) -> Any:
        """The law that the buffers make, once for as long as none of them changes."""
        tensors = [t for t in self._buffers.values() if t is not None]
        if not check.concrete(*tensors) or any(t.is_inference() for t in tensors):
            return filled(self.recipe, self._buffers)
        now = [(t, t._version) for t in tensors]
        known, law = self._known
        same = len(known) == len(now) and all(
            t is other and count == before
            for (t, count), (other, before) in zip(now, known, strict=True)
        )
        if not same:
            _loaded(self)
            law = filled(self.recipe, self._buffers)
            self._known = now, law
        return law

    def extra_repr(self) -> str:
        nothing_there = any(t.is_meta for t in self.buffers(recurse=False))
        return self.shell.label if nothing_there else repr(self.law())


def _loaded(held: Any, _: object = None) -> None:
    """What forward need not look at: whether a law has noise."""
    kind = "noise_variance" if isinstance(held.shell, Law) else "noise"
    noise = held._buffers.get(kind)
    held.noisy = noise is not None and not noise.is_meta and bool((noise > 0).any())
    if isinstance(held.shell, Law) and noise is not None:
        held.shell.exact = noise.ndim == 0 and not noise.is_meta and not held.noisy
    held.recipe = recipe_of(held.shell)
