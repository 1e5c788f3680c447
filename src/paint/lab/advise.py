"""``paint advise``: what each context would teach, before any training.

    rollouts -> verdicts -> the teacher's own answers -> the gap
                         -> scores under every context -> accuracy gradients -> advice

The student answers each problem several times, and so does the teacher, which reads the recipe's
context, or a control in its place. The *gap* is the difference of their rewards: where the teacher
answers no better, there is little to learn.

The student's rollouts are then scored under every context, as training would score them. A context
teaches what separates right rollouts from wrong ones of the same problem. Its *accuracy gradient*
is the rise of the student's accuracy J as the student q moves towards the teacher p, token by
token, along q^(1-a) p^a:

    dJ/da at a = 0   =   E[(R - mean R) sum_n (l_n - E_q l_n)],     l = log p - log q

R is the verdict of a rollout, and the mean is over the other rollouts of its problem.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from paint.config.context_sources import (
    OF_ANOTHER_ROW,
    PLACEBOS,
    SOURCES,
    ContextSource,
    context_source,
)
from paint.config.schema import ContextConfig
from paint.core.display import Display
from paint.core.distributed import require_one_process
from paint.data.contexts import Contexts, with_source
from paint.data.mixtures import first_problems
from paint.data.problems import Problem, problems_digest, read_problems
from paint.evaluation.frame import (
    Chart,
    Measurement,
    Report,
    Table,
    Unit,
    interval_note,
    select_rows,
    table_of,
    to_measurement,
)
from paint.evaluation.generate import base_as_rank1_adapter, with_date
from paint.evaluation.intervals import SHARE, Interval, with_value
from paint.evaluation.metrics import GradedSamples
from paint.lab.answers import (
    UNBOUNDED,
    mean,
    mean_reward,
    publish_report,
    reward_gain,
    truncated_share,
)
from paint.lab.context_scores import (
    STUDENT,
    ContextScores,
    GradedRollouts,
    collect,
    load_student,
    score,
    student_task,
    teacher_answers,
)
from paint.resolve.check import Resolved
from paint.training.prompt_filter import filter_problems

T = TypeVar("T")

RECIPE = "recipe"  # the context of the recipe itself
DEFAULTS = ("solution", "other", "placebo", "none", "answer")  # the contexts where none are named
TRAINING = "training problems"  # the benchmark of all rows

STUDENT_METRICS = {
    "accuracy": "right",
    "rollout_reward": "mean reward, hundredths",
    "both": "problems with right and wrong rollouts",
    "differ": "problems whose rollouts differ in reward",
    "truncated": "truncated",
    "agreed_wrong": "problems whose rollouts mostly agree on one wrong answer",
}

# There is no advice where fewer than this share and this number of problems have rollouts that
# differ; above the other share, something is a risk.
FEW, ENOUGH, MUCH = 0.1, 30, 0.3

CONTROL_NAMES = {"other": "another row's context", "placebo": "a placebo"}

CONTEXT_METRICS: dict[str, tuple[str, Unit, tuple[float, float]]] = {
    "accuracy_gradient": ("accuracy gradient, points", "points", UNBOUNDED),
    "kl": ("KL a token", "", UNBOUNDED),
    "unclipped_mass": ("unclipped mass, %", "%", SHARE),
    "masked": ("masked, %", "%", SHARE),
    "entropy_gap_after_divergence": ("entropy gap after divergence", "signed", UNBOUNDED),
    "answer_leakage": ("right answer after wrong work, %", "%", SHARE),
}
"""Head, unit and bounds of what a context has a value of for each problem."""

CHARTS = [
    Chart(head, metric, unit, benchmark=TRAINING)
    for metric, (head, unit, _) in CONTEXT_METRICS.items()
]

# The metrics of one context by name, a value a problem. The entropy gap and the leakage lack the
# problems without a rollout that diverges, or that boxes a wrong answer.
ContextMetrics = Mapping[str, np.ndarray]

Rewards = Float[np.ndarray, "p k"] | Bool[np.ndarray, "p k"]
"""The reward or the verdict of each rollout; NaN for a rollout without one."""


def advise(
    run: Resolved,
    folder: Path,
    needs: Mapping[str, str],
    problems: int,
    samples: int,
    sources: Sequence[str],
    ratios: Sequence[float],
    *,
    answers: bool = False,
) -> Report:
    """Measure what contexts would teach; print and write the tables and the advice.

    The arguments are those of ``paint.advise``. The rollout section of the run is the sampling;
    with the engine "stored", rollouts that exist are used. ``needs`` are the fields that the
    problems need under all sources, with what needs them.
    """
    require_one_process("paint advise")
    display, config = Display(), run.config
    # The student is the base with an adapter, whatever the recipe trains.
    model = with_date(base_as_rank1_adapter(config.model), folder)
    run = replace(run, config=replace(config, model=model))
    policy, run = load_student(run, folder, display)
    candidates = read_problems(config.data, needs=needs)
    trained_on = filter_problems(policy, run, candidates, display)
    chosen = first_problems(trained_on, config.data, problems, config.train.seed)
    sources = sources or default_sources(config.context, trained_on)
    # One object for all rollouts: it reads a file once, and measures similar problems once.
    options = context_options(config.context, sources, ratios)
    contexts = {name: Contexts(shown, trained_on) for name, shown in options.items()}
    for context in contexts.values():  # an unknown field is refused before anything is sampled
        context.references(chosen[0], config.train.seed)
    # A folder belongs to all rows, since controls show others than the chosen ones.
    digest = problems_digest(trained_on)
    task = student_task(
        policy, run, chosen, samples, folder, problems_digest=digest, stored=run.rollout.stored
    )
    [student] = collect(policy, run, [task], folder, display)
    answered = contexts if answers else _gap_contexts(student, contexts)
    taught = teacher_answers(student, answered, folder / "answers", display)
    report = advice_report(student, score(student, contexts, display), taught)
    if not taught and student.graded.graded.any():
        display.note(
            "the teacher's own answers are not measured: they are sampled, unlike stored rollouts, "
            "in single turns, unlike conversations"
        )
    publish_report(report, folder, display)
    return report


def default_sources(recipe: ContextConfig, problems: Sequence[Problem]) -> list[str]:
    """Return the contexts that are compared by default: those of the rows, and controls."""
    record = recipe_source(recipe)
    if record.origin == "setting":
        return [record.control, record.placebo, "none"]
    return [
        name
        for name in DEFAULTS
        if all(getattr(p, field) for field in SOURCES[name].needs for p in problems)
    ]


def context_options(
    recipe: ContextConfig, sources: Sequence[str], ratios: Sequence[float]
) -> dict[str, ContextConfig]:
    """Return the recipe's context, then every source at each ratio if it can be masked, by name.

    A name holds the source and the masked share: "solution@0.5", "answer". The control of the
    recipe's context is also masked as the recipe's is, by the name of its source alone: "other".
    """
    options = {RECIPE: recipe}
    record = recipe_source(recipe)
    if record.control in sources and not record.is_control:
        options[record.control] = with_source(recipe, record.control)
    for source in sources:
        is_masked = context_source(source).masked
        for ratio in ratios if is_masked else [0.0]:
            name = f"{source}@{ratio:g}" if is_masked else source
            options[name] = with_source(
                recipe, source, mask_ratio_wrong=ratio, mask_ratio_correct=ratio
            )
    return options


def recipe_source(recipe: ContextConfig) -> ContextSource:
    """Return the record of the recipe's context; of several the first that all rows share."""
    records = list(map(context_source, recipe.source))
    return next((record for record in records if record.origin == "setting"), records[0])


