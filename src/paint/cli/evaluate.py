"""``paint eval``."""

from dataclasses import dataclass, field, replace
from typing import Annotated

from tyro.conf import Positional, arg

from paint.cli.options import ONE_PROCESS, GpuOptions
from paint.config.schema import Config, ConfigError, EvaluationConfig, ModelConfig
from paint.training.launcher import on_gpus


@dataclass(frozen=True)
class Evaluate:
    """Answer benchmarks, grade the samples, and compare with the base model.

    Every sample is stored; the same command continues where it was interrupted. The defaults are
    the paper's.

    Example: paint eval demo --benchmarks demo --limit 2 --samples 2 --rollout.max-new-tokens 64
    """

    targets: Annotated[Positional[tuple[str, ...]], arg(metavar="TARGET")]
    """A run (all its checkpoints), a checkpoint, an adapter folder, or a model (folder or hub
    name). They stand before the flags."""
    evaluation: Annotated[EvaluationConfig, arg(name="")] = field(default_factory=EvaluationConfig)
    gpus: GpuOptions = ONE_PROCESS

    def run(self) -> int:
        """Evaluate, and print the tables."""
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
                run.evaluate(replace(evaluation, rollout=config.rollout), self.targets)
        return 0
