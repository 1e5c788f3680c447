"""Check of a config: loads the objects that it names, and applies the rules between its settings.

A config itself is data (paint.config.schema): ranges are checked there, what needs code, several
sections or the machine here. No model is loaded, and torch is not imported.
"""

import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from paint.config.context_sources import SOURCES, ContextSource, context_source
from paint.config.recipe import SETTINGS, nested, require_package, with_table
from paint.config.run_folder import RunError, latest_checkpoint, read_run, step_of
from paint.config.schema import (
    CPU_ROWS,
    CPU_TOKENS,
    Config,
    LossSettings,
    ModelConfig,
    RolloutConfig,
    TeacherConfig,
)
from paint.core.demo_files import model_path
from paint.core.errors import ConfigError, did_you_mean, format_value
from paint.core.extensions import complete_options, extension_errors
from paint.core.model_folder import other_than_model
from paint.core.settings import require, require_default
from paint.grading.graders import needs_answer
from paint.grading.unit_tests import CodeOptions
from paint.objective.divergences import FORWARD_KL, Divergence, find_divergence
from paint.objective.loss_options import Objective
from paint.resolve.algorithm import Algorithm, RecordedAlgorithm, find_algorithm
from paint.resolve.engines import AUTO, ENGINES, LOCAL, VLLM, EngineType, engine_of
from paint.resolve.environments import tools_of
from paint.resolve.optimizer import AdamW, OptimizerFactory, find_optimizer, learning_rate
from paint.resolve.plan import (
    SLOW,
    UTILIZATION,
    LongestRows,
    Machine,
    Plan,
    ServerFlags,
    Split,
    describe_slow,
    dtype_on,
    gb,
    make_plan,
    require_fit,
    server_flag,
    server_flags,
    with_micro_batch,
)
from paint.resolve.plan_report import start_line
from paint.resolve.shapes import NoModelError

INSTALL = "`pip install 'paint-distill[vllm]'` installs it (docs/how-to/vllm.md)"
SLOWER = "vLLM samples long completions faster (docs/how-to/vllm.md)"

SHORT = 4096
"""Most tokens of a completion for which ``auto`` generates locally: a server takes minutes to
start."""


