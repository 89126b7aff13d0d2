"""The example with Lightning, where that is installed: `make test-lightning`."""

import sys
from pathlib import Path

import pytest
import torch

lightning = pytest.importorskip("lightning")
EXAMPLE = Path(__file__).parents[1] / "examples" / "lightning_layer"
pytestmark = [
    pytest.mark.draws_freely("Lightning seeds the generators of all"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def example(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLE)
    sys.modules.pop("train", None)
    import train

    yield train
    sys.modules.pop("train", None)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true"])
def test_it_learns_and_every_profile_has_its_heat(example, precision):
    trainer = example.main(accelerator="cpu", precision=precision, max_epochs=8)
    found = trainer.callback_metrics
    assert float(found["error"]) < 0.15  # 0.32 without anything learned
    assert float(found["heat off by"]) < 1e-6
    law = trainer.lightning_module.law
    assert {b.dtype for b in law.buffers()} == {torch.float64}


def test_true_half_precision_leaves_the_law_alone(example):
    model = example.Profiles()
    trainer = lightning.Trainer(
        accelerator="cpu", precision="bf16-true", logger=False, enable_checkpointing=False
    )
    loader = example.DataLoader(example.Bumps(1), batch_size=64)
    (found,) = trainer.validate(model, loader, verbose=False)
    assert found["heat off by"] < 1e-2  # Lightning rounds the totals that it is given to bfloat16
    weights = torch.full((51,), 0.02, dtype=torch.float64)
    weights[[0, -1]] = 0.01
    torch.testing.assert_close(model.law.integral.weights, weights)


def test_a_checkpoint_holds_the_law(example, tmp_path):
    trainer = example.main(accelerator="cpu", max_epochs=1)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    again = example.Profiles.load_from_checkpoint(tmp_path / "one.ckpt")
    given = torch.rand(3, 7), torch.ones(3)
    model = trainer.lightning_module.eval()
    torch.testing.assert_close(again.eval()(*given), model(*given))


def test_two_processes_train_it(example):
    trainer = example.main(accelerator="cpu", devices=2, strategy="ddp_fork", max_epochs=2)
    assert float(trainer.callback_metrics["heat off by"]) < 1e-6