def _gap_contexts(student: GradedRollouts, contexts: Mapping[str, Contexts]) -> dict[str, Contexts]:
    """Return the recipe's context and its controls; {} if no answers are sampled."""
    # The teacher's answers are sampled, in single turns, and compared by their grades.
    run = student.run
    can_sample = not run.engine.is_stored and not run.config.conversation.is_on
    if not can_sample or not student.graded.graded.any():
        return {}
    recipe = recipe_source(run.config.context)
    names = (RECIPE, recipe.control, recipe.placebo)
    return {name: contexts[name] for name in names if name in contexts}


def metrics_of(scores: Sequence[Mapping[str, Any]], rewards: Rewards) -> dict[str, np.ndarray]:
    """Reduce the scores under one context to one value a problem."""
    table = pd.DataFrame(scores)
    derivatives = table["directional_derivative"].to_numpy()
    metrics = {"accuracy_gradient": accuracy_gradients(derivatives, rewards)}
    table["masked"] = table["mask_ratio"]
    for name in ("kl", "unclipped_mass"):  # sums over the tokens of a rollout
        table[name] = table[name] / table["tokens"]
    problem = table.index // rewards.shape[1]
    for name in CONTEXT_METRICS:
        if name not in metrics:
            # A mean skips rollouts without a value; a problem may have none.
            values = table[name].astype(float).groupby(problem).mean()
            metrics[name] = values.dropna().to_numpy()
    return metrics


