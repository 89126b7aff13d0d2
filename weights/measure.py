"""What networks explain over their training range: python weights/measure.py [NAME ...].

The tables of weights/README.md. `reading` is on the cards of networks trained since it exists.
"""

import sys
from dataclasses import dataclass

import torch

import probconserv as pc
from probconserv.data import draw
from probconserv.experiments.paper import EXPERIMENTS, Experiment
from probconserv.models._load import TRAINED
from probconserv.models._predictor import Predictor
from probconserv.support.errors import surprises_expected
from probconserv.training import share_from_context


@dataclass(frozen=True)
class Reading:
    """How predictions follow the truth over functions of the whole training range.

    Attributes
    ----------
    share : float
        The explained share, ``1 - MSE / MSE of the mean field``: 0 for the best constant, 1 for the
        truth.
    slope : float
        Of predicted on true totals; NaN where these do not vary.
    mse : float
        Of the network.
    mse_after : float
        After the paper's update with the true total.
    """

    share: float
    slope: float
    mse: float
    mse_after: float


@surprises_expected()
def reading(network: Predictor, experiment: Experiment, n: int = 24, samples: int = 100) -> Reading:
    """What a network explains of validation functions at the time of the tables.

    Parameters
    ----------
    network : AttentiveNeuralProcess or Emulator
        What is judged.
    experiment : Experiment
        One of `EXPERIMENTS`.
    n : int
        How many functions, with parameters evenly over the training range and its ends.
    samples : int
        Of the latent.

    Returns
    -------
    Reading
        The same each time.
    """
    parameters = torch.linspace(*experiment.problem.train_range, n, dtype=torch.float64)
    problem = experiment.problem(**{experiment.problem.parameter: parameters})
    seen = draw(problem, "validation", n, (10, 10), 1).context
    t, x = torch.tensor([experiment.time], dtype=torch.float64), experiment.problem.grid()[1]
    truth, total = problem.on_grid(t, x), problem[:, None].total(t)
    generator = torch.Generator().manual_seed(0)
    parts = network.predict(tuple(seen), (t, x), samples=samples, generator=generator)
    law = pc.integral(x, total)
    mean, after = pc.Mixture(parts).mean, pc.Mixture(pc.condition(parts, law)).mean
    mse, still = (float((u - truth).square().mean()) for u in (mean, truth.mean(0)))
    predicted, true = law.apply(mean).flatten(), total.flatten()
    apart = true - true.mean()
    slope = (apart * predicted).sum() / (apart**2).sum()
    mse_after = float((after - truth).square().mean())
    return Reading(1 - mse / still, float(slope), mse, mse_after)


if __name__ == "__main__":
    print("problem    model     recipe  share   slope   MSE      after the law  reading")
    for name in sys.argv[1:] or EXPERIMENTS:
        functions = draw(EXPERIMENTS[name].problem, "validation", 200, (10, 10), 100)
        for model, recipes in TRAINED.items():
            for recipe in recipes:
                network = pc.models.load(name, model, recipe)
                found = reading(network, EXPERIMENTS[name])
                share = share_from_context(network, functions.to(torch.float32))
                print(
                    f"{name:10} {model:9} {recipe:7} {found.share:5.3f} {found.slope:7.3f}  "
                    f"{found.mse:7.2g}  {found.mse_after:7.2g}        {share:.3f}",
                    flush=True,
                )
