"""The metrics of a step and of an evaluation, one record each.

The lines and charts of a run, its collapse warnings, the columns of evaluations and the names that
an algorithm may not give its values are read from here. Units and meanings are in
docs/reference/metrics.md. A metric is computed where its values are: paint.training.run_log,
paint.evaluation.metrics, or the score of an algorithm. One without a record is logged all the same.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Literal

Metrics = Mapping[str, float]
"""The metrics of a step."""

Outside = Callable[[float, float], bool]
"""Whether a metric's mean over the last steps is out of its band, given that of the first step."""

# One step alone is noisy with few completions. Three give warnings a few steps late, and had no
# false alarm on the demo (docs/how-to/watch-a-run.md).
WINDOW = 3
"""Last steps whose mean is compared with the first step."""


def clip_misleads(first: Metrics, last: Metrics) -> bool:
    """Return whether the divergence has risen while its clip takes entries, without rewards."""
    has_risen = "kl" in first and "kl" in last and last["kl"] > first["kl"]
    return has_risen and last.get("clip_frac", 0.0) > 0 and "advantage" not in last


def without_reward(first: Metrics, last: Metrics) -> bool:
    """Return whether the loss has no reward, which may lead away from the teacher rightly."""
    return "advantage" not in last


@dataclass(frozen=True, slots=True)
class Remedy:
    """What helps, and where: a metric above 0, and one of some clip modes."""

    text: str
    where: str = ""
    clip_modes: tuple[str, ...] = ()


LOWER_RATE = Remedy("lower train.learning_rate")
# Of the clips that take gradient away or turn it around (docs/concepts/clip.md).
OTHER_CLIP = Remedy(
    'set objective.clip_mode "huber"', where="clip_frac", clip_modes=("pointwise", "token")
)
LONGER = Remedy("raise rollout.max_new_tokens")


@dataclass(frozen=True, slots=True)
class CollapseWarning:
    """A metric that leaves its band, what that may mean, and what helps, the likeliest first.

    Attributes:
        name: as in health.stop_on.
        window: number of last steps whose mean is judged.
        from_first: it is judged from the first step on; others are compared with it later.
        is_lasting: each of the last steps is judged, not their mean.
        also: of the first and of the last step, what must be met besides.
    """

    name: str
    is_outside: Outside
    meaning: str
    remedies: tuple[Remedy, ...] = (LOWER_RATE,)
    window: int = WINDOW
    from_first: bool = False
    is_lasting: bool = False
    also: Callable[[Metrics, Metrics], bool] | None = None


@dataclass(frozen=True, slots=True)
class RunChart:
    """A chart of a run's page, of the metrics that name it."""

    title: str
    note: str = ""
    format: Literal["number", "percent"] = "number"


