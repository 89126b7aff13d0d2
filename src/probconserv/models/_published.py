"""The layout of the paper's published checkpoints."""

from collections.abc import Mapping

from torch import Tensor

from ..support.errors import InputError

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


def renamed(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Tensors under our names, and the sizes of the network that they belong to."""
    tensors = {_name(key): value for key, value in state.items()}
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


def _name(key: str) -> str:
    parts = [part for part in key.split(".") if part != "linear_layer"]
    named = [NAMES.get(part, part) for part in parts]
    if "target_projection" in named:
        named[named.index("target_projection")] = TARGETS.get(parts[0], "target_projection")
    return ".".join(named)
