"""What laws did to held-out data: paired differences to no law, and a verdict in words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from ..support.errors import InputError
from ..support.json_files import keep, kept
from ..support.tolerances import ALIKE
from ..support.values import choice
from ..support.values import samples as as_count

Answer: TypeAlias = Literal["helps", "harms", "no difference", "too few"]
Numbers: TypeAlias = NDArray[np.float64]  # (n, T): functions, times
Groups: TypeAlias = Literal["time"] | Sequence[Any] | NDArray[Any] | None
SURE = 0.95  # of the interval of a difference that says helps or harms
POWER = 0.8  # with which a difference shows that is called one that functions could show
FEWEST = 5  # functions: of fewer nothing is said
HIGHER = ("LL",)  # scores of which more is better
SHARES = ("coverage_50", "coverage_90", "coverage_99")  # of which neither is


def is_higher(score: str) -> bool:
    """Whether more of a score is better, also of one field of a state: "u: LL"."""
    return score.split(": ")[-1] in HIGHER


def is_share(score: str) -> bool:
    """Whether neither more nor less of a score is better."""
    return score.split(": ")[-1] in SHARES


@dataclass(frozen=True)
class Difference:
    """What a way changes in a score, beside no law, over functions.

    Attributes
    ----------
    way, score, group : str
        What is compared; the group is "all" where there is one.
    count : int
        How many functions.
    base, value : float
        The mean score with no law, and of the way.
    gain : float
        How much better the way is on average, in units of the score: below 0 it is worse.
    error : float
        The standard error of `gain` over functions.
    answer : {"helps", "harms", "no difference", "too few"}
        "helps" or "harms" where the 95 % interval of `gain`, by Student's t, leaves out 0. "too
        few" below five functions.
    least : float
        The smallest true gain that so many functions would find, with a probability of 80 %.
    better : float
        The share of functions that the way makes better.
    losers : tuple of int
        The functions that lose most, the worst first.
    """

    way: str
    score: str
    group: str
    count: int
    base: float
    value: float
    gain: float
    error: float
    answer: Answer
    least: float
    better: float
    losers: tuple[int, ...]

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `gain`; infinite below two functions."""
        half = half_width(self.error, self.count)
        return self.gain - half, self.gain + half

    def __str__(self) -> str:
        where = "" if self.group == "all" else f" at {self.group}"
        if self.answer == "too few":
            return (
                f"`{self.way}`{where}: {self.count} functions say nothing; give at least {FEWEST}."
            )
        if self.answer == "no difference":
            return (
                f"`{self.way}`{where}: no difference in {self.score} that {self.count} functions "
                f"could show; {self._share(self.least)} would show."
            )
        better = f"better in {self.better:.0%} of {self.count} functions"
        return f"`{self.way}`{where} {self.answer}: {self.change}, {better}."

    @property
    def change(self) -> str:
        """The gain in words, with its standard error."""
        word = "lower" if (self.gain > 0) != (is_higher(self.score)) else "higher"
        size, error = self._share(abs(self.gain)), self._share(self.error)
        return f"{self.score} is {size} {word} (standard error {error})"

    def _share(self, x: float) -> str:
        if is_higher(self.score) or not self.base:
            return f"{x:.3g}"
        return f"{x / abs(self.base):.1%}"