@dataclass(frozen=True)
class Resolved:
    """A config with the objects that it names."""

    # The grader is opened by the trainer: it has processes, which start and end with the run.
    config: Config
    algorithm: Algorithm
    engine: EngineType
    divergence: Divergence
    optimizer: OptimizerFactory
    plan: Plan | None = None  # None until the machine is known, and for unknown models
    server_flags: ServerFlags | None = None  # of an own server that shares the trainer's GPU
    longest: LongestRows | None = None  # None where the rows were not measured
    notes: tuple[str, ...] = ()  # lines that a run prints at its start
    warnings: tuple[str, ...] = ()  # those on what is likely wrong

    def changed(self, section: str, **settings: Any) -> "Resolved":
        """Return the same with other settings in a section, and the engine that they name."""
        config = self.config.changed(section, **settings)
        return replace(self, config=config, engine=engine_of(config.rollout))

    @property
    def rollout(self) -> RolloutConfig:
        return self.config.rollout

    @cached_property
    def objective(self) -> Objective:
        settings = self.config.objective
        shared = {field.name: getattr(settings, field.name) for field in fields(LossSettings)}
        # In place of None, the temperature of the rollouts (docs/fidelity.md, C6).
        temperature = self.config.loss_temperature
        return Objective(divergence=self.divergence, temperature=temperature, **shared)

    @property
    def method(self) -> str:
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
    def generates(self) -> bool:
        return self.algorithm.generates(self.config)

    @property
    def owns_servers(self) -> bool:
        return self.engine.is_remote and not self.rollout.urls

    @property
    def teacher(self) -> TeacherConfig:
        """The section teacher; without a teacher live weights, of which no copy is kept."""
        return (
            self.config.teacher if self.algorithm.needs_teacher else TeacherConfig(weights="live")
        )

    @property
    def needs_answer(self) -> bool:
        return any(map(needs_answer, self.config.grading.grader))

    @property
    def sources(self) -> list[ContextSource]:
        """What the teacher reads; nothing with a method that has no context."""
        if not self.algorithm.needs_context:
            return []
        return list(map(context_source, self.config.context.source))

    @property
    def needs_grades(self) -> str:
        """The setting by which the training needs grades; empty if it needs none."""
        if self.algorithm.needs_grades:
            return self.method
        if self.feedback:
            return f"context.source {format_value(self.feedback)}"
        return ""

    @property
    def feedback(self) -> str:
        """The source that shows what the grader said; empty without one."""
        return next((source.name for source in self.sources if source.shows_feedback), "")

    @property
    def learns_solutions(self) -> str:
        """The setting by which it learns from the reference solutions; empty if it does not."""
        if not self.algorithm.needs_rollouts:
            return self.method
        return "objective.sft_weight above 0" if self.config.objective.has_sft else ""

    @property
    def needed_fields(self) -> dict[str, str]:
        """Fields that every problem needs in addition to its text, each with what needs it."""
        needed: dict[str, str] = {}
        if self.learns_solutions:
            needed["solution"] = self.learns_solutions
        if self.algorithm.needs_rollouts and "code" in self.config.grading.grader:
            tests = self.config.grading.options.get("tests_field", CodeOptions.tests_field)
            needed[str(tests)] = 'grading.grader "code"'
        if self.needs_grades and self.needs_answer:
            grader = format_value(" ".join(self.config.grading.grader))
            needed["answer"] = f"{self.needs_grades} with grading.grader {grader}"
        for source in self.sources:
            setting = f"context.source {format_value(source.name)}"
            if source.origin == "field":
                # A misspelt source is read as a field, so the sources are listed.
                setting += f" (a field, since it is none of {', '.join(SOURCES)}"
                setting += f"{did_you_mean(source.name, SOURCES)})"
            needed |= dict.fromkeys(source.needs, setting)
            # The teacher reads a verified completion, and a verdict needs the answer.
            if source.grade == "verdict" and self.needs_answer:
                needed["answer"] = setting
        return needed


def _check_engine(rollout: RolloutConfig, engine: EngineType) -> None:
    """Apply the rules of the engine, of a training and of an evaluation. Raises ConfigError."""
    with_engine = f'with rollout.engine "{rollout.engine}"'
    if not engine.is_remote:
        require_default(rollout, "urls", with_engine, 'servers need engine "vllm"')
    if not engine.is_remote or rollout.urls:
        where = 'unless rollout.engine is "vllm" and rollout.urls is empty'
        require_default(rollout, "server_gpus", where, "GPUs of the servers that are started")
    if engine.is_stored:
        require(rollout, "stored", bool(rollout.stored), STORED, WHY_STORED)
    else:
        require_default(rollout, "stored", with_engine, WHY_STORED)
    if rollout.colocate:
        why = "servers generate during training"
        require_default(rollout, "off_policy_steps", "with rollout.colocate", why)


FULL = 'with model.train_mode "full"'
STORED = "a run, an evaluation or a JSONL file of rollouts"
WHY_STORED = "trained on in place of new completions"


def _check_context(run: Resolved) -> None:
    config = run.config
    if not run.algorithm.needs_context:
        for section, key in (
            (config.teacher, "weights"),
            (config.context, "source"),
            (config.context, "wording"),
            (config.objective, "divergence"),
        ):
            require_default(section, key, f"with {run.method}", "it belongs to distillation")
    # An environment may give the reward.
    is_learned = run.needs_grades and not config.conversation.environment
    needs_grades = run.needs_grades or "validation.path"
    is_met = not config.grading.is_off or not (config.validation.path or is_learned)
    allowed = f'other than "none" with {needs_grades}, which needs grades'
    require(config.grading, "grader", is_met, allowed, "it grades nothing")
    is_met = not run.feedback or run.algorithm.passes_over
    why = "it learns from completions of which the grader says nothing, too; distillation does not"
    require(config.context, "source", is_met, f"without {run.feedback} with {run.method}", why)


