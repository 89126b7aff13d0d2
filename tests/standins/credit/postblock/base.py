"""What a post-block is."""

import torch.nn as nn


class BasePostblock(nn.Module):
    def forward(self, batch: dict) -> dict:
        raise NotImplementedError
