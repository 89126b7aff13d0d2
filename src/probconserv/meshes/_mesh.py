"""Mesh: cells, the faces between them, and the linear maps that lead from one to the other."""

from collections.abc import Sequence, Set
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.tree import Kept
from ..support.values import EARTH
from ._build import Parts, rectilinear, sphere, unstructured
from ._faces import Faces


class Mesh(Kept):
    """Cells of one, two or three axes, from their edges; see also `sphere` and `unstructured`.

    u has the values of the cells, ``(..., *shape)``. A flux is an array for each axis, in a tuple:
    the flux through a unit of each face across that axis, ``(..., *face_shape)``, positive towards
    the growing coordinate. Leading axes are a batch. Where there is one axis, the array alone will
    do. All results are float64; NaN passes through.

    Parameters
    ----------
    periodic : str or sequence of str
        The names of the axes whose last edge is the first again. A periodic axis has no last face.
    **edges : array
        The edges of the cells along each axis, increasing, one more than cells; the names and their
        order are those of the axes.

    Attributes
    ----------
    axes : tuple of str
        The names of all axes.
    periodic : tuple of str
        The names of the periodic ones.
    volumes : Tensor, shape of the mesh
        The volumes of the cells; on one axis lengths, on two areas.
    widths : tuple of Tensor
        The widths of the cells along each axis; empty for `sphere` and `unstructured`.

    Raises
    ------
    InputError
        If there are no axes or more than three, or edges do not increase.

    Examples
    --------
    >>> mesh = Mesh(x=[0.0, 1.0, 3.0, 4.0], y=[0.0, 0.5, 1.0], periodic="y")
    >>> mesh
    Mesh(x: 3, y: 2, periodic in y)
    >>> mesh.face_shapes
    ((4, 2), (3, 2))
    >>> mesh.integral([[1.0, 1.0], [2.0, 2.0], [1.0, 1.0]])
    tensor(6., dtype=torch.float64)
    """

    axes: tuple[str, ...]
    periodic: tuple[str, ...]
    volumes: Tensor
    widths: tuple[Tensor, ...]
    _faces: tuple[Faces, ...]

    def __init__(
        self, /, *, periodic: str | Sequence[str] | Set[str] = (), **edges: ArrayLike
    ) -> None:
        self._fill(rectilinear(edges, periodic))

    @classmethod
    def sphere(cls, lat_edges: ArrayLike, lon_edges: ArrayLike, radius: float = EARTH) -> "Mesh":
        """Cells between parallels and meridians, with the axes lat and lon.

        A cell has the area radius^2 dlon (sin lat_2 - sin lat_1). A face across lat has the length
        radius cos(lat) dlon, 0 at a pole; a face across lon has radius dlat. Distances between
        centres are along the meridian and along the parallel half way.

        Parameters
        ----------
        lat_edges, lon_edges : array
            In degrees. Both may increase or decrease, as they do in files: fluxes, gradients and
            velocities always count as positive towards north and east. lon is periodic where the
            edges span 360 degrees.
        radius : float
            The radius, in the unit of all lengths. The default is that of the earth, 6371229
            metres, as weather models and `files` have it.

        Returns
        -------
        Mesh
            With the shape (lat, lon).

        Examples
        --------
        >>> mesh = Mesh.sphere([90, 0, -90], [0, 120, 240, 360], radius=1.0)
        >>> mesh
        Mesh(lat: 2, lon: 3, periodic in lon)
        >>> mesh.integral(torch.ones(2, 3)) / torch.pi
        tensor(4.0000, dtype=torch.float64)
        >>> mesh.closed
        True
        """
        return cls._of(sphere(lat_edges, lon_edges, radius))

    @classmethod
    def unstructured(
        cls,
        volumes: ArrayLike,
        neighbours: ArrayLike,
        face_sizes: ArrayLike,
        distances: ArrayLike | None = None,
    ) -> "Mesh":
        """Any cells, with a list of the faces between them; its one axis is called cell.

        Parameters
        ----------
        volumes : array, shape (N,)
            The volumes of the cells, positive.
        neighbours : array of int, shape (F, 2)
            The numbers of the two cells at each face, -1 for the outside. A flux counts as positive
            from the first to the second.
        face_sizes : float or array, shape (F,)
            The areas of the faces.
        distances : float or array, shape (F,)
            From centre to centre, at the boundary from the centre to the face. Needed for
            `gradient`. For `centred` a face is taken to lie half way.

        Returns
        -------
        Mesh
            With the shape (N,), and F faces.

        Examples
        --------
        >>> mesh = Mesh.unstructured([1.0, 2.0], [[0, 1], [1, -1]], face_sizes=1.0)
        >>> mesh.divergence(torch.tensor([3.0, 5.0]))
        tensor([3., 2.], dtype=torch.float64)
        """
        return cls._of(unstructured(volumes, neighbours, face_sizes, distances))

    @classmethod
    def _of(cls, parts: Parts) -> "Mesh":
        mesh = cls.__new__(cls)
        mesh._fill(parts)
        return mesh

    def _fill(self, parts: Parts) -> None:
        self.axes, self.periodic, self.volumes, self._faces, self.widths = parts

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            raise AttributeError(f"`{name}` of a mesh cannot be changed. Make another mesh.")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        cells = ", ".join(f"{a}: {n}" for a, n in zip(self.axes, self.shape, strict=True))
        return f"Mesh({cells}{', periodic in ' * bool(self.periodic)}{', '.join(self.periodic)})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the cells."""
        return tuple(self.volumes.shape)

    @property
    def face_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the faces across each axis."""
        return tuple(faces.shape for faces in self._faces)

    @property
    def face_sizes(self) -> tuple[Tensor, ...]:
        """The sizes of the faces, a tensor for each axis that broadcasts to their shape."""
        return tuple(faces.sizes for faces in self._faces)

    @property
    def distances(self) -> tuple[Tensor, ...]:
        """From centre to centre, at the boundary from the centre to the face; as `face_sizes`."""
        return tuple(map(_distances, self._faces))

    @property
    def boundary(self) -> tuple[Tensor, ...]:
        """True at the faces with the outside on one side, in the shapes of the faces."""
        return tuple(faces.boundary.expand(faces.shape) for faces in self._faces)

    @property
    def closed(self) -> bool:
        """Whether nothing can pass the boundary: it has no faces, or none with a size (poles)."""
        return not any(bool((f.boundary & (f.sizes > 0)).any()) for f in self._faces)

    def integral(self, u: ArrayLike) -> Tensor:  # (..., *shape) -> (...)
        """The sum of volumes times u over the cells.

        Parameters
        ----------
        u : array, shape ``(..., *shape)``
            The values of the cells.

        Returns
        -------
        Tensor, shape (...)
            One number for each entry of the batch.
        """
        return (self._cells("u", u) * self.volumes).flatten(-len(self.shape)).sum(-1)

    def divergence(self, fluxes: ArrayLike) -> Tensor:  # -> (..., *shape)
        """What flows out of each cell: the sum of face size times flux, not per volume.

        Parameters
        ----------
        fluxes : array, or a tuple of one for each axis, shape ``(..., *face_shape)``
            The flux through a unit of each face.

        Returns
        -------
        Tensor, shape ``(..., *shape)``
            One number for each cell.

        Examples
        --------
        >>> Mesh(x=[0.0, 1.0, 3.0]).divergence(torch.tensor([1.0, 4.0, 2.0]))
        tensor([ 3., -2.], dtype=torch.float64)
        """
        pairs = self._pairs("fluxes", fluxes)
        return reduce(torch.add, (f.collect(f.sizes * flux) for f, flux in pairs))

    def outflow(self, fluxes: ArrayLike) -> Tensor:  # -> (...)
        """What flows out through the boundary: the sum of `divergence` over the cells.

        Parameters
        ----------
        fluxes : as in `divergence`

        Returns
        -------
        Tensor, shape (...)
            One number for each entry of the batch.
        """
        pairs = self._pairs("fluxes", fluxes)
        return reduce(torch.add, (f.outflow(f.sizes * flux) for f, flux in pairs))

    def gradient(self, u: ArrayLike) -> tuple[Tensor, ...]:  # (..., *shape) ->
        """The slope of u at the faces across each axis; 0 at the boundary, as at a closed end.

        Parameters
        ----------
        u : array, shape ``(..., *shape)``
            The values of the cells.

        Returns
        -------
        tuple of Tensor
            The slopes across each axis.

        Raises
        ------
        InputError
            If the mesh does not know the distances between centres.

        Examples
        --------
        >>> Mesh(x=[0.0, 1.0, 3.0]).gradient([1.0, 4.0])
        (tensor([0., 2., 0.], dtype=torch.float64),)
        """
        u = self._cells("u", u)
        return tuple(torch.sub(*f.sides(u)[::-1]) / _distances(f) for f in self._faces)

    def centred(self, u: ArrayLike) -> tuple[Tensor, ...]:  # (..., *shape) ->
        """u at the faces, linear between the centres; at the boundary the value of the cell.

        Parameters
        ----------
        u : array, shape ``(..., *shape)``
            The values of the cells.

        Returns
        -------
        tuple of Tensor
            u at the faces across each axis.
        """
        u = self._cells("u", u)
        return tuple(torch.lerp(*f.sides(u)[::-1], f.share) for f in self._faces)

    def upwind(self, u: ArrayLike, velocity: ArrayLike) -> tuple[Tensor, ...]:
        """u of the cell that the velocity at each face comes from.

        Parameters
        ----------
        u : array, shape ``(..., *shape)``
            The values of the cells.
        velocity : float or array, or a tuple of one for each axis
            In shapes that broadcast to ``(..., *face_shape)``. Where it comes from outside, the
            value is that of the cell at the boundary.

        Returns
        -------
        tuple of Tensor
            u at the faces across each axis.

        Examples
        --------
        >>> Mesh(x=[0, 1, 2]).upwind([5.0, 7.0], velocity=-1.0)
        (tensor([5., 7., 7.], dtype=torch.float64),)
        """
        u, speeds = self._cells("u", u), self._velocity(velocity)
        self._batch("`u` and `velocity`", u, *speeds)
        pairs = zip(self._faces, speeds, strict=True)
        return tuple(torch.where(v >= 0, *f.sides(u)) for f, v in pairs)

    def open_faces(self, where: ArrayLike) -> tuple[Tensor, ...]:
        """True at the faces beside which no cell is missing, in the shapes of the faces.

        Parameters
        ----------
        where : array of bool, shape of the mesh
            True where a cell counts. A boundary face beside such a cell is open.

        Returns
        -------
        tuple of Tensor
            One for each axis.

        Examples
        --------
        >>> Mesh(x=[0, 1, 2, 3]).open_faces([True, True, False])
        (tensor([ True,  True, False, False]),)
        """
        counts = check.mask(where, "cell").to(self.volumes.device)
        _ends_in("`where`", counts, self.shape, "the shape of the mesh")
        return tuple(torch.logical_and(*f.sides(counts)) for f in self._faces)

    def _cells(self, name: str, given: ArrayLike) -> Tensor:
        u = check.as_tensor(name, given, self.volumes, "mesh")
        _ends_in(f"`{name}`", u, self.shape, "the shape of the mesh")
        return u

    def _pairs(self, name: str, given: ArrayLike) -> list[tuple[Faces, Tensor]]:
        """The faces across each axis, and what is given for them."""
        found = self._at_faces(name, given)
        for axis, faces, flux in zip(self.axes, self._faces, found, strict=True):
            _ends_in(f"`{name}` across {axis}", flux, faces.shape, "as `face_shapes` says")
        self._batch(f"`{name}`", *found)
        return list(zip(self._faces, found, strict=True))

    def _velocity(self, given: ArrayLike) -> list[Tensor]:
        found = self._at_faces("velocity", given)
        for axis, faces, v in zip(self.axes, self._faces, found, strict=True):
            last = v.shape[max(v.ndim - len(faces.shape), 0) :]
            if _broadcast(last, faces.shape) != faces.shape:
                raise InputError(
                    f"`velocity` across {axis} must be a number or broadcast to the faces, "
                    f"{faces.shape}; got shape {tuple(v.shape)}."
                )
        return found

    def _at_faces(self, name: str, given: ArrayLike) -> list[Tensor]:
        parts = self._each(name, given)
        return [check.as_tensor(name, part, self.volumes, "mesh") for part in parts]

    def _each(self, name: str, given: Any, same: bool = False) -> list[Any]:
        """One for each axis; where it is the `same` for all, it may be given once."""
        parts = list(given) if isinstance(given, tuple | list) else [given]
        if same and len(parts) == 1:
            return parts * len(self.axes)
        if len(parts) != len(self.axes):
            raise InputError(
                f"`{name}` must be a tuple of {len(self.axes)}, one for each axis "
                f"({', '.join(self.axes)}); got {len(parts)}. A single one will do on one axis."
            )
        return parts

    def _batch(self, names: str, *tensors: Tensor) -> None:
        """The axes before those of cells or faces fit each other."""
        leads = [tuple(t.shape[: max(t.ndim - len(self.shape), 0)]) for t in tensors]
        if _broadcast(*leads) is None:
            raise InputError(
                f"The leading axes of {names} must broadcast; they are "
                f"{', '.join(map(str, leads))}. Add axes of size 1 where one has none."
            )


def _ends_in(what: str, t: Tensor, shape: tuple[int, ...], why: str) -> None:
    if tuple(t.shape[max(t.ndim - len(shape), 0) :]) != shape:
        raise InputError(f"{what} must end in {shape}, {why}; got {tuple(t.shape)}.")


def _broadcast(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    try:
        return check.broadcast_shapes(*shapes)
    except RuntimeError:
        return None


def _distances(faces: Faces) -> Tensor:
    if faces.distances is None:
        raise InputError(
            "`distances` between the centres were not given to this mesh, and gradients need them. "
            "Use Mesh.unstructured(..., distances=...)."
        )
    return faces.distances
