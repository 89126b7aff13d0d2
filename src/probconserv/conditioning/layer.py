"""Laws as a layer of a network: `ConstraintLayer`."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn

from ..fields.ensemble import Ensemble
from ..fields.gaussian import Field
from ..fields.state import State
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from .condition import AnyLaw, _kinds, condition, project
from .held_law import Float64, HeldLaw, free_name

Std: TypeAlias = ArrayLike | Mapping[str, ArrayLike]
Returns: TypeAlias = Literal["same", "point", "moments", "posterior"]


class ConstraintLayer(Float64):
    """A module that makes what a model predicts obey laws: `condition`, as a layer of a network.

    What goes in comes out, after the laws::

        a mean                                    a mean
        a pair (mean, variance)                   such a pair
        members on axis 0, with members=True      members, each of which obeys
        a dict of means or pairs: a state         such a dict
        a field, a state, a distribution          its Posterior

    All tensors of the laws are buffers in float64. They move with the module and are in its
    `state_dict`; `.half()`, `.to(dtype)` and autocast change none of them. Results have the dtype
    of what goes in, but those of half precision are float32: rounded to bfloat16, totals would be
    off by up to 0.4 % of their terms.

    Parameters
    ----------
    *laws : Law, NonlinearLaw or Inequality
        One or more, as for `condition`. With an inequality the mean is the most probable field.
    std : float or array, or a dict of these
        The standard deviation of a mean that comes alone; it broadcasts to the field. Of members,
        that of what they leave out. Without it a mean goes to the nearest one that obeys, as by
        `project`.
    learn_std : bool
        True: `std` is where the parameter `log_std` starts, which is trained with the network.
    members : bool
        True: a tensor holds the members of an ensemble, on axis 0.
    batch_dims : int
        How many axes after that of the members number independent entries, as in `Ensemble`.
    returns : {"same", "point", "moments", "posterior"}
        "same": as the table says. "point": the mean alone, also of a pair.
        "moments": (mean, variance), also of a mean. "posterior": the `Posterior`.
    checks : bool
        False: nothing looks at a value, as in compiled code, and a GPU is never waited for. Then
        nobody says that a mean is NaN, a variance negative, that laws contradict each other, or
        that points move far. For linear laws; `audit` looks at a posterior afterwards.

    Attributes
    ----------
    laws : tuple
        The laws as the buffers make them, such as for ``layer.laws[0].residual(u)``.

    Raises
    ------
    InputError
        If there is no law, an option does not fit, or a law asks for a gradient.

    Examples
    --------
    >>> import probconserv as pc
    >>> layer = pc.ConstraintLayer(pc.integral([0.0, 1.0, 2.0], 1.0), std=0.1)
    >>> layer(torch.tensor([0.0, 0.5, 0.6]))
    tensor([0.0667, 0.6333, 0.6667])
    >>> layer(torch.tensor([0.0, 0.5, 0.6]), 1.4)  # another total
    tensor([0.2000, 0.9000, 0.8000])
    >>> list(layer.state_dict())
    ['std', 'integral.weights', 'integral.value', 'integral.noise_variance', 'integral.x']
    """

    def __init__(
        self,
        *laws: AnyLaw,
        std: Std | None = None,
        learn_std: bool = False,
        members: bool = False,
        batch_dims: int = 0,
        returns: Returns = "same",
        checks: bool = True,
    ) -> None:
        super().__init__()
        _, curved, inequalities = _kinds(laws)
        for name, given in (("learn_std", learn_std), ("members", members), ("checks", checks)):
            if not isinstance(given, bool):
                raise InputError(f"`{name}` must be True or False, got {given!r:.60}.")
        check.choice("returns", returns, ("same", "point", "moments", "posterior"))
        if members and returns != "same":
            raise InputError(
                f"`returns`: with `members=True` members come back, not {returns!r}. For that give "
                "the layer an `Ensemble`, and leave out `members`."
            )
        if not checks and (curved or inequalities):
            raise InputError(
                "`checks=False` is for linear laws: others are met by steps that look at values."
            )
        self.within = bool(inequalities)
        self.members, self.batch_dims = members, check.whole("batch_dims", batch_dims)
        self.returns, self.checks = returns, checks
        self._keep(std, learn_std)
        self._held = [self._add(HeldLaw(law)) for law in laws]

    def _keep(self, std: Std | None, learn: bool) -> None:
        """The standard deviation, as buffers or parameters; of a state by the names of fields."""
        self.learn_std = learn
        self.stds: dict[str, tuple[str, ...]] = {}  # where that of each field is; "": of all
        self.start: dict[str, Tensor] = {}  # of those that are learned
        if std is None:
            if learn:
                raise InputError("`learn_std` needs a `std` to start from, such as std=0.1.")
            return
        attribute, home = "log_std" if learn else "std", cast(Float64, self)
        by_name = isinstance(std, Mapping)
        if by_name:
            home = Float64()
            self.add_module(attribute, home)
        for field, x in cast(Any, std.items() if isinstance(std, Mapping) else [("", std)]):
            value = _checked_std(x, learn)
            name = free_name(home, field) if by_name else attribute
            self.stds[field] = (attribute, name) if by_name else (name,)
            if learn:  # with an axis: FSDP takes no parameters without one
                self.start[field] = torch.atleast_1d(value.log()).float()
                home.register_parameter(name, nn.Parameter(self.start[field].clone()))
            else:
                home.register_buffer(name, value)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Puts `log_std` back to the start, as after `to_empty`; the laws stay as they are."""
        for field, start in self.start.items():
            parameter = self._std(field)
            if start.numel() == 1:  # which also fills a parameter in shards
                parameter.fill_(float(start.sum()))
            else:
                parameter.copy_(start)

    def _std(self, field: str) -> Tensor:
        found: Any = self
        for name in self.stds[field]:
            found = getattr(found, name)
        return cast(Tensor, found)

    def _add(self, held: HeldLaw) -> str:
        """Registers a law under its label; the name."""
        name = free_name(self, held.shell.label)
        self.add_module(name, held)
        return name

    def _law(self, name: str) -> HeldLaw:
        return cast(HeldLaw, self._modules[name])

    @property
    def laws(self) -> tuple[Any, ...]:
        """The laws as the buffers make them: copies, which change nothing here."""
        return tuple([copy.copy(law) for law in self._with(())])

    def _with(self, totals: Sequence[ArrayLike | None]) -> tuple[Any, ...]:
        """The laws, with other values where some are given."""
        missing = len(self._held) - len(totals)
        if missing < 0:
            raise InputError(
                f"`totals`: there are {len(totals)} for {len(self._held)} laws. A mean with its "
                "variance is a pair: layer((mean, variance), total)."
            )
        pairs = zip(self._held, (*totals, *[None] * missing), strict=True)
        return tuple([self._law(name).law(value) for name, value in pairs])

    def forward(self, prediction: Any, *totals: ArrayLike | None) -> Any:
        """What a model predicts, after the laws.

        Parameters
        ----------
        prediction : Tensor, pair, dict, Field, State or distribution
            As in the table above.
        *totals : float, array or None
            A value for each law, in their order and in the shape of the law's `apply`, in place of
            its own; None, or nothing at the end, for those that stay. Gradients go through them.

        Returns
        -------
        Tensor, tuple, dict or Posterior
            As `returns` says.

        Raises
        ------
        InputError
            If `prediction` or a total does not fit.
        """
        if isinstance(prediction, Tensor) and not prediction.is_floating_point():
            prediction = check.as_tensor("prediction", prediction)
        kind = _device_of(prediction).type
        wide = torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else None
        looks = self.checks or torch.compiler.is_compiling()
        with wide or nullcontext(), nullcontext() if looks else check.unlooked():
            return self._after(prediction, self._with(totals))

    def _after(self, given: Any, laws: tuple[Any, ...]) -> Any:
        names = given if isinstance(given, Mapping) else ()
        unused = [name for name in self.stds if name and name not in names]
        if unused:
            raise InputError(
                f"`std` names the field {unused[0]!r}, but the prediction is "
                f"{'a dict of ' + ', '.join(names) if names else type(given).__name__}."
            )
        if self.members:
            return self._given(self._ensemble(given), laws).members()
        if not isinstance(given, Mapping):
            prior, alone = self._prior(given)
            return self._shown(self._given(prior, laws, alone), given)
        parts = {name: self._prior(one, name) for name, one in given.items()}
        bare = {alone for _, alone in parts.values()}
        if len(bare) > 1:
            raise InputError(
                "`prediction`: some fields come with a variance and some without. Give `std` by "
                "the names of fields for those without."
            )
        state = State(**{name: prior for name, (prior, _) in parts.items()})
        post = self._given(state, laws, True in bare)
        if self.returns == "posterior":
            return post
        return {name: self._shown(post[name], one) for name, one in given.items()}

    def _given(self, prior: Any, laws: tuple[Any, ...], alone: bool = False) -> Any:
        """Step 2. alone: whether means come without any variance."""
        if not alone:
            return condition(prior, *laws, **({"draws": 0} if self.within else {}))
        if self.returns in ("moments", "posterior"):
            raise InputError(
                f"`std`: the layer returns {self.returns!r}, but the mean comes without a variance "
                "and the layer has no `std`."
            )
        noisy = [name for name in self._held if self._law(name).noisy]
        if noisy:
            raise InputError(
                f"`std`: `{noisy[0]}` has noise, which is weighed against the variance, but the "
                "mean comes without one. Give `std`, or (mean, variance)."
            )
        return project(prior, *laws)

    def _prior(self, given: Any, name: str = "") -> tuple[Any, bool]:
        """A field or a pair; and whether its variance is 1 because it has none."""
        if isinstance(given, Tensor):
            mean = _single(given)
            variance = self._variance(name, mean.dtype)
            if variance is not None:
                return (mean, variance), False
            return (mean, torch.ones((), dtype=mean.dtype, device=mean.device)), True
        if self._variance(name, torch.float64) is not None:
            raise InputError(
                "`std`: the prediction has a variance of its own, as a pair, a field or a "
                "distribution. Leave out `std`, or give the mean alone."
            )
        return given, False

    def _variance(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """Of means that come alone."""
        field = name if name in self.stds else ""
        if field not in self.stds:
            return None
        std = self._std(field)
        return (2 * std.to(dtype)).exp() if self.learn_std else std.square().to(dtype)

    def _ensemble(self, given: Any) -> Any:
        if not isinstance(given, Tensor):
            raise InputError(
                "`prediction`: with `members=True` it is a tensor with members on axis 0; got "
                f"{type(given).__name__}. Members of several fields go into a layer without "
                "`members`, as `Ensemble(members)`."
            )
        members = _single(given)
        variance: Any = self._variance("", members.dtype)
        return Ensemble(members, variance, batch_dims=self.batch_dims)

    def _shown(self, post: Any, given: Any) -> Any:
        """A field after the laws, as it was given or as `returns` says."""
        form: str = self.returns
        if form == "same":
            pair = "moments" if isinstance(given, tuple | list) else "posterior"
            form = "point" if isinstance(given, Tensor) else pair
        if form == "posterior":
            return post
        if isinstance(post, State):
            return {name: self._shown(field, None) for name, field in post.fields.items()}
        return post.mean if form == "point" else (post.mean, post.variance)


def _checked_std(given: ArrayLike, learn: bool) -> Tensor:
    """In float64, with a square that float32 holds."""
    std = check.wide("std", given, 0, "It is a standard deviation.")
    square = std.square().float()
    lost = (std > 0) & ((square == 0) | square.isinf())
    if bool(lost.any()):
        raise InputError(
            f"`std` of {float(std[lost][0]):.3g} has a square that float32 does not hold. Choose "
            "another unit."
        )
    if learn and not bool((std > 0).all()):
        raise InputError("`std` must be above 0 where it is learned: its logarithm is.")
    return std


def _single(t: Tensor) -> Tensor:
    """Half precision as float32, which holds its squares."""
    return t.float() if t.is_floating_point() and t.dtype.itemsize == 2 else t


def _device_of(given: Any) -> torch.device:
    """Where a prediction is."""
    one = next(iter(given.values()), None) if isinstance(given, Mapping) else given
    one = one[0] if isinstance(one, tuple | list) and len(one) == 2 else one
    one = one.mean if isinstance(one, torch.distributions.Distribution) else one
    if not isinstance(one, Tensor | Field | State):
        raise InputError(
            "`prediction` must be a tensor, a pair (mean, variance) of tensors, a dict of these, a "
            f"field, a state or a distribution; got {type(given).__name__}."
        )
    return one.device
