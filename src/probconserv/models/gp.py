"""Gaussian process regression, exact. Needs GPyTorch, the extra `gp`."""

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from ..fields.dense import Dense
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import DegenerateError, InputError
from ..support.extras import missing
from ..support.progress import track
from ._context import Context, alone, read_context, read_grid

try:
    from gpytorch import kernels
    from gpytorch.constraints import Positive
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"GaussianProcess needs GPyTorch: {missing(error.name, 'gp')}", name=error.name
    ) from None

Kernel: TypeAlias = Any  # of GPyTorch

FLOOR = 1e-3  # the least noise that `fit` finds, in standard deviations of the values
STARTS = (0.1, 0.3, 1.0)  # length scales of the default kernel, in ranges of the coordinates
REFUSED = 1e10  # a loss from which the search turns back: float64 cannot factor the covariance


class _Prior(NamedTuple):
    kernel: Kernel
    mean: Tensor  # ()
    noise: Tensor  # (), a standard deviation


class _Seen(NamedTuple):
    """Observations of n functions, padded to the longest."""

    known: Tensor  # (n, N, inputs)
    u: Tensor  # (n, N)
    there: Tensor  # (n, N), 1 for an observation, 0 for padding


class GaussianProcess:
    """Regression on scattered observations: u is a Gaussian process, seen with independent noise.

    Likelihood and prediction are exact, by Cholesky factors in float64 where the kernel is: N
    observations take N^3 operations. Nothing but the noise is added to the diagonal.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel
        Any over the coordinates; a copy is used. Its parameters are where `fit` starts, and those
        with `requires_grad=False` stay. By default a scaled Matern 3/2 with a length scale for each
        coordinate, from several starts.
    mean : float
        A constant, in the units of u. A number stays; None leaves it to `fit`.
    noise : float
        A standard deviation, in the units of u. A number stays; None leaves it to `fit`, at least
        1e-3 of the spread of the values.
    inputs : int
        How many coordinates, in the order (t, x).

    Raises
    ------
    InputError
        If `kernel` is not one of GPyTorch, or `inputs` is less than 2.

    Examples
    --------
    >>> t, x = torch.rand(2, 30, generator=torch.Generator().manual_seed(0))
    >>> seen = t, x, (x - t).sin()
    >>> GaussianProcess().fit(seen).predict(seen, ([0.1, 0.2], [0.0, 0.5, 1.0]))
    Dense(shape=(2, 3), event_dims=1, torch.float64)
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        mean: float | None = None,
        noise: float | None = None,
        inputs: int = 2,
    ) -> None:
        if not (kernel is None or isinstance(kernel, kernels.Kernel)):
            raise InputError(
                f"`kernel` must be a GPyTorch kernel, got {type(kernel).__name__}. For example "
                "gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))."
            )
        if check.samples(inputs, "inputs") < 2:
            raise InputError("`inputs` must be at least 2, time and a place; got 1.")
        self.inputs = inputs
        self.kernel = None if kernel is None else copy.deepcopy(kernel).double()
        self.mean = None if mean is None else _checked("mean", mean)
        self.noise = None if noise is None else _checked("noise", noise, least=0)
        self._given = self.kernel, self.mean, self.noise

    @torch.inference_mode(False)
    def fit(self, context: Context | list[Context]) -> Self:
        """The process itself, with the parameters of the largest marginal likelihood.

        The search is L-BFGS from fixed starts, so the same context gives the same parameters.
        Priors of the kernel are not used.

        Parameters
        ----------
        context : as in `predict`
            n functions share the parameters.

        Returns
        -------
        GaussianProcess
            The same object.

        Raises
        ------
        InputError
            If all values are the same.
        """
        seen = self._seen(context)
        values = seen.u[seen.there > 0]
        if not values.std(correction=0) > 1e-12 * values.abs().max():
            raise InputError(
                f"`context` must hold values that differ; each of its {len(values)} is "
                f"{values[0]:.6g}. Give more observations, or `kernel`, `mean` and `noise`."
            )
        kernel, mean, noise = self._given
        starts = _starts(seen) if kernel is None else [copy.deepcopy(kernel)]
        found = [_search(start, mean, noise, seen) for start in starts]
        _, best = min(found, key=lambda pair: pair[0])
        _root(best, seen)  # refuses where no start has a likelihood
        self.kernel, self.mean, self.noise = best.kernel, float(best.mean), float(best.noise)
        return self

    @torch.no_grad()
    def log_likelihood(self, context: Context | list[Context]) -> Tensor:
        """The log marginal likelihood of each function.

        Parameters
        ----------
        context : as in `predict`

        Returns
        -------
        Tensor, shape (n,)
            Without n for one function.
        """
        seen, prior = self._seen(context), self._prior()
        each = _log_likelihood(_root(prior, seen), prior, seen)
        return each[0] if alone(context) else each

    @torch.no_grad()
    def predict(self, context: Context | list[Context], grid: Sequence[ArrayLike]) -> Dense:
        """The prediction on a grid: each time by itself, with its full covariance over space.

        Parameters
        ----------
        context : tuple of arrays, or a list of such tuples
            Coordinates and values (t, x, u), like `Points` of `probconserv.data`, each (n, N) or,
            for one function, (N,). A list may hold functions with different N.
        grid : sequence of arrays
            One axis for each coordinate, (T,) and (M,).

        Returns
        -------
        Dense, shape (n, T, M)
            In float64, without n for one function. It is u itself: a new observation has `noise**2`
            more variance.

        Raises
        ------
        InputError
            If the process has no parameters yet: call `fit` first.
        """
        seen, prior = self._seen(context), self._prior()
        places, shape = read_grid(grid, self.inputs, seen.u)
        root = _root(prior, seen)
        white = solve_triangular(root, _rest(prior, seen), upper=False)
        n, times, size = len(seen.u), shape[0], math.prod(shape[1:])
        mean = places.new_empty(n, times, size)
        covariance = places.new_empty(n, times, size, size)
        for i in track(range(times), "Predicting"):
            here = places[i * size : (i + 1) * size].expand(n, -1, -1)
            cross = _k(prior.kernel, seen.known, here) * seen.there[..., None]  # (n, N, M)
            half = solve_triangular(root, cross, upper=False)
            mean[:, i] = prior.mean + (half.mT @ white)[..., 0]
            before = _k(prior.kernel, here, here)
            torch.sub(before, half.mT @ half, out=covariance[:, i])
            _clean(covariance[:, i], before, half.shape[-2])
        mean, covariance = mean.reshape(n, *shape), covariance.reshape(n, *shape, *shape[1:])
        if alone(context):
            mean, covariance = mean[0], covariance[0]
        return Dense(mean, covariance, event_dims=len(shape) - 1)

    def _seen(self, context: Context | list[Context]) -> _Seen:
        parameters = [] if self.kernel is None else [p.detach() for p in self.kernel.parameters()]
        like = parameters[0] if parameters else torch.zeros((), dtype=torch.float64)
        known, u, mask = read_context(context, self.inputs, like)
        known, u = known.clone(), u.clone()  # not the caller's, which may not be differentiated
        return _Seen(known, u, torch.ones_like(u) if mask is None else (~mask).to(u))

    def _prior(self) -> _Prior:
        parameters = {"kernel": self.kernel, "mean": self.mean, "noise": self.noise}
        missing = [f"`{name}`" for name, value in parameters.items() if value is None]
        if self.mean is None or self.noise is None or missing:
            raise InputError(
                f"the process has no {', '.join(missing)} yet. Call `fit(context)` first, or give "
                "them to GaussianProcess."
            )
        return _Prior(self.kernel, _number(self.mean), _number(self.noise))


def _starts(seen: _Seen) -> list[Kernel]:
    """Default kernels at the scale of the data, with parameters in logarithms: units do not matter.

    A coordinate that does not vary has no scale; any length does.
    """
    known, values = seen.known[seen.there > 0], seen.u[seen.there > 0]
    extent = known.amax(0) - known.amin(0)
    extent = torch.where(extent > 0, extent, 1.0)
    return [_default_kernel(extent * start, values.var(correction=0)) for start in STARTS]


def _default_kernel(lengths: Tensor, variance: Tensor) -> Kernel:
    in_logs = {"transform": torch.exp, "inv_transform": torch.log}
    matern = kernels.MaternKernel(
        nu=1.5, ard_num_dims=len(lengths), lengthscale_constraint=Positive(**in_logs)
    )
    kernel = kernels.ScaleKernel(matern, outputscale_constraint=Positive(**in_logs)).to(lengths)
    kernel.initialize(outputscale=variance)
    matern.initialize(lengthscale=lengths)
    return kernel


@torch.enable_grad()
def _search(
    kernel: Kernel, mean: float | None, noise: float | None, seen: _Seen
) -> tuple[float, _Prior]:
    """The smallest -log p(u) per observation from here, and where it is; numbers stay."""
    values = seen.u[seen.there > 0]
    centre, spread = values.mean(), values.std(correction=0)
    shift = torch.zeros_like(spread, requires_grad=mean is None)
    log_noise = torch.full_like(spread, math.log(0.1), requires_grad=noise is None)
    free = [p for p in (shift, log_noise, *kernel.parameters()) if p.requires_grad]

    def prior() -> _Prior:
        return _Prior(
            kernel,
            centre + spread * shift if mean is None else _number(mean),
            spread * (FLOOR + log_noise.exp()) if noise is None else _number(noise),
        )

    def loss() -> Tensor:
        here = prior()
        root, good = _factor(here, seen)
        if not good:
            return torch.full_like(spread, REFUSED)
        return -_log_likelihood(root, here, seen).sum() / len(values)

    def with_gradient() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        if value.requires_grad:
            value.backward()
        return value

    if free:
        optimizer = torch.optim.LBFGS(free, max_iter=200, line_search_fn="strong_wolfe")
        optimizer.step(with_gradient)
    with torch.no_grad():
        return float(loss()), prior()


def _factor(prior: _Prior, seen: _Seen) -> tuple[Tensor, bool]:
    """L with L L^T = k(known, known) + noise^2, and whether it is more than rounding."""
    there = seen.there
    matrix = _k(prior.kernel, seen.known, seen.known) * there[..., None] * there[..., None, :]
    matrix = matrix + torch.diag_embed(prior.noise**2 * there + (1 - there))  # padding: 1
    root, info = torch.linalg.cholesky_ex(matrix)
    left = root.diagonal(dim1=-2, dim2=-1) ** 2 / matrix.diagonal(dim1=-2, dim2=-1)
    least = matrix.shape[-1] * torch.finfo(matrix.dtype).eps
    return root, not bool(info.any()) and bool((left > least).all())


def _root(prior: _Prior, seen: _Seen) -> Tensor:
    root, good = _factor(prior, seen)
    if not good:
        raise DegenerateError(
            "the covariance of the observations is singular in float64: some lie too close to each "
            f"other for this kernel and `noise` {float(prior.noise):.3g}. Give a larger `noise`, "
            "a rougher or shorter kernel, or leave out observations."
        )
    return root


def _log_likelihood(root: Tensor, prior: _Prior, seen: _Seen) -> Tensor:  # (n,)
    white = solve_triangular(root, _rest(prior, seen), upper=False)
    log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    size = seen.there.sum(-1)
    return -0.5 * ((white**2).sum((-1, -2)) + log_det + size * math.log(2 * math.pi))


def _rest(prior: _Prior, seen: _Seen) -> Tensor:  # (n, N, 1)
    return ((seen.u - prior.mean) * seen.there)[..., None]


def _clean(after: Tensor, before: Tensor, steps: int) -> None:
    """What rounding left below 0 becomes 0, in place: variances, and directions.

    A difference is rounded like what it was taken from, which a smooth kernel leaves little of.
    """
    after.diagonal(dim1=-2, dim2=-1).clamp_(min=0)
    torn = torch.linalg.cholesky_ex(after).info > 0  # (n,)
    if not bool(torn.any()):
        return
    values, vectors = torch.linalg.eigh(after[torn])
    lost = (steps + after.shape[-1]) * torch.finfo(after.dtype).eps
    least = -lost * before[torn].diagonal(dim1=-2, dim2=-1).sum(-1)
    root = vectors * values.clamp(min=0).sqrt()[..., None, :]
    mended = (values[:, 0] >= least)[:, None, None]  # else the kernel itself is at fault
    after[torn] = torch.where(mended, root @ root.mT, after[torn])


def _k(kernel: Kernel, a: Tensor, b: Tensor) -> Tensor:  # (n, N, M)
    return kernel(a, b).to_dense()


def _checked(name: str, x: ArrayLike, least: float = -math.inf) -> float:
    number = check.as_tensor(name, x)
    check.finite(name, number, least, "It is a standard deviation.")
    return float(number)


def _number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)
