"""The fixer against blunt fixers, where the truth is known.

    python benchmarks/fixer_comparison.py validation    what the fixer should be told
    python benchmarks/fixer_comparison.py test          the table and the picture of the docs
    python benchmarks/fixer_comparison.py drift [N]     N steps (10,000) in float64 and float32

The size of errors and leaks was set before the first comparison; the emulator that does not leak at
the top came after the first look at validation. What the fixer is told was chosen on the seeds for
validation. The errors that it learns from are of one step each, of other seeds again.
"""

import csv
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from blunt import BluntFixer

from probconserv.weather import Fixer, LearnedErrors
from probconserv.weather.testbed import LeakyEmulator, ToyAtmosphere

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs" / "research" / "data" / "fixers.csv"
PICTURE = ROOT / "docs" / "pictures" / "fixers.png"
NAMES = ("surface_pressure", "temperature", "specific_humidity", "precipitation")
MEMBERS, STEPS = 10, 120
LEARN, VALIDATE, TEST = (101, 102, 103, 104), (201, 202), (301, 302, 303, 304)
EMULATORS = {
    "leaky": {},
    "no leak": {"leak": 0.0},
    "no leak at the top": {"quiet_top": True},
    "three times the leak": {"leak": 0.09},
    "the same leak everywhere": {"uniform": True},
}
toy = ToyAtmosphere()
area = toy.grid.areas


def held_out(options):
    """Pairs of predicted and true states after one step from a true state."""
    pairs = []
    for seed in LEARN:
        emulator = LeakyEmulator(toy, seed=seed, **options)
        truth = emulator.truth(60)
        pairs += [(emulator.step(truth[k], k)[0], truth[k + 1]) for k in range(60)]
    return tuple({n: torch.cat([pair[i][n] for pair in pairs]) for n in NAMES} for i in (0, 1))


def ours(std: Callable | None = None, **how):
    fixer = Fixer(toy.grid, toy.levels, ledger=False)

    def fix(before, after, dt, fluxes):
        told = how if std is None else how | {"std": std(after)}
        return fixer(before, after, dt, fluxes, **told)

    return fix


def fixers(options):
    predicted, truth = held_out(options)
    learned = LearnedErrors(toy.grid, toy.levels, predicted, truth)
    rms = {n: (predicted[n] - truth[n]).square().mean(0).sqrt() for n in NAMES}
    spread = (predicted["temperature"] - truth["temperature"])[:, 0].std(0)
    spread = float((spread.square() * area).sum().sqrt())  # of one step at the top
    return spread, {
        "none": lambda: None,
        "blunt": lambda: BluntFixer(toy),
        "nothing": lambda: ours(),
        "spread of members": lambda: ours(members=MEMBERS),
        "errors of held-out steps": lambda: ours(lambda after: rms),
        "learned errors": lambda: ours(learned),
    }


def crps(members, truth):
    """Of each point, without the bias of few members."""
    n = len(members)
    order = torch.arange(1 - n, n, 2, dtype=torch.float64)
    apart = torch.tensordot(order, members.sort(0).values, dims=1) / (n * (n - 1))
    return (members - truth).abs().mean(0) - apart


def rollout(emulator, fixer, truth):
    """Scores by variable and level; correction and bias of the top in a step; negative values."""
    state = {n: emulator.begin[n].repeat_interleave(MEMBERS, 0) for n in NAMES}
    scores, top, negative = dict.fromkeys(NAMES, 0.0), torch.zeros(2, dtype=torch.float64), 0
    for number in range(STEPS):
        after, fluxes = emulator.step(state, number)
        fixed = after if fixer is None else fixer(state, after, emulator.dt, fluxes)
        for n in NAMES:
            score = (crps(fixed[n], truth[number + 1][n][0]) * area).sum((-2, -1))
            scores[n] = scores[n] + score / STEPS
        right, _ = toy.step(state, emulator.time(number), emulator.dt)
        other = torch.stack([after["temperature"][:, 0], right["temperature"][:, 0]])
        moved = ((fixed["temperature"][:, 0] - other) * area).sum((-2, -1))
        top += moved.mean(1) / STEPS
        negative += sum(int((fixed[n] < 0).sum()) for n in NAMES[2:])
        state = fixed
    return scores, top, negative


