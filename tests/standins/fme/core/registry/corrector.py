"""Configurations of correctors by the name of their type."""

import dataclasses
from typing import Any, ClassVar


@dataclasses.dataclass
class CorrectorSelector:
    type: str
    config: Any
    types: ClassVar[dict[str, Any]] = {}

    @classmethod
    def register(cls, type_name):
        def add(kind):
            cls.types[type_name] = kind
            return kind

        return add

    def get_corrector(self, dataset_info):
        return self.types[self.type].from_state(self.config).get_corrector(dataset_info)