CHARTS = {
    "accuracy": RunChart(
        "Right answers while training",
        "share of the step's completions; each step has other problems",
        "percent",
    ),
    "reward": RunChart("Reward", "mean over the step's completions"),
    "kl": RunChart(
        "Distance from the teacher (KL)",
        "nats a token; loss is the same with the clip, and may be negative with pointwise",
    ),
    "loss": RunChart("Loss"),
    "source_accuracy": RunChart(
        "Right answers by source", "share of a source's completions in the step", "percent"
    ),
    "source_reward": RunChart("Reward by source", "mean over a source's completions in the step"),
    "source_kl": RunChart("Distance from the teacher (KL) by source", "nats a token"),
    "length": RunChart(
        "Length of completions", "tokens; a fall or a rise of half and more tells a collapse"
    ),
    "entropy": RunChart(
        "Entropy of student and teacher",
        "nats a token, H_S and H_T; near 0 the student explores no more",
    ),
    "ends": RunChart(
        "Cut off, without an answer, repetitive", "share of the step's completions", "percent"
    ),
    "overlap": RunChart(
        "Overlap with the solution",
        "share of the solution's anchors (numbers, formulas) in the completion",
        "percent",
    ),
    "mask_ratio": RunChart(
        "Hidden part of the solution",
        "mask ratio: the share that the teacher does not see",
        "percent",
    ),
    "clip": RunChart(
        "Clipped tokens",
        "share of tokens with a clipped entry; unclipped_mass is the target's mass without them, "
        "P_A",
        "percent",
    ),
    "some_kl": RunChart(
        "KL of some tokens",
        "nats; of tokens whose target is mixed with the student, and of first tokens",
    ),
    "groups": RunChart(
        "Groups without a gradient", "share of groups whose completions have one reward", "percent"
    ),
    "drift": RunChart(
        "Drift from the base model", "KL(base \u2016 student) on fixed prompts, nats"
    ),
    "mismatch": RunChart(
        "Engine against trainer", "difference of log-probs in nats, mean and 99th percentile"
    ),
    "gradient": RunChart("Size of the gradient", "norm before it is limited"),
}
"""The charts of a run's page, in its order."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by its name. Capitals in a name stand for any text, as in seconds_PHASE."""

    name: str
    _: KW_ONLY
    of_run: bool = False  # the run computes it: an algorithm's value may not have the name
    line: str = ""  # in a step's line at level DEBUG
    short: str = ""  # in a step's short line
    group: str = ""  # of the short line, which has the first metric of each that a step has
    charts: tuple[str, ...] = ()  # of CHARTS
    column: str = ""  # its head in tables of evaluations
    column_unit: Literal["%", "tokens", "count"] = "%"
    warnings: tuple[CollapseWarning, ...] = ()