def one_step(emulator, fixer, truth):
    """Scores after a single step from the truth, at every tenth step."""
    scores = dict.fromkeys(NAMES, 0.0)
    for number in range(0, STEPS, 10):
        before = {n: truth[number][n].repeat_interleave(MEMBERS, 0) for n in NAMES}
        after, fluxes = emulator.step(before, number)
        made = fixer()
        fixed = after if made is None else made(before, after, emulator.dt, fluxes)
        for n in NAMES:
            score = (crps(fixed[n], truth[number + 1][n][0]) * area).sum((-2, -1))
            scores[n] = scores[n] + score / (STEPS / 10)
    return scores


def over_levels(score):
    """Levels weighted by their mass."""
    if not score.dim():
        return float(score)
    mass = (toy.levels.thickness(toy.start()["surface_pressure"])[0] * area).sum((-2, -1))
    return float((score * mass).sum() / mass.sum())


def compare(options, seeds):
    """For each fixer: the four ratios to blunt of a rollout and of a step, top, negatives."""
    spread, kinds = fixers(options)
    runs = {kind: [] for kind in kinds}
    for seed in seeds:
        emulator = LeakyEmulator(toy, seed=seed, **options)
        truth = emulator.truth(STEPS)
        for kind, make in kinds.items():
            runs[kind].append((*rollout(emulator, make(), truth), one_step(emulator, make, truth)))
    means = {}
    for kind, found in runs.items():
        scores, steps = ({n: sum(run[i][n] for run in found) for n in NAMES} for i in (0, 3))
        top = (sum(run[1] for run in found) / len(found) / spread).tolist()
        means[kind] = (scores, steps, top, sum(run[2] for run in found))
    rows = []
    for kind, (scores, steps, top, negative) in means.items():
        blunt, short = means["blunt"][:2]
        ratio = [over_levels(scores[n]) / over_levels(blunt[n]) for n in NAMES]
        short = [over_levels(steps[n]) / over_levels(short[n]) for n in NAMES]
        by_level = [(scores[n] / blunt[n]).tolist() for n in NAMES[1:3]]
        rows.append((kind, ratio, short, top, negative, by_level))
    return rows


def show(name, rows):
    print(f"\n{name}: CRPS / blunt of {', '.join(NAMES)}; mean; one step; ", end="")
    print("correction and bias of the top; negative values")
    for kind, ratio, short, top, negative, by_level in rows:
        words = " ".join(f"{r:6.3f}" for r in ratio)
        brief = " ".join(f"{r:5.3f}" for r in short)
        words = f"{words}  {sum(ratio) / 4:6.3f}   {brief}"
        print(f"{kind:26} {words}  {top[0]:7.4f} {top[1]:7.4f} {negative:8}", flush=True)
        print(" " * 27 + "  ".join(" ".join(f"{r:.2f}" for r in level) for level in by_level))


def lines_of(name):
    """The lines of one emulator in the table."""
    rows = compare(EMULATORS[name], TEST)
    show(name, rows)
    lines = []
    for kind, ratio, short, top, negative, _ in rows:
        numbers = [*ratio, sum(ratio) / 4, sum(short) / 4, *top]
        lines.append([name, kind, *(f"{number:.3f}" for number in numbers), negative])
    return lines


def write(lines):
    heads = ["emulator", "fixer", "surface pressure", "temperature", "humidity", "precipitation"]
    with DATA.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*heads, "mean", "one step", "top moved", "top bias", "negative values"])
        writer.writerows(lines)