def accuracy_gradients(
    derivatives: Float[np.ndarray, "..."], rewards: Rewards
) -> Float[np.ndarray, " p"]:
    """Return dJ/da of each problem, from the derivative and the reward of each rollout.

    Rollouts without a reward (NaN) are left out; with fewer than two others the gradient is 0.
    """
    gradients = []
    for row, slopes in zip(rewards, derivatives.reshape(rewards.shape), strict=True):
        has_reward = ~np.isnan(row)
        k, graded = int(has_reward.sum()), row[has_reward]
        if k < 2:
            gradients.append(0.0)
            continue
        # The other rollouts of the problem are the baseline, so that the estimate has no bias.
        # r less the mean of the k − 1 others is (r less the mean of all) · k / (k − 1).
        advantage = (graded - graded.mean()) * k / (k - 1)
        gradients.append(float((advantage * slopes[has_reward]).mean()))
    return np.array(gradients)


def advice_report(
    student: GradedRollouts, scores: ContextScores, answers: Mapping[str, GradedSamples]
) -> Report:
    graded, rewards = student.graded, student.graded.scores
    metrics = student_metrics(graded)
    contexts = {name: metrics_of(rows, rewards) for name, rows in scores.items()}
    rows: list[Measurement] = []
    for name, interval in metrics.items():
        rows += to_measurement(STUDENT, TRAINING, name, interval, len(rewards))
    for name, values in contexts.items():
        rows += context_rows(name, values, control_of(name, contexts))
    problems, samples = rewards.shape
    columns: dict[str, tuple[str, Unit]] = {k: (head, "%") for k, head in STUDENT_METRICS.items()}
    title = f"The student: {problems} problems, {samples} rollouts each, in % with 95 % interval"
    of_contexts: dict[str, tuple[str, Unit]] = {}
    for metric, (head, unit, _) in CONTEXT_METRICS.items():
        of_contexts[metric] = (head, unit)
        of_contexts[f"{metric} less other"] = ("less another row's", "points")
    taught = [row for row in select_rows(rows, against=...) if row.policy in contexts]
    tables = [
        table_of(rows, title, columns),
        table_of(taught, "What each context would teach", of_contexts),
    ]
    rows += answer_rows(graded, answers)
    if answers:
        tables.insert(0, _answer_table(rows, samples))
    if graded.graded.any():
        has_solutions = all(row.problem.solution for row in student.rollouts)
        lines = gap_lines(graded, answers)
        lines += advise_on(metrics, contexts, has_solutions=has_solutions)
    else:
        lines = [
            "no advice: the rollouts are not graded, since the rows have no answers; name a grader "
            "that needs none (--grading.grader module:function)"
        ]
    return Report(rows, tables, CHARTS, lines)


def student_metrics(graded: GradedSamples) -> dict[str, Interval]:
    """Return the student's metrics (STUDENT_METRICS)."""
    level, differing = ("accuracy", "both")
    if not graded.has_verdicts:
        level, differing = ("rollout_reward", "differ")
    reward = mean_reward(graded.scores)
    metrics = {} if reward is None else {level: reward}
    # Only these problems have a gradient; with rewards of 0 and 1, some are right and some wrong.
    differ = np.array([len(np.unique(with_value(row))) > 1 for row in graded.scores], float)
    metrics[differing] = mean(differ, SHARE)
    metrics["truncated"] = truncated_share(graded)
    metrics["agreed_wrong"] = mean(agreed_wrong(graded), SHARE)
    return metrics


def agreed_wrong(graded: GradedSamples) -> Float[np.ndarray, " p"]:
    """Return 1 for problems of which over half of the rollouts agree on one wrong answer, or 0."""
    if graded.votes is None:
        return np.zeros(len(graded.correct))
    # More than half: then no other answer has as many votes. That for a right answer is 0.
    votes = graded.votes
    most = [np.bincount(row[row > 0], minlength=1).max() for row in votes]
    agreed: np.ndarray = np.greater(most, votes.shape[1] / 2).astype(float)
    return agreed


def context_rows(
    name: str, metrics: ContextMetrics, control: ContextMetrics | None
) -> list[Measurement]:
    rows: list[Measurement] = []
    for metric, (_, _, bounds) in CONTEXT_METRICS.items():
        values = metrics[metric]
        if len(values):
            rows += to_measurement(name, TRAINING, metric, mean(values, bounds), len(values))
    if control is not None:
        # Problem by problem: both were measured on the same rollouts.
        content = mean(metrics["accuracy_gradient"] - control["accuracy_gradient"])
        rows += to_measurement(name, TRAINING, "accuracy_gradient", content, against="other")
    return rows


