"""Cells and the faces between them: integrals, divergence, gradient, values at faces."""

from ._mesh import Mesh as Mesh
