"""The metrics of a step and of an evaluation, one record each.

Lines, charts, columns of evaluations and reserved names are read from here; meanings and units are
in docs/reference/metrics.md. A metric without a record is logged all the same.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Literal

Metrics = Mapping[str, float]
"""The metrics of a step."""


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


METRICS = (
    # What an algorithm's score has
    Metric("kl", line="KL to target {:.4f}", short="KL {:.4f}", group="learned", charts=("kl",)),
    Metric(
        "frac_reward_zero_std",
        line="groups of equal reward {:.0%}",
        short="equal rewards {:.0%}",
        group="learned",
        charts=("groups",),
    ),
    Metric("loss", line="loss {:.4f}", short="loss {:.4f}", group="learned", charts=("kl", "loss")),
    Metric("selected_kl", charts=("some_kl",)),
    Metric("first_kl", charts=("some_kl",)),
    Metric("selected_frac"),
    Metric("clip_frac", line="clipped {:.1%} of tokens", charts=("clip",)),
    Metric("unclipped_mass", line="unclipped target mass {:.3f}", charts=("clip",)),
    Metric("overlap", line="overlap with solution {:.2f}", charts=("overlap",)),
    Metric("overlap_without_answer", charts=("overlap",)),
    Metric("mask_ratio", line="solution hidden {:.0%}", charts=("mask_ratio",)),
    Metric("turns", line="{:.1f} turns"),
    Metric("tool_calls"),
    Metric("tool_errors"),
    Metric("verified_peers"),
    Metric("student_entropy", charts=("entropy",)),
    Metric("teacher_entropy", charts=("entropy",)),
    Metric("teacher_gap"),
    Metric("loss_weight"),
    Metric("advantage"),
    Metric("grpo_loss"),
    Metric("base_kl"),
    # What the run computes
    Metric("sft_loss", of_run=True, line="solutions {:.4f}", charts=("loss",)),
    Metric("sft_weight", of_run=True),
    Metric("drift", of_run=True, line="drift {:.3f}", charts=("drift",)),
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
    Metric(
        "completion_tokens",
        of_run=True,
        line="{:.0f} tokens each",
        charts=("length",),
        column="tokens an answer",
        column_unit="tokens",
    ),
    Metric("rationale_tokens", charts=("length",)),
    Metric("rollout_tokens", of_run=True),
    Metric("lenient_accuracy", column="lenient"),
    Metric(
        "truncated_frac", of_run=True, line="truncated {:.0%}", charts=("ends",), column="truncated"
    ),
    Metric("unboxed_frac", of_run=True, charts=("ends",), column="no answer"),
    Metric("repetitive_frac", of_run=True, charts=("ends",), column="looping"),
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