def _check_data(run: Resolved) -> None:
    config = run.config
    is_met = len(config.data.weights) in (0, max(len(config.data.paths), 1))
    allowed = "empty, or one number for each source"
    require(config.data, "weights", is_met, allowed, f"data.path: {config.data.place}")
    if len(config.data.paths) > 1:
        why = "each has epochs of its own, by data.weights; set train.steps"
        require_default(config.train, "epochs", "with several sources", why)


def _check_sampling(run: Resolved) -> None:
    config, rollout, algorithm = run.config, run.rollout, run.algorithm
    divergence = f"objective.divergence {format_value(config.objective.divergence)}"
    if config.conversation.is_on:
        where = "with conversation.tools and conversation.environment"
        why = "a turn is sampled once the one before it is answered"
        require_default(rollout, "off_policy_steps", where, why)
    if not run.learns_off_policy:
        learner = divergence if run.divergence.is_sampled else run.method
        why = (
            "a gradient by sampled tokens is that of the policy which drew them, and references "
            "are not drawn"
        )
        is_met = not run.engine.is_stored
        require(rollout, "engine", is_met, f'other than "stored" with {learner}', why)
        require_default(rollout, "off_policy_steps", f"with {learner}", why)
    if run.engine.is_stored:
        why = "it samples nothing; `paint eval RUN` evaluates checkpoints"
        for section, key in ((config.validation, "path"), (rollout, "off_policy_steps")):
            require_default(section, key, f'with rollout.engine "{rollout.engine}"', why)
    is_met = not run.divergence.is_sampled or (rollout.top_p, rollout.top_k) == (1, -1)
    allowed = f"1, and rollout.top_k -1, with {divergence}"
    why = "for its gradient, tokens must be drawn from the full distribution"
    require(rollout, "top_p", is_met, allowed, why)
    is_met = not run.tokens_carry_gradient or config.loss_temperature == rollout.temperature
    allowed = f"None or rollout.temperature = {rollout.temperature:g}"
    why = "sampled tokens, which carry the gradient, are drawn at that one"
    require(config.objective, "temperature", is_met, allowed, why)
    if not algorithm.needs_rollouts:
        where, why = f"with {run.method}", "it samples nothing"
        require_default(rollout, "samples_per_problem", where, why)
    is_met = config.train.batch_size % rollout.samples_per_problem == 0
    allowed = f"a multiple of rollout.samples_per_problem = {rollout.samples_per_problem}"
    require(config.train, "batch_size", is_met, allowed, "completions a step")
    is_met = rollout.samples_per_problem >= algorithm.min_samples
    allowed = f"at least {algorithm.min_samples} with {run.method}"
    require(rollout, "samples_per_problem", is_met, allowed, "grpo in the paper: 8")


def _check_loss(run: Resolved) -> None:
    objective, most = run.config.objective, run.rollout.max_new_tokens
    has_rollouts = run.algorithm.needs_rollouts
    is_met = not has_rollouts or objective.skip_tokens < most
    allowed = f"below rollout.max_new_tokens = {most}"
    require(objective, "skip_tokens", is_met, allowed, "others have no token in the loss")
    is_met = has_rollouts or not objective.has_sft
    allowed = f"0, and objective.sft_weight_end None, with {run.method}"
    require(objective, "sft_weight", is_met, allowed, "its own loss is that of the solutions")


def _check_drift(run: Resolved) -> None:
    config, health = run.config, run.config.health
    keeps_base = run.algorithm.needs_teacher and config.teacher.weights == "frozen"
    if config.model.train_mode == "full" and not keeps_base:
        where = f"{FULL} and teacher.weights {config.teacher.weights}"
        why = "the base model is not kept; set teacher.weights frozen, or train_mode lora"
        require_default(health, "drift_path", where, why)
    is_met = "drift" not in health.stop_on or bool(health.drift_path)
    require(health, "stop_on", is_met, "without drift", "it needs health.drift_path")


