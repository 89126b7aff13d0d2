"""The sweep of SoftC-ANP's penalty: python weights/sweep.py RUN ... rewrites its results.

Each RUN is a folder of `probconserv train pme --model softc --recipe paper --set penalty=PENALTY`.
The penalties 0 and 1 are those of the shipped ANP and SoftC-ANP.
"""

import json
import sys
from pathlib import Path

from probconserv.experiments.paper import EXPERIMENTS, PROTOCOLS
from probconserv.experiments.paper._experiments import SWEEP
from probconserv.experiments.paper._reproduce import Plan, tables
from probconserv.models import load
from probconserv.models._load import open_weights
from probconserv.support.complete_files import complete

networks = [load("pme", model, "paper") for model in ("anp", "softc")]
networks += [open_weights(Path(run) / "weights.safetensors") for run in sys.argv[1:]]
records = []
for network in sorted(networks, key=lambda network: network.card["settings"].get("penalty", 0)):
    penalty = network.card["settings"].get("penalty", 0.0)
    model = network.card["model"]
    for protocol in PROTOCOLS:
        plan = Plan("paper", protocol, n=50, samples=100)
        for value in EXPERIMENTS["pme"].values:
            first = tables(EXPERIMENTS["pme"], value, {model: network}, plan).records[0]
            records.append({"penalty": penalty} | first)
            scores = f"CE {first['CE']:.1e}, LL {first['LL']:.2f}, MSE {first['MSE']:.2e}"
            print(f"{penalty:g}, {protocol}, m = {value:g}: {scores}", flush=True)
with complete(SWEEP) as part:
    part.write_text(json.dumps({"records": records}, indent=1) + "\n")
