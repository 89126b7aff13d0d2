"""Objects made of tensors: changed all at once, indexed, and kept in files without pickle.

A `Node` may hold tensors, numbers, words, other nodes, and tuples of these. In a node that belongs
to a field every tensor has the axes of the field in front, each of full size or 1, so that an index
into the field is an index into every tensor. `stacked` names the tensors with one axis before them,
`loose` those that have no axis of the field to be indexed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, overload

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from . import checks as check
from .complete_files import check_folder, complete
from .errors import InputError

Change = Callable[[Tensor, int | None], Tensor]  # with the axes before the field's; None: loose
FORMAT = "probconserv 1"
Value = TypeVar("Value")


class once(Generic[Value]):
    """A property that is computed once.

    `functools.cached_property` takes a lock in Python 3.11, and `torch.compile` stops at locks. It
    would also keep, for later callers who want gradients, a value that was first read under
    `no_grad`; the owner says with `differentiable` whether that could happen.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__
        self.name = compute.__name__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        if owner is None:
            return self
        value = self.compute(owner)
        if torch.is_grad_enabled() or not owner.differentiable:
            object.__setattr__(owner, self.name, value)  # it now hides this one; also when frozen
        return value


class Node:
    """Something made of tensors."""

    kinds: ClassVar[dict[str, type["Node"]]] = {}
    stacked: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()

    noun: ClassVar[str]  # what users know it as

    def __init_subclass__(cls, noun: str = "", **how: Any) -> None:
        super().__init_subclass__(**how)
        cls.noun = noun or cls.__name__
        known = Node.kinds.setdefault(cls.__name__, cls)
        assert known.__module__ == cls.__module__, f"two nodes are called {cls.__name__}"
        Node.kinds[cls.__name__] = cls

    def _whole(self) -> "Node":
        """The node as it is changed and kept: with all that it would compute later."""
        return self

    def _change(self, change: Change) -> Self:
        other = type(self).__new__(type(self))
        for name, value in self.__dict__.items():
            before = None if name in self.loose else int(name in self.stacked)
            one = change if isinstance(value, Tensor) else None
            setattr(other, name, one(value, before) if one else _changed(value, change, before))
        return other

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same with every tensor changed."""
        return self._change(lambda t, _: change(t))

    def _with(self, **changed: Any) -> Self:
        """The same with some of what it holds replaced."""
        other = self._map(lambda t: t)
        for name, value in changed.items():
            setattr(other, name, value)
        return other

    def __deepcopy__(self, known: object) -> Self:
        """With gradients too, which torch does not copy by itself."""
        return self._map(Tensor.clone)

    def _tensors(self) -> list[Tensor]:
        """All that it is made of."""
        found: list[Tensor] = []
        self._map(lambda t: found.append(t) or t)  # type: ignore[func-returns-value]
        return found

    def _at(self, index: tuple[Any, ...]) -> Self:
        """The entries `index` of the first axes, whole numbers, slices or tensors of numbers."""

        def pick(t: Tensor, before: int | None) -> Tensor:
            if before is None:
                return t
            sizes = t.shape[before : before + len(index)]
            one = [slice(None) if isinstance(i, slice) else i * 0 for i in index]
            own = [i if n != 1 else j for i, j, n in zip(index, one, sizes, strict=True)]
            return t[(*[slice(None)] * before, *own)]

        return self._change(pick)


class Kept(Node):
    """A node that users move, detach and keep in files."""

    def to(self, device: torch.device | str) -> Self:
        """The same on another device."""
        place = check.place("device", device)
        return self._map(lambda t: t.to(place))

    def detach(self) -> Self:
        """The same without gradients."""
        return self._map(Tensor.detach)

    def save(self, path: str | Path) -> None:
        """Keeps it in a safetensors file, which `load` reads."""
        place = check.path("path", path)
        tensors: dict[str, Tensor] = {}  # by their place, everything else as words beside them
        try:
            words = json.dumps(_packed(self, "", tensors))
        except TypeError:
            raise InputError(
                f"this {self.noun} holds a function, as laws that are not linear do, and a file "
                "cannot. Keep its draws: Draws(field.sample(1000)).save(path)."
            ) from None
        every = ((name, check.plain(name.lstrip("."), t)) for name, t in tensors.items())
        own = {name: t.detach().contiguous().clone() for name, t in every}
        try:
            if place.is_dir():
                raise InputError(f"`path`: {place} is a folder; name a file in it.")
            check_folder("path", place)
            with complete(place) as part:
                save_file(own, part, {"format": FORMAT, "node": words})
        except InputError:
            raise
        except (OSError, ValueError, SafetensorError) as error:
            raise InputError(f"`path`: {place} cannot be written: {error}") from None

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """What was kept by `save` in the file `path`."""
        place = check.path("path", path)
        try:
            with safe_open(place, "pt") as file:
                notes = file.metadata() or {}
                if notes.get("format") != FORMAT:
                    raise InputError(f"`path`: {place} does not hold a field that was saved here.")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            node = _unpacked(json.loads(notes["node"]), tensors)
        except (OSError, SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise InputError(f"`path`: {place} cannot be read as a field: {error}") from None
        if not isinstance(node, cls):
            raise InputError(f"`path`: {place} holds a {node.noun}. Use `{node.noun}.load`.")
        return node


def _changed(value: Any, change: Change, before: int | None) -> Any:
    if isinstance(value, Tensor):
        return change(value, before)
    if isinstance(value, Node):
        add = before or 0
        return value._whole()._change(lambda t, b: change(t, None if b is None else b + add))
    if isinstance(value, tuple):
        return tuple(_changed(each, change, before) for each in value)
    return value


def _packed(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as words; its tensors go into `tensors`, each of them once."""

    def inner(name: object, part: Any) -> Any:
        return _packed(part, f"{place}.{name}", tensors)

    if isinstance(value, Tensor) and value.is_sparse:
        parts = inner("indices", value.indices()), inner("values", value.values())
        return {"sparse": parts, "size": list(value.shape)}
    if isinstance(value, Tensor):
        name = next((name for name, known in tensors.items() if known is value), place)
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Node):
        value = value._whole()
        holds = {name: inner(name, part) for name, part in vars(value).items()}
        return {"kind": type(value).__name__, "holds": holds}
    if isinstance(value, tuple):
        return {"tuple": [inner(i, part) for i, part in enumerate(value)]}
    return value


def _unpacked(given: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(given, dict):
        return given
    if "tensor" in given:
        return tensors[given["tensor"]]
    if "sparse" in given:
        indices, values = (_unpacked(part, tensors) for part in given["sparse"])
        sizes = given["size"]
        return torch.sparse_coo_tensor(indices, values, sizes, check_invariants=True).coalesce()
    if "tuple" in given:
        return tuple(_unpacked(each, tensors) for each in given["tuple"])
    kind = Node.kinds[given["kind"]]
    node = kind.__new__(kind)
    node.__dict__.update({name: _unpacked(v, tensors) for name, v in given["holds"].items()})
    return node