def draw():
    """Errors over one rollout of the leaky emulator, and the profile of the correction."""
    import matplotlib.pyplot as plt

    emulator = LeakyEmulator(toy, seed=TEST[0])
    truth = emulator.truth(STEPS)
    kinds = fixers({})[1]
    styles = {
        "none": ("no fixer", "#999999", ":"),
        "blunt": ("blunt fixers", "#D55E00", "--"),
        "learned errors": ("Fixer, learned errors", "#0072B2", "-"),
    }
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained")
    days = torch.arange(1, STEPS + 1) / 4
    for kind, (label, colour, line) in styles.items():
        states, moved = _states(emulator, kinds[kind]())
        moist, warm = (
            [_rmse(s, t, n) for s, t in zip(states, truth[1:], strict=True)] for n in NAMES[2:0:-1]
        )
        left.plot(days, torch.tensor(moist) * 1000, line, color=colour, label=label)
        middle.plot(days, warm, line, color=colour)
        if kind != "none":
            pressure = toy.levels.nominal / 100
            right.plot(moved * 1000, pressure, line, color=colour, marker="o", ms=3)
    left.set(xlabel="days", ylabel="error of humidity, g/kg", ylim=(0, 0.2))
    middle.set(xlabel="days", ylabel="error of temperature, K", ylim=(0, None))
    right.set(xlabel="temperature correction, mK a step", ylabel="pressure, hPa", xlim=(0, None))
    right.invert_yaxis()
    left.legend(frameon=False, fontsize="small", loc="upper left")
    figure.savefig(PICTURE, dpi=110)
    _shrink(PICTURE)


def _shrink(path):
    from PIL import Image

    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


def _states(emulator, fixer):
    state = {n: emulator.begin[n].repeat_interleave(MEMBERS, 0) for n in NAMES}
    states, moved = [], 0.0
    for number in range(STEPS):
        after, fluxes = emulator.step(state, number)
        state = after if fixer is None else fixer(state, after, emulator.dt, fluxes)
        change = (state["temperature"] - after["temperature"]).abs()
        moved = moved + (change * area).sum((-2, -1)).mean(0) / STEPS
        states.append(state)
    return states, moved


def _rmse(state, truth, name):
    """Of the mean of the members, over all points by their mass."""
    square = ((state[name].mean(0) - truth[name][0]).square() * area).sum((-2, -1))
    return over_levels(square) ** 0.5


def totals(state):
    mass = toy.mass(state["surface_pressure"].double()) * area
    water = mass * state["specific_humidity"].double()
    energy = 1004.64 * mass * state["temperature"].double() + 2.501e6 * water
    return torch.stack([(mass - water).sum((1, 2, 3)), water.sum((1, 2, 3)), energy.sum((1, 2, 3))])


def drift(steps):
    """How far the totals are from the first ones plus all fluxes, relative."""
    learned = fixers({})[1]["learned errors"]
    for dtype in (torch.float64, torch.float32):
        for kind, make in (("blunt", lambda: BluntFixer(toy)), ("learned errors", learned)):
            emulator, fixer = LeakyEmulator(toy, seed=TEST[0]), make()
            state = {n: emulator.begin[n].to(dtype) for n in NAMES}
            asked, worst, late = totals(state), 0.0, 0.0
            for number in range(steps):
                after, fluxes = emulator.step(state, number)
                after = {n: x.to(dtype) for n, x in after.items()}
                fixed = fixer(state, after, emulator.dt, fluxes)
                state = {n: x.to(dtype) for n, x in fixed.items()}
                heat = fluxes["top_energy"] + fluxes["surface_energy"]
                rain = fluxes["evaporation"] - state["precipitation"].double()
                asked[1:] += emulator.dt * (torch.stack([rain, heat]) * area).sum((-2, -1))
                off = ((totals(state) - asked) / asked).abs().amax(1)
                worst = torch.maximum(off, torch.as_tensor(worst))
                if number >= steps - steps // 10:
                    late = late + off / (steps // 10)
            print(
                f"{dtype} {kind:15} worst {worst.tolist()}, last tenth {late.tolist()}", flush=True
            )


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "validation"
    if what == "drift":
        drift(int(sys.argv[2]) if len(sys.argv) > 2 else 10_000)
    elif what == "test":
        write([line for name in EMULATORS for line in lines_of(name)])
        draw()
    elif what == "draw":
        draw()
    else:
        for name, options in EMULATORS.items():
            show(name, compare(options, VALIDATE))
