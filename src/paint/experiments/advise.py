"""``paint advise``: what each context would teach, before any training.

    rollouts -> verdicts -> scores under every context -> pull towards right answers -> advice

The student answers each problem several times. The same rollouts are then scored under every
context, as training would score them. A context teaches what separates right rollouts from wrong
ones of the same problem. Its *slope* is the rise of the student's accuracy J as the student q moves
towards the teacher p, token by token, along q^(1-a) p^a:

    dJ/da at a = 0   =   E[(R - mean R) sum_n (l_n - E_q l_n)],     l = log p - log q

R is the verdict of a rollout, and the mean is over the other rollouts of its problem. It needs no
answers of the teacher, but can sample them beside it. All completions are stored as they come, and
the same command goes on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from jaxtyping import Float

from paint.config.recipe import require_paths
from paint.config.schema import Config, ConfigError, ContextConfig
from paint.core.display import Display
from paint.core.distributed import require_one_process
from paint.core.errors import format_value
from paint.core.storage import lock_folder
from paint.data.contexts import CONTROLS, IN_FULL, Contexts
from paint.data.problems import read_problems
from paint.evaluation.generate import base_as_rank1_adapter, load_eval_policy, with_date
from paint.evaluation.intervals import SHARE, Interval, bootstrap, compare
from paint.evaluation.metrics import auc, avg_at_k
from paint.evaluation.store import write_summary
from paint.evaluation.tables import Chart, Sheet, markdown, print_sheets, write_tables
from paint.experiments.rollout_bank import (
    Bank,
    Scores,
    answer,
    collect,
    first_problems,
    recorded_engine,
    score,
)
from paint.grading.math.grader import MathGrade
from paint.inference.machine import find_machine
from paint.objective.solution import KINDS
from paint.training.check import check_config, resolve_evaluation
from paint.training.prompt_filter import filter_problems

T = TypeVar("T")

RECIPE = "recipe"  # the context of the recipe itself
FACTS = {
    "accuracy": "right",
    "both": "problems with right and wrong rollouts",
    "truncated": "truncated",
    "answerless": "no answer",
    "overlap_auc": "AUC of the overlap, right against wrong",
}
"""What is measured of the student, and how the table calls it."""
MODE_FLAGS = {
    " (thinking)": " --model.teacher-thinking",
    " (no thinking)": " --model.no-teacher-thinking",
}
"""What follows the name of a context in the teacher's other thinking mode, and its flag."""

FEW, ENOUGH, MUCH = 0.1, 30, 0.3
"""With a smaller share of problems that tell, and fewer than so many, there is no advice; above the
other share, something is a risk."""

CONFUSED = 0.1
"""Entropy gap behind a departure, nats: programmed teachers above it lost 4 to 87 points."""

ANYWHERE = (-math.inf, math.inf)  # bounds of values without a range

BOUNDS = dict.fromkeys(("slope", "kl", "first_kl", "entropy_gap", "confusion"), ANYWHERE)
BOUNDS |= dict.fromkeys(("unclipped_mass", "clipped", "raised", "leak"), SHARE)


def advise(
    config: Config,
    folder: Path,
    *,
    problems: int,
    samples: int,
    sources: Sequence[str],
    ratios: Sequence[float],
    answers: bool = False,
    both_modes: bool = False,
) -> dict[str, Any]:
    """Measure what contexts would teach; print and write the tables and the advice.

    The arguments are those of ``paint.advise``. The rollout section of the config is the sampling;
    with the engine "stored", rollouts that exist are used. Returns the content of summary.json.
    """
    validate_arguments(config, problems, samples, ratios, sources)
    require_one_process("paint advise")
    display = Display()
    run, rollout, falls_back = check_config(config), config.rollout, False
    if answers and run.engine.is_stored:
        raise ConfigError(
            'rollout.engine "stored" has no answers of the teacher; leave out --answers, or choose '
            "an engine that samples"
        )
    if not run.engine.is_stored:
        machine, earlier = find_machine(rollout.server), recorded_engine(folder)
        resolved = resolve_evaluation(rollout, machine, is_full=False, earlier=earlier)
        display.notes(resolved.notes)
        rollout, falls_back = resolved.rollout, resolved.falls_back
    model = with_date(base_as_rank1_adapter(config.model), folder)
    config = replace(config, model=model, rollout=rollout)
    policy = load_eval_policy(config.model, config.rollout, prompts=config.prompts)
    trained_on = filter_problems(
        policy,
        config,
        read_problems(config.data, needs=run.needed_fields),
        display,
    )
    chosen = first_problems(trained_on, problems, config.train.seed)
    contexts = {
        name: Contexts(options, trained_on)
        for name, options in context_options(config.context, sources, ratios).items()
    }
    for context in contexts.values():  # an unknown field is refused before anything is sampled
        context.references(chosen[0], config.train.seed)

    modes = {"": policy}  # by what is added to the names of contexts
    if both_modes:
        thinking, plain = MODE_FLAGS
        other = not policy.teacher_thinking
        modes[thinking if other else plain] = replace(policy, teacher_thinking=other)

    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        bank = collect(policy, config, chosen, samples, folder, display, falls_back=falls_back)
        config = config.changed("rollout", engine=recorded_engine(folder)[0])
        scores: dict[str, list[dict[str, Any]]] = {}
        found: dict[str, Bank] = {}
        for mode, teacher in modes.items():
            named = {name + mode: context for name, context in contexts.items()}
            scores |= score(teacher, config, bank, named, display)
            if answers:
                found |= answer(teacher, config, bank, named, folder / "answers", display)
        return report(folder, bank, scores, found, display)


