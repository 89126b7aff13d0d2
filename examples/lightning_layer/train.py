"""A network with a law as its last layer, trained with Lightning: `pip install lightning`.

Bumps of heat on a rod: the network sees seven noisy readings of each and is told its whole heat.
It learns the profile and how unsure it is of it, and every profile that it gives has that heat.
"""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import probconserv as pc

POINTS, READINGS, BUMPS, EPOCHS = 51, 7, 512, 30
X = torch.linspace(0, 1, POINTS, dtype=torch.float64)


class Bumps(Dataset):
    """Noisy readings, the whole heat, and the profile."""

    def __init__(self, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        place, width = torch.rand(2, BUMPS, 1, generator=rng, dtype=torch.float64)
        self.u = torch.exp(-(((X - 0.2 - 0.6 * place) / (0.08 + 0.1 * width)) ** 2))
        self.heat = pc.integral(X, 0.0).apply(self.u)  # as the law adds it up
        some = self.u[:, :: (POINTS - 1) // (READINGS - 1)]
        self.readings = some + 0.05 * torch.randn(some.shape, generator=rng, dtype=torch.float64)

    def __len__(self) -> int:
        return BUMPS

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.readings[i].float(), self.heat[i], self.u[i].float()


class Profiles(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(READINGS, 64), nn.GELU(), nn.Linear(64, 2 * POINTS))
        self.law = pc.ConstraintLayer(pc.integral(X, 1.0))

    def forward(self, readings: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.net(readings).unflatten(-1, (2, POINTS)).unbind(1)
        return self.law((mean, nn.functional.softplus(raw.float()) + 1e-4), heat)

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        readings, heat, u = batch
        mean, variance = self(readings, heat)
        loss = nn.functional.gaussian_nll_loss(mean, u, variance)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor, Tensor]) -> None:
        readings, heat, u = batch
        mean, _ = self(readings, heat)
        off = self.law.laws[0].apply(mean) - heat
        self.log("error", (mean - u).square().mean().sqrt())
        self.log("heat off by", off.abs().max(), reduce_fx="max")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main(**options: object) -> lightning.Trainer:
    """Trains it; `options` are those of `lightning.Trainer`."""
    lightning.seed_everything(0)
    model = Profiles()
    train, test = (DataLoader(Bumps(seed), batch_size=64) for seed in (0, 1))
    settings = {"max_epochs": EPOCHS, "precision": "bf16-mixed", "logger": False}
    trainer = lightning.Trainer(**settings | {"enable_checkpointing": False} | options)
    (before,) = trainer.validate(model, test, verbose=False)
    trainer.fit(model, train)
    (after,) = trainer.validate(model, test, verbose=False)
    print(f"root mean square error {before['error']:.3f} before, {after['error']:.3f} after")
    print(f"heat off by at most {after['heat off by']:.0e}")
    return trainer


if __name__ == "__main__":
    main(accelerator="auto")
