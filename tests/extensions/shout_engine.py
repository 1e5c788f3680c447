"""An engine outside of the package: samples as the local one, and signs every completion."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paint.engines.local import LocalEngine
from paint.engines.open import EngineSetup
from paint.engines.protocol import Engine, Finished, Sampling

Ids = Sequence[int]


@dataclass
class ShoutEngine(Engine):
    wrapped: LocalEngine

    @classmethod
    def from_setup(cls, setup: EngineSetup) -> "ShoutEngine":
        return cls(LocalEngine.from_setup(setup))

    def stream(
        self, prompts: Sequence[Ids], sampling: Sampling, seeds: Ids, finished: Finished
    ) -> None:
        for index, completion in enumerate(self.wrapped.generate(prompts, sampling, seeds)):
            finished(index, replace(completion, source="shout"))

    def adopt(self) -> None:
        self.wrapped.adopt()
