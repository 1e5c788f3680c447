"""``paint eval``."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from paint.cli.options import ONE_PROCESS, GpuOptions, agrees
from paint.config.run_folder import read_run, run_of
from paint.config.schema import Config, ConfigError, EvaluationConfig, ModelConfig
from paint.demo.files import NAME
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
        run = run_of(Path(words[0])) if words else None
        return cls((), evaluation_of(read_run(run))) if run is not None else None

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


def evaluation_of(config: Config) -> EvaluationConfig:
    """Settings that fit a run: its grader, and problems of its validation or the demo."""
    default, validation = EvaluationConfig(), config.validation
    grading = config.grading
    if grading.grader != "none":
        default = replace(default, grader=grading.grader, deadline=grading.deadline)
    if validation.path:
        return replace(
            default,
            benchmarks=(validation.path,),
            samples=validation.samples,
            thinking=validation.thinking,
            limit=validation.limit,
            rollout=replace(
                default.rollout,
                temperature=validation.temperature,
                top_p=validation.top_p,
                top_k=validation.top_k,
                max_new_tokens=validation.max_new_tokens,
            ),
        )
    if NAME in (config.model.path, config.data.path):
        top_p, longest = config.rollout.top_p, config.rollout.max_new_tokens
        return replace(
            default,
            benchmarks=(NAME,),
            thinking=config.model.student_thinking,
            rollout=replace(default.rollout, top_p=top_p, max_new_tokens=longest),
        )
    return default
