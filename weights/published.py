"""A checkpoint of the paper's own code as a file of this library.

python weights/published.py CHECKPOINT FILE [HEADS], which `probconserv.models.open_weights` opens.
"""

import sys

import torch

from probconserv.errors import InputError
from probconserv.models import AttentiveNeuralProcess, save

NAMES = {
    "input_projection": "points",
    "context_projection": "keys",
    "self_attentions": "attention",
    "cross_attentions": "cross",
    "encoder_query": "query",
    "encoder_key": "key",
    "encoder_value": "value",
    "final_linear": "mix",
    "layer_norm": "norm",
    "penultimate_layer": "pooled",
    "mu": "mean",
    "log_sigma": "log_variance",  # it is the logarithm of a variance
    "linears": "layers",
    "final_projection": "last",
}
TARGETS = {"deterministic_encoder": "queries", "decoder": "place"}


def renamed(state):
    """Tensors under our names, and the sizes of the network that they belong to."""
    tensors = {name_of(key): value for key, value in state.items()}
    try:
        hidden, inputs = tensors["deterministic_encoder.keys.weight"].shape
        latent = tensors["latent_encoder.mean.bias"].shape[0]
    except (KeyError, ValueError):
        raise InputError(
            "`state` is not a published checkpoint: it must hold deterministic_encoder."
            "context_projection and latent_encoder.mu; its first keys are "
            f"{', '.join(list(state)[:3]) or 'none'}."
        ) from None
    return tensors, {"inputs": inputs, "hidden": hidden, "latent": latent}


def name_of(key):
    parts = [part for part in key.split(".") if part != "linear_layer"]
    named = [NAMES.get(part, part) for part in parts]
    if "target_projection" in named:
        named[named.index("target_projection")] = TARGETS.get(parts[0], "target_projection")
    return ".".join(named)


def network_of(state, heads=4, dropout=0.1):
    """The network of these tensors, in eval mode; they do not tell how many heads it has."""
    tensors, sizes = renamed(state)
    with torch.random.fork_rng(devices=[]):  # first weights, which are replaced
        network = AttentiveNeuralProcess(**sizes, heads=heads, dropout=dropout)
    network.load_state_dict(tensors)
    network.card = {"settings": {"dropout": dropout}}
    return network.eval()


if __name__ == "__main__":
    checkpoint, file, *heads = sys.argv[1:]
    save(network_of(torch.load(checkpoint, weights_only=True), *map(int, heads)), file)