METRICS = (
    # What an algorithm's score has
    Metric(
        "kl",
        line="KL to target {:.4f}",
        short="KL {:.4f}",
        group="learned",
        charts=("kl",),
        warnings=(
            CollapseWarning(
                "kl",
                # Equal views, as in a control that reads nothing, begin at 0: the factor alone
                # would tell their noise from a rise.
                lambda last, first: last > 3.0 * first and last > first + 0.05,
                "the student moves away from the teacher",
                (OTHER_CLIP, LOWER_RATE),
                is_lasting=True,
                also=without_reward,
            ),
        ),
    ),
    Metric(
        "frac_reward_zero_std",
        line="groups of equal reward {:.0%}",
        short="equal rewards {:.0%}",
        group="learned",
        charts=("groups",),
        warnings=(
            CollapseWarning(
                "equal_rewards",
                lambda last, first: last >= 1.0,
                "no reward differs from those of the same problem: nothing is learned from them",
                (
                    Remedy("take problems of which some completions are right"),
                    Remedy("raise rollout.samples_per_problem or rollout.temperature"),
                    Remedy("take a grader that tells completions apart"),
                ),
                from_first=True,
            ),
        ),
    ),
    Metric(
        "loss",
        line="loss {:.4f}",
        short="loss {:.4f}",
        group="learned",
        charts=("kl", "loss"),
        warnings=(
            CollapseWarning(
                "negative_loss",
                lambda last, first: last < 0.0,
                "the loss is below 0 while kl rises: the clip turns the student away from the "
                "teacher",
                (OTHER_CLIP, LOWER_RATE),
                window=1,
                also=clip_misleads,
            ),
        ),
    ),
    Metric("selected_kl", charts=("some_kl",)),
    Metric("first_kl", charts=("some_kl",)),
    Metric("selected_frac"),
    Metric(
        "clip_frac",
        line="clipped {:.1%} of tokens",
        charts=("clip",),
        warnings=(
            CollapseWarning(
                "clipped",
                lambda last, first: last > first + 0.2,
                "the clip limits the gradient of many more tokens than at first",
                (OTHER_CLIP, LOWER_RATE, Remedy("raise objective.clip")),
            ),
        ),
    ),
    Metric("unclipped_mass", line="unclipped target mass {:.3f}", charts=("clip",)),
    Metric("overlap", line="overlap with solution {:.2f}", charts=("overlap",)),
    Metric(
        "overlap_without_answer",
        charts=("overlap",),
        warnings=(
            CollapseWarning(
                "overlap",
                lambda last, first: last < 0.5 * first,
                "completions hold fewer of the solution's steps",
            ),
        ),
    ),
    Metric("mask_ratio", line="solution hidden {:.0%}", charts=("mask_ratio",)),
    Metric("turns", line="{:.1f} turns"),
    Metric(
        "tool_calls",
        warnings=(
            CollapseWarning(
                "no_tool_call",
                lambda last, first: last <= 0.0,
                "no completion called a tool: the model cannot use what it is offered, or does not "
                "need it",
                (
                    Remedy("take a model that was trained on tool calls"),
                    Remedy("ask for calls in prompts.student"),
                    Remedy("leave conversation.tools out"),
                ),
                from_first=True,
            ),
        ),
    ),
    Metric("tool_errors"),
    Metric("verified_peers"),
    Metric(
        "student_entropy",
        charts=("entropy",),
        warnings=(
            CollapseWarning(
                "entropy_low",
                lambda last, first: last < 0.25 * first,
                "the student is sure of nearly every token, and explores no more",
                (LOWER_RATE, Remedy("raise rollout.temperature")),
            ),
            CollapseWarning(
                "entropy_high",
                lambda last, first: last > 2.0 * first,
                "the student becomes unsure: it overshoots the teacher, or the updates are too "
                "large",
            ),
        ),
    ),
    Metric("teacher_entropy", charts=("entropy",)),
    Metric("teacher_gap"),
    Metric("loss_weight"),
    Metric("advantage"),
    Metric("grpo_loss"),
    Metric("base_kl"),
    # What the run computes
    Metric("sft_loss", of_run=True, line="solutions {:.4f}", charts=("loss",)),
    Metric("sft_weight", of_run=True),
    Metric(
        "drift",
        of_run=True,
        line="drift {:.3f}",
        charts=("drift",),
        warnings=(
            CollapseWarning(
                "drift",
                lambda last, first: last > first + 0.5,
                "the student leaves its base where nothing should change",
                (LOWER_RATE, Remedy("take paint-anchored")),
            ),
        ),
    ),
    Metric("reward", short="reward {:.3f}", group="right", charts=("reward",)),
    Metric(
        "accuracy",
        of_run=True,
        line="answers correct {:.0%}",
        short="correct {:.0%}",
        group="right",
        charts=("accuracy",),
    ),
    Metric("rewards/NAME/mean", of_run=True),
    Metric("rewards/NAME/std", of_run=True),
    Metric("sources/NAME/completions", of_run=True),
    Metric("sources/NAME/accuracy", of_run=True, charts=("source_accuracy",)),
    Metric("sources/NAME/reward", of_run=True, charts=("source_reward",)),
    Metric("sources/NAME/kl", of_run=True, charts=("source_kl",)),
    Metric("sources/NAME/loss", of_run=True),
    Metric("grader_answers", of_run=True),
    Metric("grader_calls", of_run=True, line="{:.0f} calls of the grader"),
    Metric("grader_failed_calls/KIND", of_run=True),
    Metric("grader_prompt_tokens", of_run=True),
    Metric("grader_completion_tokens", of_run=True),
    Metric("grader_seconds", of_run=True, line="which took {:.1f} s in all"),
    Metric(
        "completion_tokens",
        of_run=True,
        line="{:.0f} tokens each",
        charts=("length",),
        column="tokens an answer",
        column_unit="tokens",
        warnings=(
            CollapseWarning(
                "longer",
                lambda last, first: last > 2.0 * first,
                "completions grow, often without an end",
            ),
            CollapseWarning(
                "shorter",
                lambda last, first: last < 0.5 * first,
                "completions skip steps: the teacher may need none, since it reads them in its "
                "context",
                (
                    LOWER_RATE,
                    Remedy("raise context.mask_ratio_wrong and context.mask_ratio_correct"),
                ),
            ),
        ),
    ),
    Metric("rationale_tokens", charts=("length",)),
    Metric("rollout_tokens", of_run=True),
    Metric("attempts", line="{:.1f} attempts"),
    Metric("solved_frac"),
    Metric("lenient_accuracy", column="lenient"),
    Metric(
        "truncated_frac",
        of_run=True,
        line="truncated {:.0%}",
        charts=("ends",),
        column="truncated",
        warnings=(
            CollapseWarning(
                "truncated",
                lambda last, first: last > first + 0.25,
                "completions no longer end before the limit",
                (LOWER_RATE, LONGER),
            ),
            CollapseWarning(
                "all_truncated",
                lambda last, first: last >= 0.9,
                "nearly all completions are cut off at the limit, before their answer",
                (LONGER, Remedy("ask for shorter answers in prompts.student")),
                from_first=True,
            ),
        ),
    ),
    Metric(
        "unboxed_frac",
        of_run=True,
        charts=("ends",),
        column="no answer",
        warnings=(
            CollapseWarning(
                "no_answer",
                lambda last, first: last > first + 0.25,
                "completions no longer give an answer",
                (LOWER_RATE, LONGER),
            ),
            CollapseWarning(
                "all_unanswered",
                lambda last, first: last >= 0.9,
                "nearly no completion gives an answer that the grader reads",
                (
                    LONGER,
                    Remedy("ask for the answer in prompts.student"),
                    Remedy("take another grading.grader"),
                ),
                from_first=True,
            ),
        ),
    ),
    Metric(
        "repetitive_frac",
        of_run=True,
        charts=("ends",),
        column="looping",
        warnings=(
            CollapseWarning(
                "repetition",
                lambda last, first: last > first + 0.1,
                "completions repeat themselves",
                (LOWER_RATE, Remedy("train fewer steps")),
            ),
        ),
    ),
    Metric("grader_failures", of_run=True, column="grader failures", column_unit="count"),
    Metric("kept_completions", of_run=True),
    Metric("logprob_mismatch_mean", of_run=True, charts=("mismatch",)),
    Metric("logprob_mismatch_p99", of_run=True, charts=("mismatch",)),
    Metric("off_policy_kl", of_run=True),
    Metric("off_policy_ess", of_run=True),
    Metric("off_policy_max", of_run=True),
    Metric("seconds_PHASE", of_run=True),
    Metric("tokens_per_second_rollout", of_run=True, line="rollout {:,.0f} tokens/s"),
    Metric("tokens_per_second_loss", of_run=True, line="loss {:,.0f} tokens/s"),
    Metric("gradient_norm", of_run=True, charts=("gradient",)),
    Metric("seconds_left", of_run=True),
    Metric("learning_rate", of_run=True),
    Metric("step", of_run=True),
)
"""All metrics that have a record, in the order of a step's line and of each chart."""


