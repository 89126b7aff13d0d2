"""The state that travels from step to step: one optional field, samples first."""

import dataclasses

import torch


@dataclasses.dataclass
class CorrectorState:
    global_dry_air_mass: torch.Tensor | None = None

    def select_sample_slice(self, sample_slice):
        return CorrectorState(self.global_dry_air_mass[sample_slice])

    def broadcast_ensemble(self, n_ensemble):
        return CorrectorState(self.global_dry_air_mass.repeat_interleave(n_ensemble, dim=0))

    def to_state_dict(self):
        return {"global_dry_air_mass": self.global_dry_air_mass}

    @classmethod
    def from_state_dict(cls, state):
        return cls(state["global_dry_air_mass"])