def answer_gains(
    name: str, student: GradedSamples, answers: Mapping[str, GradedSamples]
) -> dict[str, Interval]:
    """Return the teacher's mean reward under a context less the student's and the controls'."""
    others = {
        STUDENT: student,
        "other": control_of(name, answers),
        "placebo": placebo_of(name, answers),
    }
    gains = {}
    for against, other in others.items():
        gain = None if other is None else reward_gain(answers[name], other)
        if gain is not None:
            gains[against] = gain
    return gains


def answer_rows(student: GradedSamples, answers: Mapping[str, GradedSamples]) -> list[Measurement]:
    """Return the rows of the student's and the teacher's answers; [] if the latter are missing."""
    if not answers:
        return []
    metric = "avg_at_k" if student.has_verdicts else "reward"
    rows: list[Measurement] = []
    for name, graded in {STUDENT: student, **answers}.items():
        n = len(graded.correct)
        rows += to_measurement(name, TRAINING, metric, mean_reward(graded.scores), n)
        rows += to_measurement(name, TRAINING, "truncated_frac", truncated_share(graded), n)
        if name in answers:
            for against, gain in answer_gains(name, student, answers).items():
                rows += to_measurement(name, TRAINING, metric, gain, n, against=against)
    return rows


def gap_lines(student: GradedSamples, answers: Mapping[str, GradedSamples]) -> list[str]:
    """Return whether the teacher answers better with the recipe's context than the student.

    Empty where the answers were not sampled, or their rewards are not compared.
    """
    gains = answer_gains(RECIPE, student, answers) if RECIPE in answers else {}
    if STUDENT not in gains:
        return []
    gain, truncated = gains[STUDENT], truncated_share(answers[RECIPE])
    points = gain.points(sign=True)
    if gain.low <= 0:
        which = "answers worse than" if gain.high < 0 else "is not seen to answer better than"
        first = "change the wording (prompts.teacher) or the context before any training"
        if gain.mean > 0:
            first = f"take more --problems, or {first}"
        if truncated.low > MUCH:
            first = (
                f"{truncated.points()} % of its answers are truncated, so raise "
                f"rollout.max_new_tokens first"
            )
        return [
            f"the teacher {which} the student: {points} points on the same problems, with the "
            f"recipe's context; {first}"
        ]
    lines = [
        f"there is something to learn: with the recipe's context the teacher answers {points} "
        f"points better than the student, on the same problems"
    ]
    for control, description in CONTROL_NAMES.items():
        if control in gains and gains[control].low <= 0:
            lines.append(
                f"the content is not what helps: with {description} the teacher answers as well, "
                f"{gains[control].points(sign=True)} points"
            )
    return lines


def advise_on(
    student: Mapping[str, Interval],
    contexts: Mapping[str, ContextMetrics],
    *,
    has_solutions: bool = False,
) -> list[str]:
    """Return the advice and its reasons, or "no advice" with what is missing."""
    lines = _student_lines(student, has_solutions=has_solutions)
    tell = student["both"] if "both" in student else student["differ"]
    problems = len(contexts[RECIPE]["accuracy_gradient"])
    # All right or all wrong, a problem's advantages are zero, and so is its gradient.
    if tell.mean < FEW and tell.mean * problems < ENOUGH:
        which, other = "with right and wrong rollouts", "that the model sometimes solves"
        if "differ" in student:
            which, other = "whose rollouts differ in reward", "on which answers differ more"
        lines.append(
            f"no advice: only problems {which} tell, and {tell.points()} % are; take more "
            f"--problems or --samples, or problems {other}"
        )
        return lines

    gradients = {name: metrics["accuracy_gradient"] for name, metrics in contexts.items()}
    # A control that teaches says that the gain is not the content of a context.
    candidates = [name for name in gradients if not context_source(source_of(name)).is_control]
    best = max(candidates, key=lambda name: gradients[name].mean())
    highest = mean(gradients[best])
    if highest.low <= 0:
        why = "0 is in its interval"
        if not math.isfinite(highest.low):  # as of all values without a bound
            why = f"{problems} problems are too few for an interval"
        lines.append(
            f"no advice: of the contexts that are no controls, {best} has the highest accuracy "
            f"gradient, {highest.points(sign=True)}, and {why}; take more --problems, or other "
            f"--contexts"
        )
        return lines

    # Problem by problem: the same rollouts were scored under both contexts.
    gain = mean(gradients[best] - gradients[RECIPE])
    is_better = gain.low > 0 or mean(gradients[RECIPE]).low <= 0
    # Where the two cannot be distinguished there is no reason to change the recipe.
    chosen = best if is_better else RECIPE
    points = mean(gradients[chosen]).points(sign=True)
    lines.append(f"train with {_flags(chosen)}: its accuracy gradient is {points} points")
    if best != RECIPE:
        compared = f"that of {best} less the recipe's is {gain.points(sign=True)}"
        lines.append(compared if chosen == best else f"{compared}, with 0 in its interval")
    return lines + _content_lines(chosen, gradients)


