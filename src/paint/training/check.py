"""Check of a config: loads the objects that it names, and applies the rules between its settings.

    check_config(config)     a Resolved, by the rules of every run (RULES)
    check_training(config)   the same, by the rules of a training, too (TRAINING_RULES)
    check_engine(rollout)    the engine of an evaluation, which has no algorithm

A config itself is data (paint.config.schema): ranges are checked there, what needs code or several
sections here. No model is loaded, and torch is not imported.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from paint.algorithms.base import Algorithm, find_algorithm
from paint.config.recipe import require_bitsandbytes, require_paths
from paint.config.schema import CONTEXT_SOURCES, Config, RolloutConfig
from paint.core.errors import ConfigError, format_short, format_value
from paint.estimate.plan import Plan
from paint.grading.registry import needs_answer
from paint.inference.registry import EngineType, engine_of
from paint.objective.divergences import Divergence, find_divergence
from paint.objective.options import Objective
from paint.training.optim import OptimizerFactory, find_optimizer


@dataclass(frozen=True)
class Resolved:
    """A config with the objects that it names.

    Attributes:
        plan: the memory plan; None until the machine is known.
    """

    config: Config
    algorithm: Algorithm
    engine: EngineType
    divergence: Divergence
    optimizer: OptimizerFactory
    plan: Plan | None = None

    @property
    def rollout(self) -> RolloutConfig:
        return self.config.rollout

    @property
    def objective(self) -> Objective:
        """What the loss takes."""
        settings = self.config.objective
        names = {field.name for field in fields(Objective)} - {"divergence", "temperature"}
        return Objective(
            divergence=self.divergence,
            temperature=self.config.loss_temperature,
            **{name: getattr(settings, name) for name in names},
        )

    @property
    def method(self) -> str:
        """The algorithm, for messages."""
        return f"train.method {format_value(self.config.train.method)}"

    @property
    def tokens_carry_gradient(self) -> bool:
        """Whether the gradient is that of the policy which drew the tokens."""
        return self.algorithm.uses_policy_gradient or self.divergence.is_sampled

    @property
    def learns_off_policy(self) -> bool:
        """Whether it can learn from completions of another policy than the one that is trained."""
        return self.algorithm.needs_rollouts and not self.tokens_carry_gradient

    @property
    def is_off_policy(self) -> bool:
        """Whether completions are those of another policy than the one that is trained."""
        return bool(self.rollout.off_policy_steps) or self.engine.is_stored

    @property
    def generates(self) -> bool:
        """Whether a run samples completions: to learn from them, or to validate."""
        return self.algorithm.generates(self.config)

    @property
    def owns_servers(self) -> bool:
        """Whether the run starts its own servers."""
        return self.engine.is_remote and not self.rollout.urls

    @property
    def needs_teacher(self) -> bool:
        """Whether it scores under the teacher's weights."""
        return self.algorithm.needs_teacher(self.config)

    @property
    def needs_answer(self) -> bool:
        """Whether the grader compares with a gold answer."""
        return any(map(needs_answer, self.config.grading.grader))

    @property
    def needs_grades(self) -> str:
        """The setting by which the training needs grades; empty if it needs none."""
        return self.method if self.algorithm.needs_grades else ""

    @property
    def needed_fields(self) -> dict[str, str]:
        """The fields that every problem must have beside its text, each with what needs it."""
        needed: dict[str, str] = {}
        if not self.algorithm.needs_rollouts:
            needed["solution"] = self.method
        if self.needs_grades and self.needs_answer:
            grader = format_value(" ".join(self.config.grading.grader))
            needed["answer"] = f"{self.needs_grades} with grading.grader {grader}"
        for source in self.config.context.source if self.algorithm.needs_context else ():
            setting = f"context.source {format_value(source)}"
            if source in ("solution", "other"):
                needed["solution"] = setting
            elif source in ("answer", "wrong_answer"):
                needed["answer"] = setting
            elif source == "rollout":
                if self.needs_answer:
                    needed["answer"] = setting
            elif source not in CONTEXT_SOURCES and ":" not in source:
                needed[source] = setting
        return needed


class Rule(NamedTuple):
    """A value that is refused: "SETTING must be MUST_BE, got VALUE (WHY)".

    In both texts, ``{train.steps}`` is the value of a setting, and ``{method}`` one of ``_words``.
    """

    refuses: Callable[[Any], bool]
    setting: str
    must_be: str
    why: str


@dataclass(frozen=True)
class Sampling:
    """Where completions come from: all that the engine's rules read."""

    rollout: RolloutConfig
    engine: EngineType

    @property
    def owns_servers(self) -> bool:
        return self.engine.is_remote and not self.rollout.urls


