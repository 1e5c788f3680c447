"""The metrics of a step and of an evaluation, one record each.

What names a metric reads it here: the lines and charts of a run, its collapse warnings, the columns
of evaluations, the names that an algorithm may not give its values, and docs/reference/metrics.md.
A metric is computed where its values are: paint.training.run_log, paint.evaluation.metrics, or the
score of an algorithm. One that has no record is logged all the same.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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


def rose_by(margin: float) -> Outside:
    return lambda last, first: last > first + margin


def shrank_to(share: float) -> Outside:
    return lambda last, first: last < share * first


def grew_to(factor: float) -> Outside:
    return lambda last, first: last > factor * first


def grew_to_and_by(factor: float, margin: float) -> Outside:
    return lambda last, first: last > factor * first and last > first + margin


def at_least(bound: float) -> Outside:
    return lambda last, first: last >= bound


def at_most(bound: float) -> Outside:
    return lambda last, first: last <= bound


def below(bound: float) -> Outside:
    return lambda last, first: last < bound


def clip_misleads(first: Metrics, last: Metrics) -> bool:
    """Whether the divergence has risen since the first step, and its clip takes entries.

    Where rewards are in the loss, too, its sign says nothing.
    """
    has_risen = "kl" in first and "kl" in last and last["kl"] > first["kl"]
    return has_risen and last.get("clip_frac", 0.0) > 0 and "advantage" not in last


def without_reward(first: Metrics, last: Metrics) -> bool:
    """Whether the loss has no reward, which may lead the student away from the teacher rightly."""
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
        from_first: it is judged from the first step on, which may be hopeless already, by as many
            steps as there are. Others are compared with the first step after ``window`` further
            ones.
        is_lasting: each of the last steps is judged, not their mean: one step far out, from which
            a run recovers at once, is none.
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
        "Length of completions",
        "tokens; a fall or a rise of half and more tells a collapse",
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
        "Groups without a gradient",
        "share of groups whose completions have one reward",
        "percent",
    ),
    "drift": RunChart(
        "Drift from the base model", "KL(base \u2016 student) on fixed prompts, nats"
    ),
    "mismatch": RunChart(
        "Engine against trainer",
        "difference of log-probs in nats, mean and 99th percentile",
    ),
    "gradient": RunChart("Size of the gradient", "norm before it is limited"),
}
"""The charts of a run's page, in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric by its name. Capitals in a name stand for any text, as in seconds_PHASE."""

    name: str
    unit: str
    meaning: str  # Markdown, for the reference
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
        name="kl",
        unit="nats",
        meaning="the divergence without the clip, to the same target as the loss; never negative, "
        "except for sampled_token",
        line="KL to target {:.4f}",
        short="KL {:.4f}",
        group="learned",
        charts=("kl",),
        warnings=(
            CollapseWarning(
                "kl",
                # Equal views, as in a control that reads nothing, begin at 0: the factor alone
                # would tell their noise from a rise.
                grew_to_and_by(3.0, 0.05),
                "the student moves away from the teacher",
                (OTHER_CLIP, LOWER_RATE),
                is_lasting=True,
                also=without_reward,
            ),
        ),
    ),
    Metric(
        name="frac_reward_zero_std",
        unit="fraction",
        meaning="grpo, and others that learn from differences of rewards: completions in groups "
        "without reward variance, which have no gradient; so has a group of which one completion "
        "is left",
        line="groups of equal reward {:.0%}",
        short="equal rewards {:.0%}",
        group="learned",
        charts=("groups",),
        warnings=(
            CollapseWarning(
                "equal_rewards",
                at_least(1.0),
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
        name="loss",
        unit="nats",
        meaning="the clipped divergence; pointwise, it may be negative "
        "([what the clip does](../concepts/clip.md)); "
        "grpo: the clipped surrogate, plus β times the KL; sft: −log p_S of the solution's tokens",
        line="loss {:.4f}",
        short="loss {:.4f}",
        group="learned",
        charts=("kl", "loss"),
        warnings=(
            CollapseWarning(
                "negative_loss",
                below(0.0),
                "the loss is below 0 while kl rises: the clip turns the student away from the "
                "teacher",
                (OTHER_CLIP, LOWER_RATE),
                window=1,
                also=clip_misleads,
            ),
        ),
    ),
    Metric(
        name="selected_kl",
        unit="nats",
        meaning="mean kl over the tokens that are interpolated",
        charts=("some_kl",),
    ),
    Metric(
        name="first_kl",
        unit="nats",
        meaning="kl of a completion's first token, mean over completions, whatever the reduction "
        "and skip_tokens; far above kl where the two views' templates differ "
        "([fidelity](../fidelity.md), D9)",
        charts=("some_kl",),
    ),
    Metric(
        name="selected_frac",
        unit="fraction",
        meaning="tokens that are interpolated",
    ),
    Metric(
        name="clip_frac",
        unit="fraction",
        meaning="tokens that the clip reaches, with a clipped entry (pointwise) or above it "
        "(huber, token); grpo: tokens whose ratio is clipped",
        line="clipped {:.1%} of tokens",
        charts=("clip",),
        warnings=(
            CollapseWarning(
                "clipped",
                rose_by(0.2),
                "the clip limits the gradient of many more tokens than at first",
                (OTHER_CLIP, LOWER_RATE, Remedy("raise objective.clip")),
            ),
        ),
    ),
    Metric(
        name="unclipped_mass",
        unit="fraction",
        meaning="P_A, the target's mass on unclipped entries; huber: the factor of a gradient",
        line="unclipped target mass {:.3f}",
        charts=("clip",),
    ),
    Metric(
        name="overlap",
        unit="fraction",
        meaning="α, mean over completions",
        line="overlap with solution {:.2f}",
        charts=("overlap",),
    ),
    Metric(
        name="overlap_without_answer",
        unit="fraction",
        meaning="the overlap over the anchors outside boxes, mean over completions; 0 where a "
        "solution has no others; not used for training",
        charts=("overlap",),
        warnings=(
            CollapseWarning(
                "overlap", shrank_to(0.5), "completions hold fewer of the solution's steps"
            ),
        ),
    ),
    Metric(
        name="mask_ratio",
        unit="fraction",
        meaning="ρ, mean over completions",
        line="solution hidden {:.0%}",
        charts=("mask_ratio",),
    ),
    Metric(
        name="turns",
        unit="number",
        meaning="turns of the student in a conversation, mean over conversations "
        "(`conversation.tools` and `conversation.environment` only)",
        line="{:.1f} turns",
    ),
    Metric(
        name="tool_calls",
        unit="number",
        meaning="calls of tools in a conversation, mean over conversations (where tools are "
        "offered, as the next)",
        warnings=(
            CollapseWarning(
                "no_tool_call",
                at_most(0.0),
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
    Metric(
        name="tool_errors",
        unit="number",
        meaning="of these, calls that failed or could not be read",
    ),
    Metric(
        name="verified_peers",
        unit="number",
        meaning="right completions of the same problem in other rows of the step, mean over "
        "completions; `context.source` `rollout` only",
    ),
    Metric(
        name="student_entropy",
        unit="nats",
        meaning="H_S",
        charts=("entropy",),
        warnings=(
            CollapseWarning(
                "entropy_low",
                shrank_to(0.25),
                "the student is sure of nearly every token, and explores no more",
                (LOWER_RATE, Remedy("raise rollout.temperature")),
            ),
            CollapseWarning(
                "entropy_high",
                grew_to(2.0),
                "the student becomes unsure: it overshoots the teacher, or the updates are too "
                "large",
            ),
        ),
    ),
    Metric(
        name="teacher_entropy",
        unit="nats",
        meaning="H_T before interpolation",
        charts=("entropy",),
    ),
    Metric(
        name="teacher_gap",
        unit="nats",
        meaning="log-prob of a token of the teacher's own answer under the teacher, less that "
        "under the student: what the context tells of it; variant `sft_teacher`",
    ),
    Metric(
        name="loss_weight",
        unit="–",
        meaning="weight of a completion by its verdict: mean over completions; 0: no completion "
        "had one, and nothing was updated; variant `on_correct`",
    ),
    Metric(
        name="advantage",
        unit="–",
        meaning="grpo: mean over completions; 0 but for rounding",
    ),
    Metric(
        name="grpo_loss",
        unit="nats",
        meaning="variant `rewarded`: GRPO's part of the loss, without its weight",
    ),
    Metric(
        name="base_kl",
        unit="nats",
        meaning="grpo with a KL term: p_base / p − log (p_base / p) − 1; the base is the model "
        "before training",
    ),
    # What the run computes
    Metric(
        name="sft_loss",
        unit="nats",
        meaning="with `objective.sft_weight`: −log p_S of the reference solutions' tokens, which "
        "the update has with the step's weight; `loss` is without it",
        of_run=True,
        line="solutions {:.4f}",
        charts=("loss",),
    ),
    Metric(
        name="sft_weight",
        unit="–",
        meaning="with `objective.sft_weight`: its value in this step; with 0 there is no sft_loss",
        of_run=True,
    ),
    Metric(
        name="drift",
        unit="nats",
        meaning="with `health.drift_path`: KL(base ‖ student) a token after the step's update, on "
        "completions of fixed prompts that the base sampled once; the base is the model before "
        "training",
        of_run=True,
        line="drift {:.3f}",
        charts=("drift",),
        warnings=(
            CollapseWarning(
                "drift",
                rose_by(0.5),
                "the student leaves its base where nothing should change",
                (LOWER_RATE, Remedy("take paint-anchored")),
            ),
        ),
    ),
    Metric(
        name="reward",
        unit="reward",
        meaning="mean over completions that have one: of grpo, and of every grader other than math",
        short="reward {:.3f}",
        group="right",
        charts=("reward",),
    ),
    Metric(
        name="accuracy",
        unit="fraction",
        meaning="share of completions with reward 1 among those with a reward (math: whose last "
        "boxed answer is right); for analysis, and GRPO's reward; never used by PAINT; absent with "
        "`grading.grader` none",
        of_run=True,
        line="answers correct {:.0%}",
        short="correct {:.0%}",
        group="right",
        charts=("accuracy",),
    ),
    Metric(
        name="rewards/NAME/mean",
        unit="reward",
        meaning="with several graders: mean of the rewards of each; `reward` is that of their "
        "weighted sum",
        of_run=True,
    ),
    Metric(
        name="rewards/NAME/std",
        unit="reward",
        meaning="with several graders: sample standard deviation of the rewards of each",
        of_run=True,
    ),
    Metric(
        name="sources/NAME/completions",
        unit="completions",
        meaning="with several sources of problems: completions of each in the step",
        of_run=True,
    ),
    Metric(
        name="sources/NAME/accuracy",
        unit="fraction",
        meaning="with several sources: `accuracy` of the completions of each; missing in a step "
        "without any",
        of_run=True,
        charts=("source_accuracy",),
    ),
    Metric(
        name="sources/NAME/reward",
        unit="reward",
        meaning="with several sources: `reward` of the completions of each",
        of_run=True,
        charts=("source_reward",),
    ),
    Metric(
        name="sources/NAME/kl",
        unit="nats",
        meaning="with several sources: `kl` of the completions of each",
        of_run=True,
        charts=("source_kl",),
    ),
    Metric(
        name="sources/NAME/loss",
        unit="nats",
        meaning="with several sources: `loss` of the completions of each, as if they were the step",
        of_run=True,
    ),
    Metric(
        name="grader_answers",
        unit="completions",
        meaning="with a grader of your own: completions on which it did not fail, over all ranks",
        of_run=True,
    ),
    Metric(
        name="grader_calls",
        unit="calls",
        meaning="with a grader of your own: calls of it in the step, repeated ones included, over "
        "all ranks",
        of_run=True,
        line="{:.0f} calls of the grader",
    ),
    Metric(
        name="grader_failed_calls/KIND",
        unit="calls",
        meaning="those that failed: `HTTP_429` and other statuses, `timed_out`, `no_connection`, "
        "`malformed` (a ValueError, KeyError or IndexError), or the error's type",
        of_run=True,
    ),
    Metric(
        name="grader_seconds",
        unit="s",
        meaning="with a grader of your own: the wall seconds of each call added up, over all ranks",
        of_run=True,
        line="which took {:.1f} s in all",
    ),
    Metric(
        name="completion_tokens",
        unit="tokens",
        meaning="length of a completion, kept or not; sft: length of a solution",
        of_run=True,
        line="{:.0f} tokens each",
        charts=("length",),
        column="tokens an answer",
        column_unit="tokens",
        warnings=(
            CollapseWarning("longer", grew_to(2.0), "completions grow, often without an end"),
            CollapseWarning(
                "shorter",
                shrank_to(0.5),
                "completions skip steps: the teacher may need none, since it reads them in its "
                "context",
                (
                    LOWER_RATE,
                    Remedy("raise context.mask_ratio_wrong and context.mask_ratio_correct"),
                ),
            ),
        ),
    ),
    Metric(
        name="rationale_tokens",
        unit="tokens",
        meaning="length of a rationale; with reason-first only",
        charts=("length",),
    ),
    Metric(
        name="rollout_tokens",
        unit="tokens",
        meaning="tokens that the step sampled from the student, over all ranks and attempts; "
        "sft: 0",
        of_run=True,
    ),
    Metric(
        name="attempts",
        unit="number",
        meaning="how often a problem of the step was drawn, mean over problems "
        "(`rollout.max_attempts` above 1 only, as the next)",
        line="{:.1f} attempts",
    ),
    Metric(
        name="solved_frac",
        unit="fraction",
        meaning="problems of which a completion is right after all attempts",
    ),
    Metric(
        name="lenient_accuracy",
        unit="fraction",
        meaning="share of completions whose last boxed answer is right wherever it stands, also in "
        "a thought (grader math)",
        column="lenient",
    ),
    Metric(
        name="truncated_frac",
        unit="fraction",
        meaning="completions truncated at `rollout.max_new_tokens`",
        of_run=True,
        line="truncated {:.0%}",
        charts=("ends",),
        column="truncated",
        warnings=(
            CollapseWarning(
                "truncated",
                rose_by(0.25),
                "completions no longer end before the limit",
                (LOWER_RATE, LONGER),
            ),
            CollapseWarning(
                "all_truncated",
                at_least(0.9),
                "nearly all completions are cut off at the limit, before their answer",
                (LONGER, Remedy("ask for shorter answers in prompts.student")),
                from_first=True,
            ),
        ),
    ),
    Metric(
        name="unboxed_frac",
        unit="fraction",
        meaning="completions without an answer that the grader reads: a box (math), a letter "
        "(choice), code (code), an end of the thought (exact)",
        of_run=True,
        charts=("ends",),
        column="no answer",
        warnings=(
            CollapseWarning(
                "no_answer",
                rose_by(0.25),
                "completions no longer give an answer",
                (LOWER_RATE, LONGER),
            ),
            CollapseWarning(
                "all_unanswered",
                at_least(0.9),
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
        name="repetitive_frac",
        unit="fraction",
        meaning="completions that repeat themselves at the end",
        of_run=True,
        charts=("ends",),
        column="looping",
        warnings=(
            CollapseWarning(
                "repetition",
                rose_by(0.1),
                "completions repeat themselves",
                (LOWER_RATE, Remedy("train fewer steps")),
            ),
        ),
    ),
    Metric(
        name="grader_failures",
        unit="completions",
        meaning="completions on which the grader failed, which have no reward; every grader other"
        " than math",
        of_run=True,
        column="grader failures",
        column_unit="count",
    ),
    Metric(
        name="kept_completions",
        unit="completions",
        meaning="where some completions only are learned from (variants `oasis`, `u_opsd`; "
        "`context.source` `feedback`, those with feedback; algorithms that learn from "
        "grades, those with a reward): their number, the step's effective batch; the loss"
        " and the values of tokens and overlaps are means over these, and missing where "
        "none is kept",
        of_run=True,
    ),
    Metric(
        name="logprob_mismatch_mean",
        unit="nats",
        meaning="|log p_engine − log p_trainer|, mean over the sampled tokens, bounded by "
        "`rollout.max_logprob_mismatch`; off-policy: against the behavior policy, over "
        "the tokens that are scored again; stored rollouts have none",
        of_run=True,
        charts=("mismatch",),
    ),
    Metric(
        name="logprob_mismatch_p99",
        unit="nats",
        meaning="the 99th percentile of the same",
        of_run=True,
        charts=("mismatch",),
    ),
    Metric(
        name="off_policy_kl",
        unit="nats",
        meaning="off-policy, and for stored rollouts with log-probs: mean of w − 1 − log w over "
        "these tokens, w = p / p_behavior at temperature 1; over tokens drawn at "
        "temperature 1 an estimate of KL(p_behavior ‖ p); never negative; above 0.05 the "
        "run warns",
        of_run=True,
    ),
    Metric(
        name="off_policy_ess",
        unit="fraction",
        meaning="(Σ w)² / (n Σ w²): effective sample size as a share of the tokens, in (0, 1]",
        of_run=True,
    ),
    Metric(
        name="off_policy_max",
        unit="–",
        meaning="the largest w",
        of_run=True,
    ),
    Metric(
        name="seconds_PHASE",
        unit="s",
        meaning="wall time of a phase: rollout, context, rationale, reward, loss, update; sync, "
        "in which the adapter is written for servers; off-policy with servers wait and "
        "submit in place of sync and rollout; off-policy behavior, the scoring by the "
        "behavior policy",
        of_run=True,
    ),
    Metric(
        name="tokens_per_second_rollout",
        unit="1/s",
        meaning="completion tokens of all ranks over that phase's time",
        of_run=True,
        line="rollout {:,.0f} tokens/s",
    ),
    Metric(
        name="tokens_per_second_loss",
        unit="1/s",
        meaning="the same over the phase loss",
        of_run=True,
        line="loss {:,.0f} tokens/s",
    ),
    Metric(
        name="gradient_norm",
        unit="–",
        meaning="norm over all ranks of the step's gradient before `train.max_grad_norm` scales "
        "it down; grpo: of the last update",
        of_run=True,
        charts=("gradient",),
    ),
    Metric(
        name="seconds_left",
        unit="s",
        meaning="estimated from the steps so far",
        of_run=True,
    ),
    Metric(
        name="learning_rate",
        unit="–",
        meaning="that of this step",
        of_run=True,
    ),
    Metric(
        name="step",
        unit="–",
        meaning="the step, from 1",
        of_run=True,
    ),
)
"""All metrics that have a record, in the order of a step's line and of each chart."""


# Each value of each completion is looked up in every step, and these have few names.
@lru_cache(maxsize=1000)
def record_of(name: str) -> Metric | None:
    """The record of a metric's name, if it has one."""
    for metric in METRICS:
        if re.fullmatch(re.sub("[A-Z]+", ".+", metric.name), name):
            return metric
    return None


def is_of_run(name: str) -> bool:
    """Whether the run computes a metric of this name, so that an algorithm's value has another."""
    record = record_of(name)
    return record is not None and record.of_run


def metrics_of_chart(chart: str, logged: Iterable[str]) -> list[str]:
    """The logged metrics of a chart, in the order of their records."""
    names = list(logged)
    return [
        name
        for metric in METRICS
        if chart in metric.charts
        for name in names
        if record_of(name) is metric
    ]