def validate_arguments(
    config: Config, problems: int, samples: int, ratios: Sequence[float], sources: Sequence[str]
) -> None:
    """Reject a config without a teacher, and invalid counts, ratios and sources."""
    require_paths(config)
    if problems < 1:
        raise ConfigError(f"problems must be at least 1, got {problems}")
    if samples < 2:
        raise ConfigError(
            f"samples must be at least 2: rollouts of a problem are compared, got {samples}"
        )
    names = {f"{ratio:g}" for ratio in ratios}
    if not all(0 <= ratio < 1 for ratio in ratios) or len(names) < max(len(ratios), 1):
        raise ConfigError(
            "ratios must be distinct mask ratios in [0, 1), at least one, got "
            f"{format_value(list(ratios))}"
        )
    if not sources or len(set(sources)) < len(sources):
        raise ConfigError(
            f"context must name context sources, each once, got {format_value(list(sources))}"
        )
    if not check_config(config).algorithm.needs_context:
        raise ConfigError(
            f"train.method {format_value(config.train.method)} has no teacher; pass "
            f"--train.method distillation"
        )


def context_options(
    recipe: ContextConfig, sources: Sequence[str], ratios: Sequence[float]
) -> dict[str, ContextConfig]:
    """The recipe's context, then every source, at each ratio where it can be masked, by name.

    A name has the source and the masked share: "solution@0.5", "answer".
    """
    options = {RECIPE: recipe}
    for source in sources:
        is_masked = source not in (*IN_FULL, "none")
        for ratio in ratios if is_masked else [0.0]:
            name = f"{source}@{ratio:g}" if is_masked else source
            options[name] = replace(
                recipe, source=(source,), mask_ratio_wrong=ratio, mask_ratio_correct=ratio
            )
    return options


@dataclass(frozen=True)
class Figures:
    """What the scores with one context say, most of it with a value for every problem (p)."""

    slope: np.ndarray  # rise of accuracy towards the teacher (the module's docstring)
    kl: np.ndarray  # divergence from the student, nats a token
    first_kl: np.ndarray  # the same at the first token, where chat templates may differ
    entropy_gap: np.ndarray  # teacher's entropy less the student's, nats a token
    clipped: np.ndarray  # share of the tokens that the clip changes
    unclipped_mass: np.ndarray  # probability of the target that the clip leaves, a token
    raised: np.ndarray  # share of the clipped tokens that training makes likelier, if any
    leak: np.ndarray  # probability of the right answer in the box of wrong rollouts, if any
    confusion: np.ndarray  # entropy gap behind the departure from the solution, if any
    kinds: np.ndarray  # share of the divergence by kind of token, over all problems (KINDS)
    tenths: np.ndarray  # the same by tenth of the rollout
    masked: float  # mean masked share
    masked_spread: np.ndarray  # its 5th and 95th percentile over rollouts: what the overlap decides
    visible: float  # share of the contexts that contain the answer (`answer_is_visible`)