ENGINE_RULES = (
    Rule(
        lambda run: run.rollout.urls and not run.engine.is_remote,
        "rollout.urls",
        'empty with rollout.engine "{rollout.engine}"',
        'servers need engine "vllm"',
    ),
    Rule(
        lambda run: run.rollout.server_gpus and not run.owns_servers,
        "rollout.server_gpus",
        'empty unless rollout.engine is "vllm" and rollout.urls is empty',
        "GPUs of the servers that are started",
    ),
    Rule(
        lambda run: run.engine.is_stored and not run.rollout.stored,
        "rollout.stored",
        'a run, an evaluation or a JSONL file with rollout.engine "{rollout.engine}"',
        "trained on in place of new completions",
    ),
    Rule(
        lambda run: run.rollout.stored and not run.engine.is_stored,
        "rollout.stored",
        'empty with rollout.engine "{rollout.engine}"',
        "trained on in place of new completions",
    ),
    Rule(
        lambda run: run.rollout.off_policy_steps and run.rollout.colocate,
        "rollout.off_policy_steps",
        "0 with rollout.colocate",
        "servers generate during training",
    ),
)
"""Rules of the engine, of a training and of an evaluation."""


def _is_ignored(setting: str, run: Resolved) -> bool:
    """Whether a setting of distillation is set, and the algorithm has none."""
    section, key = setting.split(".")
    is_default = getattr(getattr(run.config, section), key) == _default(setting)
    return not (run.algorithm.needs_context or is_default)


def _default(setting: str) -> Any:
    section, key = setting.split(".")
    return getattr(getattr(Config(), section), key)


def _of_distillation(setting: str) -> Rule:
    """A setting that the baselines would ignore: they have no teacher and no divergence."""
    default = _default(setting)
    text = format_value(" ".join(default) if isinstance(default, tuple) else default)
    must_be = f"{text} with {{method}}"
    return Rule(partial(_is_ignored, setting), setting, must_be, "it belongs to distillation")


def _has_other_iterations(run: Resolved) -> bool:
    iterations = run.config.grpo.iterations
    updates = run.algorithm.updates_per_batch(run.config)
    return run.algorithm.uses_policy_gradient and iterations != updates


def _lacks_grader(run: Resolved) -> bool:
    is_needed = run.needs_grades or run.config.validation.path
    return bool(is_needed) and run.config.grading.is_off


def _has_other_temperature(run: Resolved) -> bool:
    return run.tokens_carry_gradient and run.config.loss_temperature != run.rollout.temperature


def _loses_base(run: Resolved) -> bool:
    """Whether no copy of the model before training is kept."""
    if run.config.model.train_mode == "lora":
        return False
    return not (run.needs_teacher and run.config.teacher.weights == "frozen")


NOT_DRAWN = (
    "a gradient by sampled tokens is that of the policy which drew them, and references are not "
    "drawn"
)
SAMPLES_NOTHING = "it samples nothing; `paint eval RUN` evaluates checkpoints"
NO_BASE = "the base model is not kept; set teacher.weights frozen, or train_mode lora"
FULL = "with model.train_mode full and teacher.weights {teacher.weights}"

RULES = (
    *ENGINE_RULES,
    _of_distillation("teacher.weights"),
    _of_distillation("context.source"),
    _of_distillation("context.wording"),
    _of_distillation("objective.divergence"),
    Rule(
        _has_other_iterations,
        "grpo.iterations",
        "{updates} with {method}",
        "updates on the same completions",
    ),
    Rule(
        _lacks_grader,
        "grading.grader",
        'other than "none" with {needs_grades}, which needs grades',
        "it grades nothing",
    ),
    Rule(
        _has_other_temperature,
        "objective.temperature",
        "None or rollout.temperature = {rollout.temperature:g}",
        "sampled tokens, which carry the gradient, are drawn at that one",
    ),
    Rule(
        lambda run: run.divergence.is_sampled and run.rollout.top_p != 1,
        "rollout.top_p",
        "1 with objective.divergence {divergence}",
        "for its gradient, tokens must be drawn from the whole distribution",
    ),
    Rule(
        lambda run: run.divergence.is_sampled and run.rollout.top_k != -1,
        "rollout.top_k",
        "-1 with objective.divergence {divergence}",
        "for its gradient, tokens must be drawn from the whole distribution",
    ),
    Rule(
        lambda run: run.engine.is_stored and not run.learns_off_policy,
        "rollout.engine",
        'other than "stored" with {learner}',
        NOT_DRAWN,
    ),
    Rule(
        lambda run: run.rollout.off_policy_steps and not run.learns_off_policy,
        "rollout.off_policy_steps",
        "0 with {learner}",
        NOT_DRAWN,
    ),
    Rule(
        lambda run: run.engine.is_stored and run.config.validation.path,
        "validation.path",
        'empty with rollout.engine "{rollout.engine}"',
        SAMPLES_NOTHING,
    ),
    Rule(
        lambda run: run.engine.is_stored and run.rollout.off_policy_steps,
        "rollout.off_policy_steps",
        '0 with rollout.engine "{rollout.engine}"',
        SAMPLES_NOTHING,
    ),
    Rule(
        lambda run: run.config.health.drift_path and _loses_base(run),
        "health.drift_path",
        f"empty {FULL}",
        NO_BASE,
    ),
    Rule(
        lambda run: "drift" in run.config.health.stop_on and not run.config.health.drift_path,
        "health.stop_on",
        "without drift",
        "it needs health.drift_path",
    ),
    Rule(
        lambda run: (
            run.algorithm.needs_rollouts
            and run.config.objective.skip_tokens >= run.rollout.max_new_tokens
        ),
        "objective.skip_tokens",
        "below rollout.max_new_tokens = {rollout.max_new_tokens}",
        "others have no token in the loss",
    ),
    Rule(
        lambda run: run.config.train.batch_size % run.rollout.samples_per_problem != 0,
        "train.batch_size",
        "a multiple of rollout.samples_per_problem = {rollout.samples_per_problem}",
        "completions a step",
    ),
    Rule(
        lambda run: run.rollout.samples_per_problem < run.algorithm.min_samples,
        "rollout.samples_per_problem",
        "at least {min_samples} with {method}",
        "grpo in the paper: 8",
    ),
    Rule(
        lambda run: run.rollout.samples_per_problem != 1 and not run.algorithm.needs_rollouts,
        "rollout.samples_per_problem",
        "1 with {method}",
        "it samples nothing",
    ),
)
"""Rules of every run, in the order in which they are applied."""