# Each value of each completion is looked up in every step, and these have few names.
@lru_cache(maxsize=1000)
def record_of(name: str) -> Metric | None:
    """Return the record of a metric's name, if it has one."""
    for metric in METRICS:
        if re.fullmatch(re.sub("[A-Z]+", ".+", metric.name), name):
            return metric
    return None


def is_of_run(name: str) -> bool:
    """Return whether the run computes a metric of this name."""
    record = record_of(name)
    return record is not None and record.of_run


def step_values(metrics: Metrics, *, in_full: bool) -> list[str]:
    """Return the values of a step's line as texts: all that have a ``line``, or four at most."""
    if in_full:
        shown_in_full = [metric for metric in METRICS if metric.line and metric.name in metrics]
        return [metric.line.format(metrics[metric.name]) for metric in shown_in_full]
    shown: dict[str, str] = {}
    for metric in METRICS:
        if metric.short and metric.name in metrics:
            shown.setdefault(metric.group, metric.short.format(metrics[metric.name]))
    phases = [name for name in metrics if name.startswith("seconds_") and name != "seconds_left"]
    seconds = [f"{sum(metrics[name] for name in phases):.1f} s"] if phases else []
    return [*shown.values(), *seconds]


def metrics_of_chart(chart: str, logged: Iterable[str]) -> list[str]:
    """Return the logged metrics of a chart, in the order of their records."""
    names = list(logged)
    of_chart = [metric for metric in METRICS if chart in metric.charts]
    return [name for metric in of_chart for name in names if record_of(name) is metric]
