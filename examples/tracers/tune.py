"""Chooses the prior of examples/tracer.py on 32 tracers that neither training nor tests use.

    python examples/tracers/tune.py

Factors of the members' variance: of u by LL before any law, of fluxes by LL after that of every
cell; and the same members with all that they have in common, `Ensemble`.
"""

import torch
from model import EDGES, STEP, averages, drawn, flow_of, load, predicted, prior

import probconserv as pc

VALIDATION = 2_000_000
mesh = pc.Mesh(x=EDGES, y=EDGES, periodic=("x", "y"))
law = pc.cell_budgets(mesh, t=[0.0, STEP], fluxes=("fx", "fy"))
clouds, counts = drawn(VALIDATION, 32)
u = averages(clouds, counts)
members = predicted(load(), u[:, 0], flow_of(clouds))


def show(name: str, field: pc.fields.Field) -> float:
    after = pc.Diagonal(field.mean[:, 1:], field.variance[:, 1:])
    found = pc.evaluate(after, u[:, 1:], samples=2, space_dims=2)
    rmse, ll, inside = found.MSE.mean().sqrt(), found.LL.mean(), 100 * found.coverage_90.mean()
    print(f"{name:<44} RMSE {rmse:.5f}  LL {ll:.3f}  {inside:.0f} % in 90 %", flush=True)
    return float(ll)


def widened(own: float, flux: float) -> dict[str, torch.Tensor]:
    """Members with their distance from the mean times the roots of the factors."""
    found = {}
    for name, each in members.items():
        mean, factor = each.mean(0), own if name == "u" else flux
        found[name] = mean + factor**0.5 * (each - mean)
    found["u"] = torch.cat([u[:, :1].expand(len(found["u"]), -1, -1, -1, -1), found["u"]], 2)
    return found


def of_points(own: float, flux: float) -> pc.State:
    return prior(members, u[:, 0], {"u": own, "fx": flux, "fy": flux})


def before(own: float) -> float:
    return show(f"Diagonal, u {own}, before", of_points(own, 1.0)["u"])


def after(flux: float) -> float:
    return show(f"Diagonal, fluxes {flux}", pc.condition(of_points(own, flux), law)["u"])


own = max((1.0, 0.7, 0.5, 0.4, 0.3, 0.2), key=before)
flux = max((1.0, 0.3, 0.1, 0.05, 0.03, 0.01), key=after)
print(f"factor of u {own}, of fluxes {flux}")
alone = of_points(1e6, 1.0)  # u after the step as good as unknown
off = pc.condition(alone, law)["u"].mean[:, 1] - u[:, 1]
print(f"fluxes alone: RMSE {off.square().mean().sqrt():.5f}")
for shrinkage in (None, 0.5, 0.1):
    state = pc.Ensemble(widened(own, flux), batch_dims=1, shrinkage=shrinkage)
    show(f"Ensemble, shrinkage {shrinkage}", pc.condition(state, law)["u"])
