"""Settings of an evaluation that fit what is evaluated: a run is evaluated as it was trained.

Competition mathematics is evaluated by the paper's protocol (section 'Experimental Details').
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from paint.config.run_folder import read_run, run_of
from paint.config.schema import (
    PAPER_PROMPTS,
    Config,
    EvaluationConfig,
    GradingConfig,
    RolloutConfig,
)
from paint.core.demo_files import NAME, NEW_RULES
from paint.core.errors import format_value
from paint.data.benchmarks import Benchmark, is_competition
from paint.grading.graders import needs_answer
from paint.inference.engine import sampling_from

Protocol = dict[str, Any]
"""Thinking mode and sampling by name: thinking, temperature, top_p, top_k, max_new_tokens."""

DEMO_TOKENS = 96  # the longest references have 49


def protocol_as_trained(config: Config) -> Protocol:
    thinking = config.model.student_thinking
    return {"thinking": thinking, **asdict(sampling_from(config.rollout))}


def protocol_of(evaluation: EvaluationConfig) -> Protocol:
    return {"thinking": evaluation.thinking, **asdict(sampling_from(evaluation.rollout))}


def published_protocol(benchmarks: Sequence[str], model: str) -> Protocol | None:
    """Return the protocol that comes with one of these: the paper's, or the demo's; None else."""
    # An evaluation has one protocol for all its benchmarks, so one that is published decides.
    if any(map(is_competition, benchmarks)):
        return protocol_of(EvaluationConfig())
    # Other models answer the demo's problems at other lengths.
    if model == NAME and {NAME, NEW_RULES} & set(benchmarks):
        return demo_protocol()
    return None


def demo_protocol() -> Protocol:
    """Return the paper's sampling, without thinking, and answers of at most 96 tokens."""
    return protocol_of(EvaluationConfig()) | {"thinking": False, "max_new_tokens": DEMO_TOKENS}


def fitting_protocol(config: Config, benchmarks: Sequence[str]) -> Protocol:
    return published_protocol(benchmarks, config.model.path) or protocol_as_trained(config)


def with_protocol(rollout: RolloutConfig, protocol: Protocol) -> RolloutConfig:
    sampling = {name: value for name, value in protocol.items() if name != "thinking"}
    return replace(rollout, **sampling)


def validation_protocol(config: Config) -> Protocol:
    protocol = fitting_protocol(config, config.validation.paths)
    if config.validation.max_new_tokens is not None:
        protocol["max_new_tokens"] = config.validation.max_new_tokens
    return protocol


def protocol_differences(config: Config, protocol: Protocol) -> str:
    """Return what differs from the training, such as "thinking: False -> True"; or ""."""
    changes = []
    for name, value in protocol_as_trained(config).items():
        if value != protocol[name]:
            changes.append(f"{name}: {format_value(value)} -> {format_value(protocol[name])}")
    return ", ".join(changes)


def training_tokens(config: Config) -> int:
    """Return the most tokens of prompt and completion together that a run requests."""
    longest = config.rollout.max_new_tokens
    if config.validation.path:
        longest = max(longest, validation_protocol(config)["max_new_tokens"])
    return config.data.max_prompt_tokens + longest


def grader_needs_answer(grading: GradingConfig) -> bool:
    return any(map(needs_answer, grading.grader))


def grading_of(benchmark: Benchmark, grading: GradingConfig) -> GradingConfig:
    """Return the grading of a benchmark; of a published set that this one cannot grade, its own.

    Tests grade code, and a gold answer mathematics. A function of the user's own grades any set.
    """
    has_tests = benchmark.grader == "code"
    lacks_answers = has_tests and grader_needs_answer(grading)
    lacks_tests = benchmark.grader and not has_tests and "code" in grading.grader
    if lacks_answers or lacks_tests:
        return GradingConfig(grader=(benchmark.grader,))
    return grading


def has_own_task(config: Config) -> bool:
    """Return whether prompts or grader are the user's own, so that mathematics measures nothing."""
    # Grading that is off is no task of the user's own.
    has_own_grader = config.grading.grader not in (GradingConfig().grader, ("none",))
    return config.prompts != PAPER_PROMPTS or (has_own_grader and config.data.path != NAME)


def defaults_of(target: str, benchmarks: Sequence[str] = ()) -> EvaluationConfig:
    """Return settings that fit a run or a checkpoint of one; of other targets, the paper's.

    ``benchmarks`` are those that are named; empty: those of the run.
    """
    run, default = run_of(Path(target)), EvaluationConfig()
    if run is not None:
        return evaluation_of(read_run(run), benchmarks)
    names = tuple(benchmarks) or ((NAME,) if target == NAME else default.benchmarks)
    protocol = published_protocol(names, target) or protocol_of(default)
    return _with_protocol_of(replace(default, benchmarks=names), protocol)


def default_benchmarks(config: Config) -> tuple[tuple[str, ...], str]:
    """Return the problems that a run is evaluated on where none are named, and what they are."""
    if config.validation.path:
        return config.validation.paths, "the problems of the run's validation"
    if has_own_task(config):
        return config.data.paths, "the rows of the training, whose prompts or grader are your own"
    if config.data.path == NAME:
        return (NAME,), "held-out problems; the run was trained on others of the demo"
    if config.model.path == NAME:
        return (NAME,), (
            f"held-out problems of the demo, whose model the run trains on {config.data.place}"
        )
    return EvaluationConfig().benchmarks, "the paper's benchmarks"


def evaluation_of(config: Config, benchmarks: Sequence[str] = ()) -> EvaluationConfig:
    """Return settings that fit a run: its grader, and its thinking mode and sampling.

    Without benchmarks, the problems are those of its validation, sampled as there; for tasks of the
    user's own its training rows; for the demo the held-out ones; and else the paper's benchmarks.
    """
    default = EvaluationConfig()
    # A run may do without grades. An evaluation cannot, and has the default grader then.
    if not config.grading.is_off:
        default = replace(default, grading=config.grading)
    default = replace(default, conversation=config.conversation)
    validation, names = config.validation, tuple(benchmarks) or default_benchmarks(config)[0]
    if not benchmarks and validation.path:
        protocol = validation_protocol(config)
        default = replace(default, samples=validation.samples, limit=validation.limit)
    else:
        if not benchmarks and has_own_task(config):
            default = replace(default, limit=config.data.limit)
        protocol = fitting_protocol(config, names)
    return _with_protocol_of(replace(default, benchmarks=names), protocol)


def _with_protocol_of(evaluation: EvaluationConfig, protocol: Protocol) -> EvaluationConfig:
    rollout = with_protocol(evaluation.rollout, protocol)
    return replace(evaluation, thinking=protocol["thinking"], rollout=rollout)
