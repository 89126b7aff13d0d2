"""Correctors: a configuration that makes one, and a sequence of corrections."""

import dataclasses
from types import SimpleNamespace


@dataclasses.dataclass
class CorrectorConfigABC:
    corrector_disabled_epochs: int = dataclasses.field(default=0, kw_only=True)

    @classmethod
    def from_state(cls, state):
        return cls(**cls.remove_deprecated_keys(state))

    def get_corrector(self, dataset_info):
        return self._get_corrector(dataset_info)


class CorrectionSequence:
    def __init__(self, corrections):
        self._corrections = corrections

    def __call__(self, input_data, gen_data, forcing_data, corrector_state):
        data, names = dict(gen_data), set()
        for correction in self._corrections:
            changed, corrector_state = correction(input_data, data, forcing_data, corrector_state)
            data.update(changed)
            names |= set(changed)
        return SimpleNamespace(
            corrected=data, modified_names=names, corrector_state=corrector_state
        )