def _student_lines(student: Mapping[str, Interval], *, has_solutions: bool) -> list[str]:
    truncated, agreed = student["truncated"], student["agreed_wrong"]
    accuracy = student.get("accuracy")  # none of a grader that gives numbers
    lines = []
    if truncated.low > MUCH:
        lines.append(
            f"{truncated.points()} % of the rollouts are truncated, which makes them wrong: raise "
            f"rollout.max_new_tokens first"
        )
    if has_solutions and accuracy is not None and accuracy.high < FEW:
        lines.append(
            f"SFT first: the student gets {accuracy.points()} % right, and the rows have "
            f"solutions, which --train.method sft learns"
        )
    if agreed.low > FEW:
        lines.append(
            f"in {agreed.points()} % of the problems most rollouts agree on one answer, and the "
            f"row has another: check the rows' answers; if they come from wrong references, they "
            f"make right rollouts wrong, and the advice with them"
        )
    return lines


def _content_lines(chosen: str, gradients: Mapping[str, np.ndarray]) -> list[str]:
    """Return how much of a context's gradient another row's context or a placebo has."""
    others = [name for name in gradients if source_of(name) in OF_ANOTHER_ROW | PLACEBOS]
    if not others:
        return []
    control = max(others, key=lambda name: gradients[name].mean())
    which = CONTROL_NAMES["placebo" if source_of(control) in PLACEBOS else "other"]
    content = mean(gradients[chosen] - gradients[control])
    if content.low > 0:
        points = content.points(sign=True)
        return [f"{points} of it is content: {which} ({control}) has the rest"]
    return [f"{which} ({control}) teaches as much: it is not the content"]


def source_of(name: str) -> str:
    return name.partition("@")[0]


def control_of(name: str, by_context: Mapping[str, T]) -> T | None:
    """Return the value of another row's context, masked as this one; None for itself."""
    if name == RECIPE:
        # Masked as the recipe's is the control whose name has no ratio (context_options).
        return next((by_context[other] for other in by_context if other in OF_ANOTHER_ROW), None)
    source = context_source(source_of(name))
    if source.is_control:
        return None
    _, at, ratio = name.partition("@")
    return by_context.get(f"{source.control}{at}{ratio}")


def placebo_of(name: str, by_context: Mapping[str, T]) -> T | None:
    """Return the value of a placebo; None for a control."""
    if name != RECIPE and context_source(source_of(name)).is_control:
        return None
    return next((by_context[other] for other in by_context if other in PLACEBOS), None)


def _flags(name: str) -> str:
    if name == RECIPE:
        return "the recipe's own context"
    source, _, ratio = name.partition("@")
    masked = f" --context.mask-ratio-wrong {ratio} --context.mask-ratio-correct {ratio}"
    return f"--context.source {source}{masked if ratio else ''}"


def _answer_table(rows: Sequence[Measurement], samples: int) -> Table:
    columns: dict[str, tuple[str, Unit]] = {}
    columns["avg_at_k"] = (f"Avg@{samples}", "%")
    columns["reward"] = ("mean reward, hundredths", "hundredths")
    for metric in list(columns):
        columns[f"{metric} less {STUDENT}"] = ("less the student's", "points")
        columns[f"{metric} less other"] = ("less another row's", "points")
        columns[f"{metric} less placebo"] = ("less a placebo's", "points")
    columns["truncated_frac"] = ("truncated", "%")
    with_differences = select_rows(rows, against=...)
    # A column of zeros alone is left out.
    used = {(row.metric, row.against) for row in with_differences if row.mean}
    return table_of(
        [row for row in with_differences if (row.metric, row.against) in used],
        f"The gap: the student's and the teacher's own answers, in %"
        f"{interval_note(with_differences)}",
        columns,
    )