def unserved(model: ModelConfig) -> str:
    """Return why servers cannot take what is trained of a model, with its setting; "" if they can.

    They take a complete model, which `paint export --merged` writes.
    """
    if model.train_mode == "full":
        return 'model.train_mode "full": servers receive adapters, and it has none'
    return ""


def _check_trained_weights(config: Config) -> None:
    model = config.model
    is_full = model.train_mode == "full"
    if is_full:
        require_default(model, "shard", FULL, "it splits frozen weights only")
        is_met = model.dtype in ("float32", "auto")
        why = f"16-bit weights lose steps of {config.train.learning_rate:g}: docs/fidelity.md, D4"
        require(model, "dtype", is_met, f'"float32" {FULL}', why)
    if model.shard or is_full or config.teacher.weights == "ema":
        where = "without model.train_mode lora, teacher.weights frozen or live, and no model.shard"
        why = "nf4 stores weights that cannot be updated"
        require_default(model, "quantization", where, why)


def check_config(config: Config) -> Resolved:
    """Load what a config names, and apply the rules of every run. Raises ConfigError."""
    optimizer, engine = find_optimizer(config.train), engine_of(config.rollout)
    divergence = find_divergence(config.objective.divergence, table=config.objective.options)
    algorithm = find_algorithm(config.train)
    # With their defaults, as run.json records them: an extension may change its defaults later.
    for section in ("rollout", "conversation", "context", "objective", "train", "grading"):
        complete = complete_options(getattr(config, section), f"{section}.")
        config = replace(config, **{section: complete})
    tools_of(config.conversation)  # loads what is named
    run = Resolved(config, algorithm, engine, divergence, optimizer)
    _ = run.objective  # refuses a clip or kernels that the divergence does not take
    _check_engine(run.rollout, run.engine)
    _check_data(run)
    _check_context(run)
    _check_sampling(run)
    _check_loss(run)
    _check_drift(run)
    with extension_errors("train.method", config.train.method):
        algorithm.check(config)
    return run


def read_resolved(config: Config, needs: Mapping[str, Any]) -> Resolved:
    """Return what scoring again needs: of a run's config, the divergence alone is loaded."""
    divergence = find_divergence(config.objective.divergence, table=config.objective.options)
    # Nothing is sampled or trained: any engine and any optimizer will do.
    return Resolved(config, RecordedAlgorithm(needs), ENGINES[LOCAL], divergence, AdamW())


def check_training(config: Config) -> Resolved:
    """``check_config`` and ``require_trainable``. Raises ConfigError."""
    run = check_config(config)
    require_trainable(run)
    return run


def require_trainable(run: Resolved) -> None:
    """Apply the further rules of a training, of paths and packages. Raises ConfigError."""
    config = run.config
    require_paths(config)
    for tracker in config.log.trackers:
        require_package(f"log.trackers {tracker}", tracker)
    with extension_errors("train.optimizer", config.train.optimizer):
        run.optimizer.check(config.train)
    if config.model.quantization == "nf4":
        require_package("model.quantization nf4", "bitsandbytes")
    _check_trained_weights(config)
    why = unserved(config.model)
    is_met = not (run.engine.is_remote and why)
    require(run.rollout, "engine", is_met, '"local"', why)
    is_met = not run.engine.is_stored or Path(run.rollout.stored).exists()
    require(run.rollout, "stored", is_met, f"{STORED} that exists", WHY_STORED)