def figures_of(scores: Sequence[Mapping[str, Any]], rewards: Float[np.ndarray, "p k"]) -> Figures:
    """Reduce the scores with one context to one value a problem."""
    table, k = pd.DataFrame(scores), rewards.shape[1]
    total = max(table["kl"].sum(), np.finfo(float).tiny)
    means = ["kl", "entropy_gap", "clipped", "unclipped_mass"]  # over the tokens of a rollout
    table[means] = table[means].div(table["tokens"], axis=0)
    found = table[[name for name in BOUNDS if name != "slope"]].astype(float)
    by_problem = found.groupby(found.index // k).mean()  # of the values that are known
    return Figures(
        slope=slope_of(table["pull"].to_numpy(), rewards),
        **{name: values.dropna().to_numpy() for name, values in by_problem.items()},
        kinds=np.sum(table["kinds"].tolist(), axis=0) / total,
        tenths=np.sum(table["tenths"].tolist(), axis=0) / total,
        masked=float(table["mask_ratio"].mean()),
        masked_spread=table["mask_ratio"].quantile([0.05, 0.95]).to_numpy(),
        visible=float(table["visible"].mean()),
    )


def slope_of(
    pulls: Float[np.ndarray, "..."], rewards: Float[np.ndarray, "p k"]
) -> Float[np.ndarray, " p"]:
    """The slope of each problem, from the pull of each rollout and its reward."""
    k = rewards.shape[1]
    # The other rollouts of the problem are the baseline, so that the estimate has no bias.
    advantage = (rewards - rewards.mean(axis=1, keepdims=True)) * k / (k - 1)
    slopes: np.ndarray = (advantage * pulls.reshape(-1, k)).mean(axis=1)
    return slopes


def mean(values: np.ndarray, bounds: tuple[float, float] = ANYWHERE) -> Interval:
    """The mean over problems with its 95 % interval; NaN without any."""
    if not len(values):
        return Interval(math.nan, math.nan, math.nan)
    return bootstrap([values], bounds=bounds, reached=bounds == SHARE)


def overlap_auc(bank: Bank, overlaps: Float[np.ndarray, "p k"]) -> np.ndarray:
    """AUC of the overlap, right against wrong rollouts of a problem; of those that have both."""
    values = []
    for reward, overlap in zip(bank.rewards, overlaps, strict=True):
        is_right = reward == 1
        if is_right.any() and not is_right.all():
            values.append(auc(overlap[is_right], overlap[~is_right]))
    return np.array(values)


def report(
    folder: Path, bank: Bank, scores: Scores, answers: Mapping[str, Bank], display: Display
) -> dict[str, Any]:
    """Print the tables and the advice, and write them; return the content of summary.json."""
    is_right = bank.rewards == 1
    figures = {name: figures_of(rows, bank.rewards) for name, rows in scores.items()}
    overlaps = np.array([row["overlap"] for row in scores[RECIPE]]).reshape(is_right.shape)
    shares = {
        "accuracy": is_right.mean(axis=1),
        "both": (is_right.any(axis=1) & ~is_right.all(axis=1)).astype(float),
        "truncated": bank.share(lambda row: row.completion.truncated),
        "answerless": bank.share(
            lambda row: isinstance(row.grade, MathGrade) and row.grade.strict.answer is None
        ),
        "overlap_auc": overlap_auc(bank, overlaps),
    }
    facts = {name: mean(values, SHARE) for name, values in shares.items()}
    sheets = [_facts(facts, *is_right.shape), _teaching(figures), _risks(figures), _where(figures)]
    if answers:
        sheets.append(_answers(bank, answers, figures))
    advice = advise_on(facts, figures)
    summary = {
        "facts": {name: interval.table() for name, interval in facts.items()},
        "contexts": {name: _json(found) for name, found in figures.items()},
        "answers": {
            name: {
                "avg_at_k": avg_at_k(told.rewards == 1).table(),
                "difference": gain_of(told, bank).table(),
            }
            for name, told in answers.items()
        },
        "advice": advice,
    }
    text = "\n".join(f"- {line}" for line in advice)
    write_summary(folder, summary, f"{markdown(sheets)}\n{text}\n")
    write_tables(folder, "advice", sheets, _charts(figures), advice)
    print_sheets(display.console, sheets)
    display.note(
        f"{text}\nwritten to {folder}: summary.json, summary.md; page: `paint show {folder}`"
    )
    return summary


def advise_on(facts: Mapping[str, Interval], figures: Mapping[str, Figures]) -> list[str]:
    """The advice and its reasons, or "no advice" with what is missing."""
    lines = []
    if facts["truncated"].low > MUCH:
        lines.append(
            f"{facts['truncated'].points()} % of the rollouts are truncated, which makes them "
            f"wrong: raise rollout.max_new_tokens first"
        )
    telling = facts["both"].mean
    if telling < FEW and telling * len(figures[RECIPE].slope) < ENOUGH:
        return [
            *lines,
            f"no advice: only problems with right and wrong rollouts tell, and "
            f"{facts['both'].points()} % are; take more --problems or --samples, or problems that "
            f"the model sometimes solves",
        ]

    slopes = {name: found.slope for name, found in figures.items()}
    best = max(
        (name for name in slopes if source_of(name) not in CONTROLS),
        key=lambda name: slopes[name].mean(),
    )
    slope, gain = mean(slopes[best]), mean(slopes[best] - slopes[RECIPE])
    if slope.low <= 0:
        return [
            *lines,
            f"no advice: the highest slope but for controls, {slope.points(sign=True)}, is that of "
            f"{best}, and 0 is in its interval; take more --problems, or other --contexts",
        ]
    chosen = best if gain.low > 0 or mean(slopes[RECIPE]).low <= 0 else RECIPE
    lines.append(
        f"train with {_flags(chosen)}: its slope is {mean(slopes[chosen]).points(sign=True)} points"
    )
    if best != RECIPE:
        compared = f"the slope of {best} less the recipe's is {gain.points(sign=True)}"
        lines.append(compared if chosen == best else f"{compared}, with 0 in its interval")

    others = [name for name in figures if source_of(name) == "other"]
    if others:
        control = max(others, key=lambda name: slopes[name].mean())
        content = mean(slopes[chosen] - slopes[control])
        lines.append(
            f"{content.points(sign=True)} of it is content: another row's ({control}) has the rest"
            if content.low > 0
            else f"another row's context ({control}) teaches as much: it is not the content"
        )
    clip = mean(figures[chosen].unclipped_mass, SHARE)
    if clip.high < 1 - MUCH:
        lines.append(
            f"the clip leaves {clip.points()} % of the target: raise objective.clip, or set "
            f"objective.clip_mode none"
        )
    confusion = mean(figures[chosen].confusion)
    if confusion.low > CONFUSED:
        lines.append(
            f"behind a departure from the solution the teacher is less sure than the student by "
            f"{confusion.mean:.2f} nats a token, which the slope does not see: mask more, or "
            f"interpolate (objective.interpolation_weight 0.5, objective.top_fraction 0.3)"
        )
    leak = mean(figures[chosen].leak, SHARE)
    if leak.low > MUCH:
        lines.append(
            f"after wrong work the teacher writes the right answer with probability "
            f"{100 * leak.mean:.0f} %: it copies; mask the answer (a larger ratio)"
        )
    return lines


def source_of(name: str) -> str:
    """The source in the name of a context."""
    return _without_mode(name)[0].partition("@")[0]


def control_of(name: str, found: Mapping[str, T]) -> T | None:
    """What was found with another row's context, masked as this one; None for itself."""
    return None if source_of(name) == "other" else found.get(f"other@{name.partition('@')[2]}")


def _without_mode(name: str) -> tuple[str, str]:
    """The name of a context without its thinking mode, and the flag of that."""
    for mode, flag in MODE_FLAGS.items():
        if name.endswith(mode):
            return name.removesuffix(mode), flag
    return name, ""


def _flags(name: str) -> str:
    """The settings of a context, as flags of `paint train`."""
    context, flag = _without_mode(name)
    if context == RECIPE:
        return f"the recipe's own context{flag}"
    source, _, ratio = context.partition("@")
    masked = f" --context.mask-ratio-wrong {ratio} --context.mask-ratio-correct {ratio}"
    return f"--context.source {source}{masked if ratio else ''}{flag}"


def _facts(facts: Mapping[str, Interval], problems: int, samples: int) -> Sheet:
    rows = [[label, facts[name].points()] for name, label in FACTS.items()]
    title = f"The student: {problems} problems, {samples} rollouts each, in % with 95 % interval"
    return Sheet(title, ["", "share"], rows, is_main=True)


def _teaching(figures: Mapping[str, Figures]) -> Sheet:
    rows = []
    for name, found in figures.items():
        other = control_of(name, figures)
        rows.append(
            [
                name,
                _points(found.slope),
                _points(found.slope - other.slope) if other else "",
                _digits(found.kl),
                mean(found.clipped, SHARE).points(),
                mean(found.raised, SHARE).points() if len(found.raised) else "",
                mean(found.unclipped_mass, SHARE).points(),
                f"{100 * found.masked:.0f}{_spread(found.masked_spread)}",
            ]
        )
    columns = ["", "slope, points", "less another row's", "KL a token"]
    columns += ["clipped tokens, %", "made likelier, %", "unclipped mass, %", "masked, %"]
    return Sheet("What each context would teach", columns, rows, is_main=True)


def _charts(figures: Mapping[str, Figures]) -> list[Chart]:
    def of(name: str) -> dict[str, Interval]:
        found = {context: getattr(figure, name) for context, figure in figures.items()}
        return {context: mean(x, BOUNDS[name]) for context, x in found.items() if len(x)}

    return [
        Chart("Slope", of("slope"), "points", "rise of accuracy towards the teacher"),
        Chart("KL a token", of("kl"), note="divergence of student and teacher, nats"),
        Chart("Unclipped mass", of("unclipped_mass"), "%", "of the target, left by the clip"),
        Chart("Leak", of("leak"), "%", "probability of the right answer after wrong work"),
        Chart("Confusion", of("confusion"), note="entropy gap behind a departure, nats a token"),
    ]


def _risks(figures: Mapping[str, Figures]) -> Sheet:
    rows = [
        [
            name,
            _digits(found.first_kl),
            _digits(found.entropy_gap, sign=True),
            _digits(found.confusion, sign=True),
            mean(found.leak, SHARE).points() if len(found.leak) else "",
        ]
        for name, found in figures.items()
    ]
    columns = ["", "KL of the first token", "entropy less the student's"]
    columns += ["the same behind a departure", "right answer after wrong work, %"]
    return Sheet("Risks", columns, rows)


def _where(figures: Mapping[str, Figures]) -> Sheet:
    rows = [
        [name, *(f"{100 * share:.0f}" for share in (*found.kinds, *found.tenths[[0, -1]]))]
        for name, found in figures.items()
    ]
    columns = ["", *KINDS, "first tenth", "last tenth"]
    return Sheet("Where the divergence is, in % of it", columns, rows)


def _answers(bank: Bank, answers: Mapping[str, Bank], figures: Mapping[str, Figures]) -> Sheet:
    rows = []
    for name, told in {"student": bank, **answers}.items():
        other = control_of(name, answers)
        tokens = np.mean([len(row.completion.ids) for row in told.rollouts])
        rows.append(
            [
                name,
                avg_at_k(told.rewards == 1).points(),
                gain_of(told, bank).points(sign=True) if name in answers else "",
                gain_of(told, other).points(sign=True) if other else "",
                f"{tokens:,.0f}",
                mean(told.share(lambda row: row.completion.truncated), SHARE).points(),
                f"{100 * figures[name].visible:.1f}" if name in answers else "",
            ]
        )
    columns = ["", f"Avg@{bank.samples}", "less the student's", "less another row's"]
    columns += ["tokens an answer", "truncated", "answer visible"]
    return Sheet("The teacher's own answers, in % with 95 % interval", columns, rows, is_main=True)


def gain_of(bank: Bank, other: Bank) -> Interval:
    """The accuracy of a bank less that of another one on the same problems."""
    return compare([other.rewards == 1], [bank.rewards == 1]).difference


def _spread(shares: np.ndarray) -> str:
    """Two shares in percent, if they differ."""
    low, high = (f"{100 * share:.0f}" for share in shares)
    return f" ({low} to {high})" if low != high else ""


def _points(values: np.ndarray) -> str:
    """A mean in points, with its interval where that is finite."""
    interval = mean(values)
    if math.isinf(interval.low):
        return f"{100 * interval.mean:+.1f}"
    return interval.points(sign=True)


def _digits(values: np.ndarray, *, sign: bool = False) -> str:
    """A mean with three digits, with its interval where that is finite."""
    form, interval = "+.3g" if sign else ".3g", mean(values)
    return interval.text(form) if math.isfinite(interval.low) else format(interval.mean, form)


def _json(figures: Figures) -> dict[str, Any]:
    """Unrounded: intervals of values by problem, and shares."""
    return {
        name: mean(value, BOUNDS[name]).table() if name in BOUNDS else np.asarray(value).tolist()
        for name, value in vars(figures).items()
    }
