"""Meshes that cannot be, and arrays that do not fit them."""

import numpy as np
import pytest
import torch

import probconserv as pc

X, PAIRS = [0.0, 1.0, 2.0], [[0, 1], [1, -1]]
WRONG = {
    "no axis": (lambda: pc.Mesh(), "`Mesh` takes the edges of 1 to 3 axes"),
    "four axes": (lambda: pc.Mesh(a=X, b=X, c=X, d=X), "1 to 3 axes.*got 4"),
    "decreasing edges": (lambda: pc.Mesh(x=X, y=X[::-1]), "`y` must increase"),
    "repeated edges": (lambda: pc.Mesh(x=[0, 1, 1, 2]), "`x` must increase strictly"),
    "one edge": (lambda: pc.Mesh(x=[0.0]), "`x` must be one axis of at least 2"),
    "NaN edges": (lambda: pc.Mesh(x=[0, np.nan, 2]), "`x` must be finite"),
    "unknown name": (lambda: pc.Mesh(lon=X, periodic="lonn"), "`periodic` must be one of.*'lon'"),
    "a number": (lambda: pc.Mesh(x=X, periodic=1), "`periodic` must be names of axes"),
    "beyond the pole": (
        lambda: pc.Mesh.sphere([-91, 0], X),
        "`lat_edges` must lie between -90 and",
    ),
    "twice around": (lambda: pc.Mesh.sphere(X, [0, 361]), "`lon_edges` must span at most 360"),
    "a turn": (
        lambda: pc.Mesh.sphere(X, [350, 355, 0, 5]),
        "`lon_edges` must increase or decrease",
    ),
    "a zigzag": (lambda: pc.Mesh.sphere([0, 20, 10, 30], X), "`lat_edges` must increase"),
    "radius": (lambda: pc.Mesh.sphere(X, X, radius=-1.0), "`radius` must be a positive number"),
    "no volume": (lambda: pc.Mesh.unstructured([1, 0], PAIRS, 1), "`volumes` must be positive"),
    "NaN volume": (lambda: pc.Mesh.unstructured([1, np.nan], PAIRS, 1), "`volumes` must be finite"),
    "volumes": (lambda: pc.Mesh.unstructured([[1.0]], PAIRS, 1), "`volumes` must be one for each"),
    "outside twice": (
        lambda: pc.Mesh.unstructured([1, 2], [[0, 1], [-1, -1]], 1),
        r"`neighbours` must have a cell.*face 1 has \[-1, -1\]",
    ),
    "out of range": (
        lambda: pc.Mesh.unstructured([1, 2], [[0, 2]], 1),
        "`neighbours` must be cells from 0 to 1",
    ),
    "with itself": (
        lambda: pc.Mesh.unstructured([1, 2], [[1, 1]], 1),
        "`neighbours` must be two different cells",
    ),
    "not whole": (
        lambda: pc.Mesh.unstructured([1, 2], [[0.0, 1.0]], 1),
        r"`neighbours` must be whole numbers of shape \(faces, 2\)",
    ),
    "negative face": (
        lambda: pc.Mesh.unstructured([1, 2], PAIRS, [1, -1]),
        "`face_sizes` must be >= 0",
    ),
    "too many faces": (
        lambda: pc.Mesh.unstructured([1, 2], PAIRS, [1, 1, 1]),
        "`face_sizes` of shape .* does not fit the faces in `neighbours`",
    ),
    "no distance": (
        lambda: pc.Mesh.unstructured([1, 2], PAIRS, 1, [1, 0]),
        "`distances` must be positive",
    ),
    "distances needed": (
        lambda: pc.Mesh.unstructured([1, 2], PAIRS, 1).gradient([1.0, 2.0]),
        "`distances` between the centres were not given",
    ),
}
PLANE = pc.Mesh(x=[0, 1, 3, 4, 5], y=[0, 1, 2, 4])
FLUXES = torch.ones(3, 5, 3), torch.ones(3, 4, 4)
WRONG |= {
    "flux like cells": (
        lambda: PLANE.divergence((torch.ones(4, 3), FLUXES[1])),
        r"`fluxes` across x must end in \(5, 3\).*got \(4, 3\)",
    ),
    "last flux": (
        lambda: PLANE.outflow((FLUXES[0], torch.ones(7))),
        r"`fluxes` across y must end in \(4, 4\).*got \(7,\)",
    ),
    "one flux": (lambda: PLANE.divergence(FLUXES[0]), r"`fluxes` must be a tuple of 2.*got 1"),
    "three": (
        lambda: PLANE.outflow([1.0] * 3),
        r"`fluxes` must be a tuple of 2.*\(x, y\); got 3",
    ),
    "batches": (
        lambda: PLANE.divergence((FLUXES[0], torch.ones(2, 4, 4))),
        r"leading axes of `fluxes` must broadcast; they are \(3,\), \(2,\)",
    ),
    "velocity": (
        lambda: PLANE.upwind(torch.ones(4, 3), (1.0, torch.ones(4, 3))),
        r"`velocity` across y must be a number or broadcast to the faces, \(4, 4\)",
    ),
    "u and velocity": (
        lambda: PLANE.upwind(torch.ones(2, 4, 3), (1.0, torch.ones(3, 4, 4))),
        "leading axes of `u` and `velocity` must broadcast",
    ),
    "u": (lambda: PLANE.integral(torch.ones(3, 4)), r"`u` must end in \(4, 3\).*got \(3, 4\)"),
    "number": (lambda: PLANE.gradient(1.0), r"`u` must end in \(4, 3\).*got \(\)"),
    "where": (lambda: PLANE.open_faces(np.ones((4, 3))), "`where` must be boolean"),
    "shape of where": (lambda: PLANE.open_faces([True]), r"`where` must end in \(4, 3\)"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_is_named_with_the_rule(what):
    call, words = WRONG[what]
    with pytest.raises(pc.errors.InputError, match=words):
        call()