def require_same_beginning(run: Resolved, folder: Path) -> tuple[str, ...]:
    """Check that a run of the steps of a resume would have begun as it did; return warnings."""
    before, now = read_run(folder).train, run.config.train
    if now.steps < before.steps:
        raise RunError(
            f"{folder} has {before.steps} steps; "
            f"the number can be raised, but not lowered to {now.steps}"
        )
    if now.steps == before.steps:
        return ()
    last = latest_checkpoint(folder)
    shorter = replace(now, steps=before.steps)
    for step in range(step_of(last) if last else 0):
        rates = [learning_rate(run.optimizer, config, step) for config in (shorter, now)]
        if rates[0] != rates[1]:
            raise RunError(
                f"{folder} cannot be made longer: by train.schedule {now.schedule} and "
                f"train.optimizer {now.optimizer}, of {now.steps} steps, step {step + 1} would "
                f"have had the learning rate {rates[1]:.3g}, not {rates[0]:.3g}; start a new run "
                f"with --train.steps {now.steps}"
            )
    own = [f"train.{key} {getattr(now, key)}" for key in ("method", "optimizer")]
    own = [setting for setting in own if ":" in setting]
    if not own:
        return ()
    return (
        f"train.steps was {before.steps}: where {' or '.join(own)} reads it, the steps so far are "
        f"not those of a run of {now.steps} (their learning rates are)",
    )


def require_paths(config: Config) -> None:
    """Raise ConfigError unless data.path is set, and model.path to what may be a complete model."""
    for name, path, what in (
        ("model", config.model.path, "a folder or hub name"),
        ("data", config.data.place, "a file of problems"),
    ):
        if not path.strip():
            raise ConfigError(
                f"{name}.path is not set: pass --{name}.path with {what} "
                f'(or "demo" for the embedded one), or set path under [{name}] in the recipe'
            )
    other = other_than_model(model_path(config.model.path))
    if other:
        raise ConfigError(f"model.path {format_value(config.model.path)} {other}")


def check_engine(rollout: RolloutConfig) -> EngineType:
    """Look up the engine of an evaluation, by the rules of engines. Raises ConfigError."""
    engine = engine_of(rollout)
    complete_options(rollout, "rollout.")
    _check_engine(rollout, engine)
    return engine


def resolve(run: Resolved, machine: Machine) -> Resolved:
    """Choose what is "auto" in a training, and plan its memory. Raises ConfigError."""
    run = resolve_engine(run, machine)
    run = replace(run, warnings=(*run.warnings, *cautions_of(run), *_without_effect(run)))
    if machine.ranks > 1:
        run = replace(run, notes=(*run.notes, f"{machine.ranks} ranks"))
    # Passes and sums are of all ranks together.
    is_met = run.config.train.batch_size >= machine.ranks
    require(run.config.train, "batch_size", is_met, f"at least {machine.ranks}", "a row a rank")
    # Without sleep, an own server may be on another GPU: its command says so, and nothing else.
    shares = run.owns_servers and run.rollout.colocate
    split = Split(machine.ranks, int(run.owns_servers), shares, "as it was started")
    run = _resolve_dtype(run, machine, split)
    try:
        plan = make_plan(run, machine, split)
        line = start_line(plan)
    except NoModelError:  # loading it would fail for the same reason
        raise
    except ConfigError as error:  # a model that the plan does not know may be trained all the same
        config = with_micro_batch(run.config, CPU_ROWS, CPU_TOKENS, False)
        return replace(run, config=config, notes=(*run.notes, f"no plan: {error}"))
    flags = None
    if machine.gpus:
        require_fit(plan)
        flags = server_flags(plan) if shares else None
    notes = (*run.notes, line)
    return replace(run, config=plan.chosen, plan=plan, server_flags=flags, notes=notes)