@dataclass(frozen=True)
class Reach:
    """How much of the error lies along the move that a way makes.

    Attributes
    ----------
    share : float
        The part of the squared error that goes if each move has its best length, which is 0 where
        it points away. A move in a random direction has 1 / 2M of M points.
    multiple : float
        The multiple of the moves that would be best. 1: they are right. Between 0 and 1: they go
        too far, and the laws should have noise. Below 0: they go the wrong way.
    """

    share: float
    multiple: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """Scores of several ways to use laws, on the same functions. `compare` makes it.

    Attributes
    ----------
    scores : dict of dict of array, each (n, T)
        By way and by score: a number for each function and time. The first way is no law.
    moves : dict of array, (3, n, T)
        By way: move times error, the squared move and the squared error, summed over points.
    failed : dict of str
        The ways that ended in an error, and what it said.
    notes : dict of str
        What warnings the ways gave.
    functions, times : tuple of str
        What each function and each time is called; empty where they are numbered.
    remarks : tuple of str
        What else one should know of these numbers.
    """

    scores: Mapping[str, Mapping[str, Numbers]]
    moves: Mapping[str, Numbers]
    failed: Mapping[str, str]
    notes: Mapping[str, str]
    functions: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def ways(self) -> tuple[str, ...]:
        """The names of the ways that were scored; the first is no law."""
        return tuple(self.scores)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the scores."""
        return tuple(self.scores[self.ways[0]])

    @property
    def verdict(self) -> str:
        """What each way does to CRPS over all times, a sentence each, and what went wrong."""
        lines = [str(self.difference(way)) for way in self.ways[1:]]
        lines += [f"`{way}` failed: {why}" for way, why in self.failed.items()]
        lines += [f"`{way}` warned: {why}" for way, why in self.notes.items()]
        lines = lines or ["There is no way to compare with no law."]
        return "\n".join([*lines, *self.remarks])

    def difference(self, way: str, score: str = "CRPS", by: Groups = None) -> Any:
        """What a way changes in a score.

        Parameters
        ----------
        way, score : str
            One of `ways`, one of `names`.
        by : "time", or an array of labels
            What is looked at by itself: each time; or labels, (n,) of functions, (T,) of times, or
            (n, T). If it is not given, all functions and times together.

        Returns
        -------
        Difference, or dict of Difference by the name of the group if `by` is given
            Times and functions at which one of the two has no number do not count.
        """
        choice("way", way, self.ways)
        choice("score", score, self.names)
        base, own = (self.scores[one][score] for one in (self.ways[0], way))
        groups = groups_of(by, base.shape, self.times)
        known = ~np.isnan(base) & ~np.isnan(own)
        found = {
            name: difference_of(way, score, name, _mean(base, there), _mean(own, there))
            for name, there in ((name, there & known) for name, there in groups.items())
        }
        return found["all"] if by is None else found

    def reach(self, way: str, by: Groups = None) -> Any:
        """How much of the error lies along what a way moves.

        Parameters
        ----------
        way : str
            One of `ways`.
        by : as in `difference`

        Returns
        -------
        Reach, or dict of Reach if `by` is given
            NaN where the way moves nothing.
        """
        choice("way", way, self.ways)
        along, moved, error = self.moves[way]
        found = {}
        for name, there in groups_of(by, along.shape, self.times).items():
            own = there & (moved > 0)
            taken = (np.maximum(along[own], 0.0) ** 2 / moved[own]).sum()
            known = bool(own.any())
            found[name] = Reach(
                float(taken / error[there].sum()) if known else math.nan,
                float(along[own].sum() / moved[own].sum()) if known else math.nan,
            )
        return found["all"] if by is None else found

    def table(self, score: str = "CRPS", by: Groups = None) -> str:
        """A table in Markdown: for each way the score, the gain with its error, and the answer.

        Parameters
        ----------
        score, by : as in `difference`

        Returns
        -------
        str
            With `by` a line for each way and group.
        """
        heads = ["way", *["group"] * (by is not None), score, "gain", "standard error", "better in"]
        lines = [*heads, "answer", "reach", "best multiple"]
        rows = ["| " + " | ".join(lines) + " |", "|---" * len(lines) + "|"]
        for way in self.ways:
            each, reach = self.difference(way, score, by), self.reach(way, by)
            each, reach = ({"all": x} if by is None else x for x in (each, reach))
            for name, one in each.items():
                first = way == self.ways[0]
                cells = [way, *[name] * (by is not None), f"{one.value:.4g}"]
                cells += [""] * 6 if first else _cells(one, reach[name])
                rows.append(f"| {' | '.join(cells)} |")
        return "\n".join(rows)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain numbers and words, for JSON."""
        return {
            "verdict": self.verdict,
            "functions": list(self.functions),
            "times": list(self.times),
            "remarks": list(self.remarks),
            "differences": [
                {key: _json(x) for key, x in asdict(self.difference(way, score)).items()}
                for way in self.ways[1:]
                for score in self.names
            ],
            "scores": {
                way: {name: _plain(x) for name, x in scores.items()}
                for way, scores in self.scores.items()
            },
            "moves": {way: _plain(x) for way, x in self.moves.items()},
            "failed": dict(self.failed),
            "notes": dict(self.notes),
        }

    def save(self, path: str | Path) -> None:
        """Keeps it as JSON, which `Comparison.load` reads.

        Parameters
        ----------
        path : str or Path
            The file.
        """
        keep(path, "comparison", self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> "Comparison":
        """What `save` kept.

        Parameters
        ----------
        path : str or Path
            The file.

        Returns
        -------
        Comparison
            The same numbers.

        Raises
        ------
        InputError
            If the file is none of these.
        """

        def made(words: dict[str, Any]) -> "Comparison":
            scores = {
                way: {name: _numbers(x) for name, x in each.items()}
                for way, each in words["scores"].items()
            }
            if not scores or set(scores) != set(words["moves"]):
                raise ValueError("no ways")
            moves = {way: _numbers(x) for way, x in words["moves"].items()}
            said = (tuple(words.get(key, ())) for key in ("functions", "times", "remarks"))
            return cls(scores, moves, words["failed"], words["notes"], *said)

        return kept(path, "comparison", made)

    def losers(self, way: str, score: str = "CRPS", most: int = 5) -> tuple[int, ...]:
        """The functions that lose most by a way, the worst first.

        Parameters
        ----------
        way, score : str
            As in `difference`.
        most : int
            How many at most.

        Returns
        -------
        tuple of int
            Their numbers along axis 0; none that gains.
        """
        found: tuple[int, ...] = self.difference(way, score).losers[: as_count(most, "most")]
        return found

    def __repr__(self) -> str:
        n, times = self.scores[self.ways[0]][self.names[0]].shape
        return f"Comparison({len(self.ways)} ways, {n} functions, {times} times)\n{self.verdict}"


def _cells(one: Difference, reach: Reach) -> list[str]:
    known = is_share(one.score)
    return [
        "" if known else f"{one.gain:.3g}",
        f"{one.error:.2g}",
        "" if known else f"{one.better:.0%}",
        "" if known else one.answer,
        f"{reach.share:.0%}" if reach.share == reach.share else "",
        f"{reach.multiple:.2f}" if reach.multiple == reach.multiple else "",
    ]


def groups_of(
    by: Groups, shape: tuple[int, ...], called: Sequence[str] = ()
) -> dict[str, NDArray[np.bool_]]:
    """What counts in each group, (n, T); called: the names of the times."""
    n, times = shape
    if by is None:
        return {"all": np.ones(shape, bool)}
    if isinstance(by, str):
        choice("by", by, ("time",))
        names = called or [f"time {i}" for i in range(times)]
        return {name: np.broadcast_to(np.arange(times) == i, shape) for i, name in enumerate(names)}
    labels = _labels(by)
    if labels.ndim == 1 and n == times:
        raise InputError(
            f"`by` has {len(labels)} labels, and there are as many functions as times: give it as "
            "(n, 1) for functions or (1, T) for times."
        )
    if labels.ndim == 1 and len(labels) == n:
        labels = labels[:, None]
    try:
        labels = np.broadcast_to(labels, shape)
    except ValueError:
        raise InputError(
            f"`by` must be labels of {n} functions, of {times} times, or ({n}, {times}); got shape "
            f"{labels.shape}."
        ) from None
    return {str(name): labels == name for name in dict.fromkeys(labels.flatten().tolist())}


def _labels(by: Any) -> NDArray[Any]:
    """Words or numbers, one for each function or time."""
    try:
        labels = np.asarray(by)
        if labels.dtype == object or labels.dtype.kind not in "biufSUM" or not labels.ndim:
            raise ValueError("no labels")
    except (ValueError, TypeError):
        raise InputError(
            f"`by` must be 'time', or an array of labels, words or numbers; got {by!r:.40}."
        ) from None
    return labels


def _mean(x: Numbers, there: NDArray[np.bool_]) -> Numbers:
    """The mean over what counts of each function, (n,); NaN where nothing does."""
    counts = there & ~np.isnan(x)
    number = counts.sum(1)
    total = np.where(counts, x, 0.0).sum(1)
    found: Numbers = np.where(number > 0, total / np.maximum(number, 1), np.nan)
    return found


def difference_of(way: str, score: str, group: str, base: Numbers, own: Numbers) -> Difference:
    sign = 1 if is_higher(score) else -1
    gains = sign * (own - base)
    known = np.isfinite(gains)
    which, gains = np.flatnonzero(known), gains[known]
    n, no = len(gains), math.nan
    if not n:
        return Difference(way, score, group, 0, no, no, no, no, "too few", no, no, ())
    gain = float(gains.mean())
    error = float(gains.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    order = np.argsort(gains, kind="stable")
    losers = tuple(int(which[i]) for i in order if gains[i] < 0)
    return Difference(
        way,
        score,
        group,
        n,
        float(base[known].mean()),
        float(own[known].mean()),
        gain,
        error,
        answer_of(gain, error, n, float(np.abs(base[known]).mean())),
        least_shown(error, n),
        float((gains > 0).mean()),
        losers,
    )


def answer_of(gain: float, error: float, n: int, size: float = 0.0) -> Answer:
    """Whether a mean difference of n functions says anything; size: of what it is a difference."""
    if n < FEWEST:
        return "too few"
    if abs(gain) <= ALIKE * size or abs(gain) <= half_width(error, n):
        return "no difference"
    return "helps" if gain > 0 else "harms"


def half_width(error: float, n: int) -> float:
    """Half of the interval of a mean of n functions."""
    return math.inf if n < 2 else float(stdtrit(n - 1, (1 + SURE) / 2)) * error


def least_shown(error: float, n: int) -> float:
    """The difference that n functions would show with probability `POWER`."""
    if n < 2:
        return math.nan
    ends = (float(stdtrit(n - 1, p)) for p in ((1 + SURE) / 2, POWER))
    return sum(ends) * error


def combined(
    found: Mapping[str, Mapping[str, Numbers]], fields: Sequence[str], scores: Sequence[str]
) -> dict[str, dict[str, Numbers]]:
    """With the mean over fields of each score, named "field: score", in units of that of no law.

    LL and shares have no unit.
    """
    first = next(iter(found.values()))
    together: dict[str, dict[str, Numbers]] = {}
    for way, own in found.items():
        mean = {}
        for score in scores:
            names = [f"{field}: {score}" for field in fields]
            plain = is_higher(score) or is_share(score)
            units = [1.0 if plain else _size(first[name]) for name in names]
            mean[score] = np.mean([own[n] / u for n, u in zip(names, units, strict=True)], 0)
        together[way] = {**mean, **own}
    return together


def _size(base: Numbers) -> float:
    known = base[np.isfinite(base)]
    return float(np.abs(known).mean()) or 1.0 if known.size else 1.0


def _plain(x: Numbers) -> list[Any]:
    """Numbers for JSON, which has no NaN."""
    wide = x.astype(object)
    wide[~np.isfinite(x)] = None
    found: list[Any] = wide.tolist()
    return found


def _json(x: Any) -> Any:
    return None if isinstance(x, float) and not math.isfinite(x) else x


def _numbers(x: list[Any]) -> Numbers:
    return np.array(x, dtype=object).astype(float)
