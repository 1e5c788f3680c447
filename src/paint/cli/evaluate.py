"""``paint eval``."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from tyro.conf import Positional, arg

from paint.cli.options import ONE_PROCESS, GpuOptions, agrees
from paint.config.schema import Config, ConfigError, EvaluationConfig, ModelConfig
from paint.evaluation.defaults import defaults_of
from paint.training.launcher import on_gpus


@dataclass(frozen=True)
class Evaluate:
    """Answer benchmarks, grade the samples, and compare with the base model.

    Every sample is stored; the same command continues where it was interrupted. The defaults are
    the paper's. Those of a run, named first, are its grader and, where it has a validation, the
    validation's problems and sampling; for a run on the demo's problems, the held-out ones and the
    run's lengths.

    Example: paint eval demo --benchmarks demo --limit 2 --samples 2 --rollout.max-new-tokens 64
    """

    targets: Annotated[Positional[tuple[str, ...]], arg(metavar="TARGET")]
    """A run (all its checkpoints), a checkpoint, an adapter folder, or a model (folder or hub
    name). They stand before the flags."""
    evaluation: Annotated[EvaluationConfig, arg(name="")] = field(default_factory=EvaluationConfig)
    yes: bool = False
    """Start without asking; otherwise a terminal asks about more than an hour."""
    gpus: GpuOptions = ONE_PROCESS

    @classmethod
    def defaults(cls, words: Sequence[str]) -> "Evaluate | None":
        """The defaults where the first word is a run or a checkpoint of one; else None."""
        return cls((), defaults_of(words[0])) if words else None

    def run(self) -> int:
        if not self.targets:
            raise ConfigError(
                "nothing to evaluate; name a run, a checkpoint, an adapter folder or a model, "
                "before the flags"
            )
        from paint.evaluation import run

        evaluation = self.evaluation
        model = run.resolve(evaluation, self.targets)[0] if self.gpus.gpus else ModelConfig()
        with on_gpus(self.gpus, Config(model, rollout=evaluation.rollout), ranks=0) as config:
            if config is not None:
                run.evaluate(
                    replace(evaluation, rollout=config.rollout), self.targets, agree=self._agree
                )
        return 0

    def _agree(self) -> None:
        """Ask on a terminal. Raises ConfigError unless the answer is yes."""
        if not (self.yes or agrees()):
            raise ConfigError(
                "nothing was generated; fewer targets, --samples, --limit and "
                "--rollout.max-new-tokens make it shorter, --rollout.engine vllm faster"
            )