def _resolve_dtype(run: Resolved, machine: Machine, split: Split) -> Resolved:
    """Choose the number format: a slow one of 16 bits where float32 needs too much memory."""
    model, dtype = run.config.model, dtype_on(run.config.model, machine)
    chosen, slowdown = run.changed("model", dtype=dtype), machine.slowdown.get(dtype, 0.0)
    if model.dtype == "auto" and dtype == "float32" and model.train_mode == "lora":
        why = describe_slow("bfloat16", machine.slowdown.get("bfloat16", SLOW))
        note = f"model.dtype: float32, since {why}"
        with suppress(ConfigError):  # of a model that the plan does not know
            plan = make_plan(chosen, machine, split)
            if not plan.fits:
                chosen = run.changed("model", dtype="bfloat16")
                needed = gb(plan.memory.peak)
                note = f"model.dtype: bfloat16, as float32 would need {needed} GB; {why}"
        return replace(chosen, notes=(*run.notes, note))
    if slowdown >= SLOW:
        slow = describe_slow(dtype, slowdown)
        warning = (
            f"model.dtype: {slow}; --model.dtype float32 is faster, and takes twice the memory"
        )
        return replace(chosen, warnings=(*run.warnings, warning))
    return chosen


def cautions_of(run: Resolved) -> Iterator[str]:
    """Lines on settings that are allowed, and rarely meant."""
    teacher, divergence = run.teacher, run.config.objective.divergence
    is_long = run.config.train.epochs is not None or teacher.every < run.config.train.steps
    if teacher.weights == "ema" and not is_long:
        yield (
            f"teacher.every is {teacher.every:,}, and the run has train.steps "
            f"{run.config.train.steps:,}: the teacher never changes"
        )
    # Of stored rollouts, reverse KL is another paper's method (the recipe semi-opd).
    if run.rollout.off_policy_steps and divergence != FORWARD_KL.name:
        yield (
            "off-policy: forward KL tolerates completions of another policy, reverse KL does not "
            f"(arXiv 2606.24143), and objective.divergence is {divergence}; watch off_policy_kl"
        )


def _without_effect(run: Resolved) -> Iterator[str]:
    """Lines on settings that differ from their defaults and change nothing."""
    config = run.config
    is_average, is_scheduled = run.teacher.weights == "ema", config.objective.sft_weight_end
    for section, keys, is_used, why in (
        ("teacher", "decay every", is_average, "the teacher is no moving average"),
        ("validation", "samples limit max_new_tokens", config.validation.path, "no path is set"),
        ("objective", "sft_weight_steps", is_scheduled is not None, "sft_weight_end is None"),
        ("rollout", "server server_args", run.owns_servers, "the run starts no server"),
        ("rollout", "server_timeout colocate", run.engine.is_remote, "no server samples"),
    ):
        for key in () if is_used else keys.split():
            value = getattr(getattr(config, section), key)
            if value != getattr(getattr(Config(), section), key):
                yield f"{section}.{key} {format_value(value)} has no effect: {why}"


def with_resolved(config: Config, begun: Config) -> Config:
    """Return the config with what its "auto" became in a run that has begun."""
    is_auto = [name for name in SETTINGS if attrgetter(name)(config) == "auto"]
    return with_table(config, nested({name: attrgetter(name)(begun) for name in is_auto}))


def resolve_engine(run: Resolved, machine: Machine) -> Resolved:
    """Choose the engine of a training; a server on the trainer's GPU sleeps between rollouts."""
    is_auto = run.rollout.engine == AUTO
    # Without samples, as in SFT without validation, there is no server to start.
    if not run.generates and is_auto:
        return run.changed("rollout", engine=LOCAL)
    if not run.generates:
        return run

    engine, why = _choose(run.rollout, machine, run.config.model)
    chosen = run.changed("rollout", engine=engine)
    if _shares_gpu(chosen, machine):
        problem = _sharing_problem(chosen, machine)
        # An engine that the user named is refused; "auto" takes the slower way that is left.
        if problem and not is_auto:
            raise ConfigError(problem)
        if problem:
            chosen, why = run.changed("rollout", engine=LOCAL), f"since {problem}; {SLOWER}"
        else:
            chosen = chosen.changed("rollout", colocate=True)
    notes = (f"engine: {chosen.rollout.engine}, {why}",) if is_auto else ()
    return replace(chosen, notes=notes)


