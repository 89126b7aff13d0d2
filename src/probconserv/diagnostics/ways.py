"""Ways to use laws: which of them, how, and with which variance of the prediction.

A way is a small card. It is called with a prediction and laws, gives what comes out, and can be
kept in a file. `compare` scores several of them, `select` finds one.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import count
from numbers import Real
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from ..conditioning.condition import AnyLaw, condition, laid_on, project
from ..conditioning.draws import Draws
from ..conditioning.loop.linearised import MOST_DENSE
from ..conditioning.posterior import Posterior
from ..fields.covariances import Correlated
from ..fields.gaussian import Diagonal, Field
from ..fields.low_rank import LowRank
from ..fields.mixture import Mixture
from ..fields.state import Prediction, State, as_field, covariance_of, rebuilt
from ..laws.inequalities import Inequality
from ..laws.law import Law, Rows
from ..laws.nonlinear import NonlinearLaw
from ..solvers.engine import free_axes
from ..solvers.shrinkage import shrunk
from ..support import checks as check
from ..support.errors import InputError
from ..support.json_files import keep, kept
from .inflate import inflate, scaled
from .tangents import plain

How: TypeAlias = Literal["none", "project", "condition"]
Points: TypeAlias = Literal["given", "independent", "moments"]
HOWS, POINTS = ("none", "project", "condition"), ("given", "independent", "moments")
LARGEST = 1e30  # of what standard deviations are multiplied with


@dataclass(frozen=True)
class Way:
    """What is done with a prediction: a card that is called as ``way(prediction, *laws)``.

    Parameters
    ----------
    how : {"condition", "project", "none"}
        The update, the nearest field by least squares, or nothing.
    laws : tuple of str, or None
        The names of the laws that are used, as `names_of` has them; None for all that are given.
    scale : float
        What standard deviations are multiplied with first.
    common : float
        The correlation between any two points of a `Diagonal` prediction, from 0 to 1.
    noise : float
        The noise of the laws, in standard deviations that the prediction gives their rows. A law
        then moves the prediction 1 / (1 + noise^2) of the way. Limits and bounds have none.
    inflated : bool
        Whether the variance is widened by what the laws miss, as `inflate` does.
    points : {"given", "independent", "moments"}
        Whether the prediction is taken as it is, as independent points, or, of a mixture, as the
        one Gaussian with its mean and covariance.
    draws : int
        How many draws, where there are inequalities.

    Examples
    --------
    >>> import probconserv as pc
    >>> way = Way(noise=1.0)
    >>> way(pc.Diagonal([[1.0, 1.0]], 1.0), pc.weighted_sum([1.0, 1.0], 4.0)).mean
    tensor([[1.5000, 1.5000]], dtype=torch.float64)
    """

    how: How = "condition"
    laws: tuple[str, ...] | None = None
    scale: float = 1.0
    common: float = 0.0
    noise: float = 0.0
    inflated: bool = False
    points: Points = "given"
    draws: int = 100

    def __post_init__(self) -> None:
        check.choice("how", self.how, HOWS)
        check.choice("points", self.points, POINTS)
        if not isinstance(self.inflated, bool):
            raise InputError(f"`inflated` must be True or False; got {self.inflated!r:.40}.")
        named = self.laws is None or isinstance(self.laws, tuple | list)
        if not named or not all(isinstance(name, str) for name in self.laws or ()):
            raise InputError(f"`laws` must be a tuple of names, or None; got {self.laws!r:.40}.")
        if not _is_number(self.scale) or not 0 < self.scale < LARGEST:
            raise InputError(f"`scale` must be a number above 0; got {self.scale!r:.40}.")
        if not _is_number(self.noise) or not 0 <= self.noise < LARGEST:
            raise InputError(
                f"`noise` must be a number that is not negative; got {self.noise!r:.40}."
            )
        plain = {
            "laws": None if self.laws is None else tuple(self.laws),
            "scale": float(self.scale),
            "common": float(check.between("common", self.common, 0, 1)),
            "noise": float(self.noise),
            "draws": int(check.samples(self.draws, "draws")),
        }
        for name, value in plain.items():  # as JSON keeps them
            object.__setattr__(self, name, value)

    def __call__(
        self,
        prediction: Prediction | State,
        *laws: AnyLaw,
        generator: torch.Generator | None = None,
    ) -> Field | State:
        """The prediction, with what the card says done to it.

        Parameters
        ----------
        prediction : Field, State, or what `as_field` takes
            Before any law.
        *laws : Law, NonlinearLaw or Inequality
            All that the card names, and others, which it leaves out.
        generator : torch.Generator
            The source of draws, where there are inequalities.

        Returns
        -------
        Field or State
            The prediction itself with another variance, or what `condition` or `project` returns.
        """
        chosen = self.chosen(laws)
        prior = self.prior(prediction, chosen)
        if self.how == "none" or not chosen:
            return prior
        if self.how == "project":
            found: Any = project(prior, *chosen)
            return found
        given = [noisier(prior, law, self.noise) for law in chosen] if self.noise else chosen
        return condition(prior, *given, draws=self.draws, generator=generator)

    def chosen(self, laws: Sequence[AnyLaw]) -> list[AnyLaw]:
        """The laws that it uses."""
        if self.laws is None:
            return list(laws)
        known = dict(zip(names_of(laws), laws, strict=True))
        for name in self.laws:
            if name not in known:
                raise InputError(
                    f"`laws`: this way uses the law {name!r}, but those given are "
                    f"{', '.join(map(repr, known)) or 'none'}."
                )
        return [known[name] for name in self.laws]

    def prior(self, prediction: Prediction | State, laws: Sequence[AnyLaw] = ()) -> Field | State:
        """The prediction with the variance that the card says."""
        given: Field | State = prediction if isinstance(prediction, State) else as_field(prediction)
        parts = tuple(self._part(field, laws) for field in given.parts)
        found = given if parts == given.parts else rebuilt(given, parts)
        return inflate(found, *laws) if self.inflated else found

    def _part(self, field: Field, laws: Sequence[AnyLaw]) -> Field:
        if self.points == "moments":
            field = plain(field)
        elif self.points == "independent" and not isinstance(field, Diagonal):
            field = Diagonal(field.mean, field.variance)
        if self.scale != 1:
            field = scaled(field, torch.tensor(self.scale**2, dtype=torch.float64))
        if self.common and isinstance(field, Diagonal):
            dims = max((getattr(law, "space_dims", 1) for law in laws), default=1)
            return LowRank.correlated(
                field.mean, field.variance, correlation=self.common, event_dims=dims
            )
        return field

    def __str__(self) -> str:
        words = [{"none": "no law", "project": "project", "condition": "condition"}[self.how]]
        if self.how != "none" and self.laws is not None:
            words[0] += f" on {' and '.join(self.laws)}"
        words += [f"{self.points} points"] * (self.points != "given")
        words += [f"standard deviations x {self.scale:.3g}"] * (self.scale != 1)
        words += ["inflated"] * self.inflated
        words += [f"correlation {self.common:.3g}"] * bool(self.common)
        words += [f"noise {self.noise:.3g}"] * bool(self.noise)
        return ", ".join(words)

    def save(self, path: str | Path) -> None:
        """Keeps it as JSON, which `Way.load` reads.

        Parameters
        ----------
        path : str or Path
            The file.
        """
        keep(path, "way", asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> "Way":
        """The card that `save` kept.

        Parameters
        ----------
        path : str or Path
            The file.

        Returns
        -------
        Way
            The same.

        Raises
        ------
        InputError
            If the file is none of these.
        """

        def made(words: dict[str, Any]) -> "Way":
            if set(words) != {field.name for field in fields(cls)}:
                raise ValueError("other entries than those of a card")
            return cls(**words)

        return kept(path, "way", made)


def _is_number(x: object) -> bool:
    return isinstance(x, Real) and not isinstance(x, bool) and math.isfinite(x)


def names_of(laws: Sequence[AnyLaw]) -> list[str]:
    """What laws are called in tables and cards: their labels, with the fields that they read.

    Parameters
    ----------
    laws : sequence of laws
        In any order.

    Returns
    -------
    list of str
        One for each; the second of the same name ends in 2.

    Examples
    --------
    >>> import probconserv as pc
    >>> names_of([pc.integral([0.0, 1.0], 1.0), pc.integral([0.0, 2.0], 1.0), pc.bounds(low=0.0)])
    ['integral', 'integral 2', 'bounds']
    """
    names: list[str] = []
    for law in laws:
        of = [name for name in getattr(law, "maps", {getattr(law, "of", ""): None}) if name]
        plain = law.label + (f" of {', '.join(of)}" if of else "")
        numbered = (f"{plain} {i}" for i in count(2))
        names.append(plain if plain not in names else next(n for n in numbered if n not in names))
    return names


def usual_ways(
    prediction: Field | State, laws: Sequence[AnyLaw], draws: int = 100
) -> dict[str, Way]:
    """The ways that `compare` tries: each law alone, all, by least squares, and widened first."""
    names, ways = names_of(laws), {"no law": Way("none")}
    if not laws:
        return ways
    posterior = is_posterior(prediction)
    if all(is_exact(law) for law in laws) and not posterior:
        ways["project"] = Way("project")
    if len(laws) > 1:
        ways |= {f"condition on {name}": Way(laws=(name,)) for name in names}
    ways["condition"] = Way()
    kinds = {type(field) for field in prediction.parts}
    if kinds & {Mixture}:
        ways["condition as one Gaussian"] = Way(points="moments")
    elif kinds - {Diagonal} and not posterior:
        ways["condition as independent points"] = Way(points="independent")
    if any(has_value(law) for law in laws) and not posterior:
        ways["inflate and condition"] = Way(inflated=True)
    return {name: replace(way, draws=draws) for name, way in ways.items()}


def is_posterior(prediction: Field | State) -> bool:
    """Whether laws were given before: it can be conditioned again, and nothing else."""
    return isinstance(prediction, Posterior | Draws)


def is_exact(law: AnyLaw) -> bool:
    """Whether a law has no noise."""
    noise = getattr(law, "noise", None)
    return noise is None or not check.any_of(noise > 0)


def has_value(law: AnyLaw) -> bool:
    """Whether a law says a b, which a prediction can miss."""
    return not isinstance(law, Inequality) or bool(law.side)


def noisier(prior: Field | State, law: AnyLaw, noise: float) -> AnyLaw:
    """The law with so much more noise, in standard deviations that the prior gives its rows."""
    if isinstance(law, Inequality):
        return law
    other: Any = copy.copy(law)
    more = noise**2 * row_variance(prior, law)
    if isinstance(law, Law):
        other.noise_variance, other.exact = law.noise_variance + more, False
    else:
        other.noise = (law.noise.square() + more).sqrt()
    return other


def row_variance(prior: Field | State, law: Law | NonlinearLaw) -> Tensor:
    """The diagonal of G Sigma G^T, in the shape of `law.apply`; of a tangent at the mean."""
    given = prior if isinstance(prior, State) else plain(prior)
    if isinstance(law, Law):
        (rows,) = laid_on(given, [law])
        read = next(iter(law._named(given.names)))
        shape = given.parts[given.names.index(read)].shape
        return law.at_times(_diagonal(rows, given), shape)
    means = tuple(field._moments()[0] for field in given.parts)
    curved = law.on(given.names, means)
    found = _diagonal(curved.linearised(means, curved.count <= MOST_DENSE), given)
    return found.reshape(*found.shape[:-1], *curved.tail)


def _diagonal(rows: Rows, prior: Field | State) -> Tensor:
    found: Any = covariance_of(shrunk(prior, [rows]))
    own: Any = 0.0
    if isinstance(found, Correlated):
        found = found.joined(min(found.lead, free_axes([rows], found.shapes)))
        own, found = rows.apply(found.directions).square().sum(0), found.rest
    return own if found is None else own + rows.entrywise(2).apply(found.variance)
