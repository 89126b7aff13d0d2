"""Small trainings for the tests, and some that end as suddenly as by a power cut."""

import torch

from probconserv.problems import Stefan
from probconserv.training import train

SMALL = {"hidden": 8, "latent": 6, "heads": 2}
CHANGES = {"batch": 4, "context": (2, 3), "target": 5, "steps": 10, "validation": 20}


def run(out, **options):
    options = {"sizes": SMALL, "device": "cpu", **CHANGES, **options}
    return train(Stefan, out, **options)


def weights(network):
    return torch.cat([p.detach().flatten() for p in network.parameters()])


class Killed(BaseException):
    """Nothing gets to clean up."""


def killed_after(steps):
    """A report that ends a training at the first line from that step on."""

    def report(line):
        if line["step"] >= steps:
            raise Killed

    return report