def enable_servers(run: Resolved) -> Resolved:
    """Return the same with an engine on servers, where it is auto and servers can serve it."""
    engine = run.engine.server_engine
    is_open = run.rollout.engine == AUTO or run.engine.is_remote
    if engine and is_open and run.generates and not unserved(run.config.model):
        return run.changed("rollout", engine=engine)
    return run


def resolve_evaluation(
    rollout: RolloutConfig, machine: Machine, *models: ModelConfig, earlier: Collection[str] = ()
) -> tuple[RolloutConfig, list[str]]:
    """Choose the engine of an evaluation or advice, for what is trained of these models.

    Returns the section rollout with it, and what is to be said of it.
    ``auto`` is the engine of ``earlier`` calls that stored samples in the same place.
    """
    samples = not check_engine(rollout).is_stored
    why = "completions are sampled here; `paint grade` grades stored samples"
    require(rollout, "engine", samples, f'other than "{rollout.engine}"', why)
    engine, why = _choose(rollout, machine, *models)
    reason = next(filter(None, map(unserved, models)), "")
    is_met = not (reason and engine_of(replace(rollout, engine=engine)).is_remote)
    hint = "`paint export RUN OUTPUT --merged` writes a complete model, which servers take"
    require(rollout, "engine", is_met, '"local"', f"{reason}; {hint}")
    if rollout.engine != AUTO:
        return rollout, []
    if earlier:
        # The stored samples name their engine, and the call goes on with it.
        engine, why = min(earlier), "as in an earlier call"
    return replace(rollout, engine=engine), [f"engine: {engine}, {why}"]


def _choose(rollout: RolloutConfig, machine: Machine, *models: ModelConfig) -> tuple[str, str]:
    """The engine, and why ``auto`` became it."""
    if rollout.engine != AUTO:
        return rollout.engine, ""
    if rollout.urls or rollout.server_gpus:
        return VLLM, "since servers are named"
    for reason in filter(None, map(unserved, models)):
        return LOCAL, f"since {reason}"
    if not machine.gpus:
        return LOCAL, "since torch sees no GPU"
    if machine.ranks > 1:
        return (
            LOCAL,
            f"since each rank generates; --gpus {machine.ranks} starts servers, and {SLOWER}",
        )
    if rollout.max_new_tokens <= SHORT:
        return LOCAL, f"since completions have at most {rollout.max_new_tokens:,} tokens"
    command = shlex.split(rollout.server)
    if shutil.which(command[0]) is None:
        return LOCAL, f"since `{command[0]}` is not on the PATH; {INSTALL}; {SLOWER}"
    return VLLM, f"since completions are long, and `{shlex.join(command)}` can be started"


def _shares_gpu(run: Resolved, machine: Machine) -> bool:
    """Return whether an own server would use this process's GPU, and nothing says how."""
    rollout = run.rollout
    # It sleeps with rollout.colocate, it may have a share of the memory, or its GPUs are named.
    is_configured = rollout.colocate or server_flag(rollout, UTILIZATION) is not None
    is_apart = bool(rollout.server_gpus) or "CUDA_VISIBLE_DEVICES=" in rollout.server
    return run.owns_servers and machine.gpus > 0 and not is_configured and not is_apart


def _sharing_problem(run: Resolved, machine: Machine) -> str:
    """Return why trainer and server cannot use one GPU in turns, with a remedy; "" if they can."""
    if run.rollout.off_policy_steps:
        return (
            "rollout.off_policy_steps lets the server generate while this process trains, on one "
            "GPU; add --gpus 2, or give the server a part of the memory, as in "
            f'--rollout.server-args="{UTILIZATION} 0.4"'
        )
    one, split = Machine(1, machine.memory), Split(1, 1, True, "in turns")
    try:
        plan = make_plan(run.changed("rollout", colocate=True), one, split)
    except ConfigError:  # a model that the plan does not know may be trained all the same
        return ""
    try:
        require_fit(plan)
        server_flags(plan)
    except ConfigError as error:
        return str(error)
    return ""
