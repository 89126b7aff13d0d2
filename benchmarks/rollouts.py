"""How often 90 % intervals of a rollout hold the truth: `python benchmarks/rollouts.py`.

A field on a ring of 32 points is carried along, flattens a little, and is pushed by smooth errors
that keep its total. The model knows the first alone, and multiplies the field by a number up to 3 %
off 1 that depends on the field. Its errors are learned from 100 trajectories of 20 steps. Prints a
Markdown table: the share in % at steps 1, 10 and 60, over 300 functions, and the RMSE at step 60.

Errors: `independent` from step to step; `fade`, correlated by 0.9 from one to the next; `last`,
40 % of their variance stays the same along a trajectory.

Rows: `free`, no law; `members`, the total with the covariance of the members; `rollout`, the total
in `pc.rollout`; `pairs`, the same with errors learned from pairs of states, which say nothing of
how long errors last.
"""

import math
import sys
import warnings

import torch
from torch import Tensor

import probconserv as pc
from probconserv.diagnostics import StepErrors

POINTS, FUNCTIONS, STEPS, SHOWN = 32, 300, 60, (1, 10, 60)
KINDS = {"independent": (0.0, 0.0), "fade": (0.9, 0.0), "last": (0.0, 0.4)}
x = torch.arange(POINTS, dtype=torch.float64) / POINTS
rng = torch.Generator()
apart = (x[:, None] - x).abs()
covariance = 0.03**2 * (-((torch.minimum(apart, 1 - apart) / 0.1) ** 2)).exp()
root = torch.linalg.cholesky(covariance + 0.2 * 0.03**2 * torch.eye(POINTS))
mesh = pc.Mesh(x=torch.linspace(0, 1, POINTS + 1, dtype=torch.float64), periodic="x")


def pushed(n: int) -> Tensor:
    """Errors that keep the total: on a ring their covariance with it is the same everywhere."""
    e = torch.randn(n, POINTS, generator=rng, dtype=torch.float64) @ root.T
    return e - e.mean(-1, keepdim=True)


def model(u: Tensor) -> Tensor:
    return u.roll(1, -1) * (1 + 0.03 * torch.cos(20 * u[..., 3:4]))


def nature(n: int, steps: int, fades: float, lasts: float) -> Tensor:  # (n, steps + 1, points)
    shift = torch.rand(n, 1, generator=rng, dtype=torch.float64)
    states = [1 + 0.5 * torch.sin(2 * math.pi * (x + shift))]
    always, e = pushed(n), pushed(n)
    for _ in range(steps):
        u = 0.99 * states[-1].roll(1, -1) + 0.01
        states.append(u + math.sqrt(lasts) * always + math.sqrt(1 - lasts) * e)
        e = fades * e + math.sqrt(1 - fades**2) * pushed(n)
    return torch.stack(states, 1)


def by_members(start: Tensor, law: pc.laws.Law, errors: StepErrors, count: int) -> pc.LowRank:
    """Members moved by their own covariance at each step."""
    free = pc.rollout(model, start, (), 1, members=count, errors=errors, batch_dims=1)
    lead = free.members.shape[:2]
    lasts, fades = errors._normals(lead, rng), errors._normals(lead, rng)
    states = [free.members[:, :, 0]]
    for _ in range(STEPS):
        u = model(states[-1])
        u = u + errors._of(errors._both(lasts, fades), (u,))[0]
        states.append(pc.condition(pc.Ensemble(u, batch_dims=1), law).members())
        fades = errors._next(fades, errors._normals(lead, rng))
    return pc.Ensemble(torch.stack(states, 2), batch_dims=2)


def row(kind: str, count: int) -> None:
    rng.manual_seed(0)
    learned = nature(100, 20, *KINDS[kind])
    errors = StepErrors.learned(model, learned)
    pairs = StepErrors.learned(model, learned.unfold(1, 2, 1).movedim(-1, 2).flatten(0, 1))
    truth = nature(FUNCTIONS, STEPS, *KINDS[kind])
    law = pc.integral(mesh, mesh.integral(truth[:, 0]))
    how = {"members": count, "batch_dims": 1, "generator": rng}
    found = {
        "free": pc.rollout(model, truth[:, 0], (), STEPS, errors=errors, **how).field(),
        "members": by_members(truth[:, 0], law, errors, count),
        "rollout": pc.rollout(model, truth[:, 0], law, STEPS, errors=errors, **how).field(),
        "pairs": pc.rollout(model, truth[:, 0], law, STEPS, errors=pairs, **how).field(),
    }
    for name, field in found.items():
        low, high = field.interval(0.9)
        held = ((truth >= low) & (truth <= high)).double().mean((0, 2))
        error = (field.mean - truth)[:, -1].square().mean().sqrt()
        cells = [f"{100 * held[k]:.0f}" for k in SHOWN]
        print(f"| {kind} | {count} | {name} | {' | '.join(cells)} | {error:.2f} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", pc.ImplausibleWarning)
    print(
        f"| errors | members | law | {' | '.join(map(str, SHOWN))} | RMSE |", "|---" * 7, sep="\n"
    )
    for each in sys.argv[1:] or KINDS:
        for size in (8, 20):
            row(each, size)
