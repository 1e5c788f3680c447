"""Settings of an evaluation that fit what is evaluated."""

from dataclasses import asdict, replace
from pathlib import Path

from paint.config.run_folder import read_run, run_of
from paint.config.schema import Config, EvaluationConfig
from paint.demo.files import NAME
from paint.inference.engine import sampling_from


def defaults_of(target: str) -> EvaluationConfig:
    """Settings that fit a run or a checkpoint of one; of other targets, the paper's."""
    run = run_of(Path(target))
    return EvaluationConfig() if run is None else evaluation_of(read_run(run))


def evaluation_of(config: Config) -> EvaluationConfig:
    """Settings that fit a run: its grader, and problems of its validation or the demo."""
    default, validation = EvaluationConfig(), config.validation
    if not config.grading.is_off:
        default = replace(default, grading=config.grading)
    if validation.path:
        return replace(
            default,
            benchmarks=(validation.path,),
            samples=validation.samples,
            thinking=validation.thinking,
            limit=validation.limit,
            rollout=replace(default.rollout, **asdict(sampling_from(validation))),
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
