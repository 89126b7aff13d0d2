"""The heat that the sea takes up, by ships' reports; a steady sea takes up none in a year."""

from pathlib import Path

import numpy as np
from sea_heat.data import read
from sea_heat.report import held_out, maps

import probconserv as pc
from probconserv import figures

SIGNS = {"shortwave": 1, "longwave": -1, "latent": -1, "sensible": -1}  # net is downward
FORMULA = 0.1  # assumed: the formula of each part is off by 10 %, by the same share everywhere
UNKNOWN = 1e10  # variance of a flux of which nothing is known

sea = read()
flux, share = sea.flux, sea.share  # (12, cells) each
off = flux["net"] - sum(sign * flux[k] for k, sign in SIGNS.items())
print(f"{share.shape[1]} cells; the parts miss net by {abs(off).max():.2f} W m-2 at most")
print("One report is off by", ", ".join(f"{k} {s:.0f}" for k, s in sea.sigma.items()), "W m-2")

# The laws: the parts add up in every cell and month; the mean over the sea and the year is 0.
one = np.ones_like(share)
signed = {k: sign * one for k, sign in SIGNS.items()} | {"net": -one}
every_cell = pc.weighted_sum(signed, value=0.0, space_dims=0)
year = pc.weighted_sum(share, value=0.0, space_dims=2, of="net")


def closed(parts):
    """The parts and net under both laws. Net is made of the parts: no evidence of its own."""
    return pc.condition(pc.State(**parts, net=pc.Diagonal(flux["net"], UNKNOWN)), every_cell, year)


def with_formula(x, variance):
    """A flux with an error of its own in each cell and month, and one that all of them share."""
    return pc.LowRank(x, FORMULA * x[None], variance, event_dims=2)


counts = closed({k: pc.Diagonal(flux[k], sea.sampling[k]) for k in SIGNS})
both = closed({k: with_formula(flux[k], sea.sampling[k]) for k in SIGNS})

own = sum((share**2 * sea.sampling[k]).sum() for k in SIGNS)
shared = sum((share * FORMULA * flux[k]).sum() ** 2 for k in SIGNS)
print(f"std of the mean of net: {own**0.5:.3f} by counts, {shared**0.5:.1f} with formulas\n")
print("mean over the sea    W m-2   change by counts   with formulas")
for k, x in flux.items():
    moves = [(share * (post[k].mean.numpy() - x)).sum() for post in (counts, both)]
    print(f"{k:<16} {(share * x).sum():9.2f} {moves[0]:+18.2f} {moves[1]:+15.2f}")
before = np.sqrt(sum((FORMULA * flux[k]) ** 2 + sea.sampling[k] for k in SIGNS)).mean()
print(f"std of net in a month of a cell: {before:.1f}, after {both['net'].std.mean():.1f}\n")

# Each tenth of the cells in turn loses what needs humidity; the eight nearest cells fill it in.
LOST = "longwave", "latent", "net"
ways = "neighbours alone", "net counted twice", "every cell", "every cell and the year"
found = {(way, k): np.full((2, *share.shape), np.nan) for way in ways for k in LOST}  # mean, std
for hidden in np.array_split(np.random.default_rng(0).permutation(share.shape[1]), 10):
    seen = np.setdiff1d(np.arange(share.shape[1]), hidden)
    near = seen[np.argsort(-sea.closeness[:, seen], axis=1, kind="stable")[:, :8]]
    filled = {k: flux[k][:, near].mean(-1) for k in LOST}
    square = {k: ((filled[k] - flux[k]) ** 2).mean(0)[near].mean(-1) for k in LOST}  # of seen cells
    guess = {k: pc.Diagonal(filled[k][:, hidden], square[k][hidden]) for k in LOST}
    known = {k: pc.Diagonal(flux[k][:, hidden], 0.0) for k in ("shortwave", "sensible")}
    ones = np.ones((12, len(hidden)))
    signed = {k: sign * ones for k, sign in SIGNS.items()} | {"net": -ones}
    law = pc.weighted_sum(signed, value=0.0, space_dims=0)  # a row for every hidden cell and month
    twice = pc.condition(pc.State(**known, **guess), law)
    wide = guess | {"net": pc.Diagonal(guess["net"].mean, UNKNOWN)}
    once = pc.condition(pc.State(**known, **wide), law)
    parts = {k: with_formula(flux[k], sea.sampling[k]) for k in SIGNS}
    for k in ("longwave", "latent"):
        x, variance = flux[k].copy(), sea.sampling[k].copy()
        x[:, hidden], variance[:, hidden] = filled[k][:, hidden], square[k][hidden]
        parts[k] = with_formula(x, variance)
    total = closed(parts)  # its intervals are for the truth, not for the file: not looked at
    for k in LOST:
        for way, field in zip(ways, (guess[k], twice[k], once[k]), strict=False):
            found[way, k][:, :, hidden] = np.stack([field.mean, field.std])
        found[ways[3], k][0][:, hidden] = total[k].mean[:, hidden]
print(held_out(found, flux))

Path("out").mkdir(exist_ok=True)
picture = maps(sea, flux["net"], counts["net"].mean.numpy(), both["net"].mean.numpy())
figures.save(picture, "out/heat_budget.png")
