"""Made-up records and pictures for the tests of the report, and its numbers read back."""

import re

from matplotlib.figure import Figure

from probconserv.experiments.paper import METHODS
from probconserv.experiments.paper._figures import panels
from probconserv.experiments.paper._report import Picture

PLAN = {"recipe": "modern", "protocol": "ours", "n": 7, "samples": 11}
COVERED = {f"coverage_{level}": level / 100 - 0.02 for level in (50, 90, 99)}


def record(problem, parameter, method, number=0, **changes):
    """Numbers that differ between methods; those that conserve do so to rounding."""
    conserves = method.startswith(("HardC", "ProbConserv"))
    scores = {
        "CE": 3e-17 if conserves else -0.0131 - 0.001 * number,
        "LL": 3.5 + 0.125 * number,
        "MSE": 0.0054 / (number + 1),
        "CRPS": 0.031 - 0.004 * number,
        "energy": 0.51 - 0.04 * number,
        **COVERED,
    }
    errors = {f"{metric}_se": abs(score) / 50 for metric, score in scores.items()}
    where = {"problem": problem, "parameter": parameter, "time": 0.05, "method": method}
    return where | PLAN | scores | errors | changes


def cell(problem, parameter, methods=tuple(METHODS)):
    return [record(problem, parameter, method, i) for i, method in enumerate(methods)]


def penalties(*values, parameter=3.0):
    """SoftC-ANP on the porous medium equation, for each lambda."""
    return [
        record("pme", parameter, "SoftC-ANP" if value else "ANP", i, penalty=value)
        for i, value in enumerate(values)
    ]


def positions(problem, parameter):
    """Of the front, by both rules."""
    return [
        {"problem": problem, "parameter": parameter, "time": 0.05, "method": method}
        | {"rule": rule, "level": level, "true": 0.2351, "mean": 0.2 + 0.01 * i, "std": 0.01}
        | {"none": 0.025}
        for i, method in enumerate(METHODS)
        for rule, level in (("point", 0.0), ("crossing", 0.3))
    ]


def picture(problem, parameter, kind="mass", count=1, caption="The total over time."):
    figure = Figure(layout="constrained")
    for axes in figure.subplots(1, count, squeeze=False)[0]:
        axes.plot([0, 1, 2], [0.0, 0.6, parameter], label="ANP")
        axes.set(xlabel="t", ylabel="total of u")
        axes.legend()
    drawn = panels(figure, f"{problem}-{parameter}-{kind}")
    return Picture(problem, parameter, kind, caption, drawn)


def assert_shows(text, record, metric, power):
    """The text is the number of the record in that power of ten, to the last digit that it has."""
    if text == "0":
        assert metric == "CE"
        assert abs(record["CE"]) < 1e-12
        return
    numbers = re.findall(r"-?\d+\.\d+", text.replace("\N{MINUS SIGN}", "-"))
    digits = len(numbers[0].partition(".")[2])
    known = [record[metric], record[f"{metric}_se"]] if "(" in text else [record[metric]]
    assert numbers == [f"{number / 10.0**power:.{digits}f}" for number in known]
    assert ("(" in text) == (metric in ("CE", "LL", "MSE"))


def power(heading):
    """Of ten, that the numbers below the heading are in."""
    found = re.search("in (%|10([\\d\N{MINUS SIGN}]+))", re.sub("<.*?>", "", heading))
    if found is None:
        return 0
    return -2 if found[1] == "%" else int(found[2].replace("\N{MINUS SIGN}", "-"))
