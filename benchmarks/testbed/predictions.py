"""Predictions of train.py and the truth at the same steps.

    python benchmarks/testbed/predictions.py build/testbed/runs

prints errors of the ensembles' means.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from equations import EQUATIONS
from networks import ARCHITECTURES
from safetensors import safe_open

Array = np.ndarray


@dataclass(frozen=True)
class Predictions:
    """Members (5, n, horizons, channels, *space) and truth (n, ...) of each of three sets.

    one_step: from true validation states, the times in place of the horizons.
    start: true first states of `test` and `beyond`. totals: their means over space at the
    horizons, of all steps `all_totals`. facts: of the training.
    """

    members: dict[str, Array]
    truth: dict[str, Array]
    start: dict[str, Array]
    totals: dict[str, Array]
    all_totals: dict[str, Array]
    horizons: Array
    facts: dict


def tensors(folder: Path, name: str) -> tuple[dict[str, Array], dict]:
    """All arrays of a run but its weights, and its facts."""
    found, facts = {}, {}
    for path in sorted(folder.rglob(f"{name}*.safetensors")):
        with safe_open(path, "numpy") as file:
            facts |= json.loads(file.metadata()["facts"])
            keys = [key for key in file.keys() if not key.startswith("weights.")]  # noqa: SIM118
            found |= {key: file.get_tensor(key) for key in keys}
    return found, facts


def read(
    folder: Path, equation: str, architecture: str, truths: Path = Path("build/testbed/truth")
) -> Predictions:
    """One run beside its truth."""
    found, facts = tensors(folder, f"{equation}-{architecture}")
    horizons, sets = found["horizons"], ("test", "beyond")
    with np.load(truths / f"{equation}.npz") as file:
        stored = {key: file[key] for key in file}
    at = np.searchsorted(stored["horizons"], horizons)
    if not np.array_equal(stored["horizons"][at], horizons):
        raise ValueError(f"The truth is stored at steps {stored['horizons']}, not {horizons}.")
    counts = {key: found[key].shape[1] for key in sets}
    truth = {key: stored[key][: counts[key], at] for key in sets}
    truth["one_step"] = stored["validation"][:, found["one_step_from"] + 1]
    return Predictions(
        {key: found[key] for key in (*sets, "one_step")},
        truth,
        {key: stored[key][: counts[key], 0] for key in sets},
        {key: stored[f"{key}_totals"][: counts[key], horizons] for key in sets},
        {key: stored[f"{key}_totals"][: counts[key]] for key in sets},
        horizons,
        facts,
    )


def errors(members: Array, truth: Array) -> Array:
    """Root mean square errors of the members' mean over the truth's spread, by horizon."""
    axes = (0, *range(2, truth.ndim))
    error = np.sqrt(((members.mean(0, dtype=float) - truth) ** 2).mean(axes))
    return error / truth.std(axes)


if __name__ == "__main__":
    for equation in EQUATIONS:
        for architecture in ARCHITECTURES:
            if not list(Path(sys.argv[1]).rglob(f"{equation}-{architecture}.safetensors")):
                continue
            run = read(Path(sys.argv[1]), equation, architecture)
            print(equation, architecture, *run.horizons)
            for key in ("test", "beyond"):
                found = errors(run.members[key], run.truth[key])
                print(f"  {key}:", " ".join(f"{x:.2e}" for x in found))