def _trains_all(run: Resolved) -> bool:
    return run.config.model.train_mode == "full"


def _updates_weights(run: Resolved) -> bool:
    """Whether the model's own weights change, or a teacher's copy of them."""
    return _trains_all(run) or run.config.teacher.weights == "ema"


TRAINING_RULES = (
    Rule(
        lambda run: _trains_all(run) and run.config.model.dtype != "float32",
        "model.dtype",
        '"float32" with model.train_mode "full"',
        "16-bit weights lose steps of {train.learning_rate:g}: docs/fidelity.md, D4",
    ),
    Rule(
        lambda run: run.config.model.shard and _trains_all(run),
        "model.shard",
        "False without model.train_mode lora",
        "it splits frozen weights only",
    ),
    Rule(
        lambda run: (
            run.config.model.quantization == "nf4"
            and (run.config.model.shard or _updates_weights(run))
        ),
        "model.quantization",
        "none without model.train_mode lora, teacher.weights frozen or live, and no model.shard",
        "nf4 stores weights that cannot be updated",
    ),
    Rule(
        lambda run: _trains_all(run) and run.engine.is_remote,
        "rollout.engine",
        '"local" with model.train_mode "full"',
        "servers receive adapters, and full training has none",
    ),
    Rule(
        lambda run: run.engine.is_stored and not Path(run.rollout.stored).exists(),
        "rollout.stored",
        "a run, an evaluation or a JSONL file of rollouts that exists",
        "it is trained on in place of new completions",
    ),
)
"""Further rules of a training, which a plan or an evaluation need not keep."""


def check_config(config: Config) -> Resolved:
    """Load what a config names, and apply the rules. Raises ConfigError."""
    divergence = find_divergence(config.objective.divergence)
    algorithm, engine = find_algorithm(config.train.method), engine_of(config.rollout)
    optimizer = find_optimizer(config.train)
    run = Resolved(config, algorithm, engine, divergence, optimizer)
    _ = run.objective  # refuses a clip or kernels that the divergence does not take
    _apply(RULES, run, _words(run))
    return run


def check_training(config: Config) -> Resolved:
    """``check_config``, with the rules, paths and packages of a training. Raises ConfigError."""
    run = check_config(config)
    require_paths(config)
    for tracker in config.log.trackers:
        if importlib.util.find_spec(tracker) is None:
            raise ConfigError(
                f"log.trackers names {tracker}, which is not installed: "
                f"pip install {tracker}, or remove it"
            )
    run.optimizer.check(config.train)
    if config.model.quantization == "nf4":
        require_bitsandbytes("model.quantization nf4")
    _apply(TRAINING_RULES, run, _words(run))
    return run


def check_engine(rollout: RolloutConfig) -> EngineType:
    """Look up the engine of an evaluation, by the rules of engines. Raises ConfigError."""
    engine = engine_of(rollout)
    _apply(ENGINE_RULES, Sampling(rollout, engine), {"rollout": rollout})
    return engine


def _apply(rules: Sequence[Rule], run: Resolved | Sampling, words: Mapping[str, Any]) -> None:
    """Raise ConfigError by the first rule that refuses a setting."""
    for rule in rules:
        if rule.refuses(run):
            section, _, key = rule.setting.partition(".")
            value = format_short(getattr(words[section], key))
            must_be, why = rule.must_be.format(**words), rule.why.format(**words)
            raise ConfigError(f"{rule.setting} must be {must_be}, got {value} ({why})")


def _words(run: Resolved) -> dict[str, Any]:
    """What stands in the texts of rules by name: sections of settings, and what is loaded."""
    divergence = format_value(run.config.objective.divergence)
    learner = run.method
    if run.divergence.is_sampled:
        learner = f"objective.divergence {divergence}"
    return {
        **{section.name: getattr(run.config, section.name) for section in fields(Config)},
        "method": run.method,
        "learner": learner,
        "divergence": divergence,
        "needs_grades": run.needs_grades or "validation.path",
        "updates": run.algorithm.updates_per_batch(run.config),
        "min_samples": run.algorithm.min_samples,
    }
