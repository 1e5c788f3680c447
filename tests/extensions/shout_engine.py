"""An engine outside of the package: samples as the local one, and signs every completion."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paint.inference.engine import Engine, OnCompletion, Sampling
from paint.inference.factory import EngineSetup
from paint.inference.local import LocalEngine

Ids = Sequence[int]


@dataclass(frozen=True)
class ShoutOptions:
    signature: str = "shout"
    """What is recorded as the source of each completion."""


@dataclass
class ShoutEngine(Engine):
    wrapped: LocalEngine
    options: ShoutOptions

    @classmethod
    def from_setup(cls, setup: EngineSetup) -> "ShoutEngine":
        return cls(LocalEngine.from_setup(setup), setup.options)

    def stream(
        self, prompts: Sequence[Ids], sampling: Sampling, seeds: Ids, finished: OnCompletion
    ) -> None:
        for index, completion in enumerate(self.wrapped.generate(prompts, sampling, seeds)):
            finished(index, replace(completion, source=self.options.signature))

    def sync_weights(self) -> None:
        self.wrapped.sync_weights()
