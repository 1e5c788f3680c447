"""``paint advise``: what each context would teach, before any training.

    rollouts -> verdicts -> scores under every context -> pull towards right answers -> advice

The student answers each problem several times. The same rollouts are then scored under every
context, as training would score them. A context teaches what separates right rollouts from wrong
ones of the same problem. Its *slope* is the rise of the student's accuracy J as the student q moves
towards the teacher p, token by token, along q^(1-a) p^a:

    dJ/da at a = 0   =   E[(R - mean R) sum_n (l_n - E_q l_n)],     l = log p - log q

R is the verdict of a rollout, and the mean is over the other rollouts of its problem. It needs no
answers of the teacher. Rollouts are stored as they come, and the same command goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from paint.config.recipe import require_paths
from paint.config.schema import Config, ConfigError
from paint.core.display import Display
from paint.core.distributed import require_one_process
from paint.core.errors import format_value
from paint.core.storage import lock_folder
from paint.data.contexts import CONTROLS, IN_FULL, Contexts
from paint.data.problems import batch_indices, read_problems
from paint.evaluation.generate import base_as_rank1_adapter, load_eval_policy
from paint.evaluation.intervals import SHARE, Interval, bootstrap
from paint.evaluation.store import write_summary
from paint.evaluation.tables import Sheet, markdown, print_sheets
from paint.experiments.rollout_bank import BOX, Bank, Scores, View, collect, score
from paint.inference.resolve import resolve_evaluation
from paint.objective.solution import KINDS
from paint.training.prompt_filter import filter_problems

RECIPE = "recipe"
"""The view with the context of the recipe itself."""

FEW, MUCH = 0.1, 0.3
"""Shares: with fewer problems that tell there is no advice; above the other, a share is a risk."""

ANYWHERE = (-np.inf, np.inf)
"""Bounds of values without a range."""

BOUNDS = dict.fromkeys(("slope", "kl", "entropy_gap", "confusion"), ANYWHERE) | {
    "unclipped_mass": SHARE,
    "leak": SHARE,
}


def views(config: Config, sources: Sequence[str], ratios: Sequence[float]) -> list[View]:
    """The recipe's own context, then every source, at each ratio where it can be masked."""
    found = [View(RECIPE, config.context)]
    for source in sources:
        for ratio in [0.0] if source in (*IN_FULL, "none") else ratios:
            fixed = replace(
                config.context,
                source=(source,),
                mask_ratio_wrong=ratio,
                mask_ratio_correct=ratio,
            )
            is_whole = source in (*IN_FULL, "none")
            found.append(View(source if is_whole else f"{source}@{ratio:g}", fixed))
    return found


def advise(
    config: Config,
    folder: Path,
    *,
    problems: int = 100,
    samples: int = 4,
    sources: Sequence[str] = ("solution", "other", "none", "answer"),
    ratios: Sequence[float] = (0.0, 0.3, 0.5),
) -> dict[str, Any]:
    """Measure what contexts would teach; print and write the tables and the advice.

    Args:
        config: config of the training; its rollout section is the sampling. With the engine
            "stored", rollouts that exist are used.
        folder: of rollouts, scores, summary.json and summary.md.
        problems: number of training problems, in the order of training; all if there are fewer.
        samples: rollouts of each problem, at least 2.
        sources: context sources (``context.source``); "other" is the control.
        ratios: masked shares in [0, 1) of the sources that are masked.

    Returns:
        The content of summary.json.

    Raises:
        ConfigError, DataError, EngineError, PolicyError: the message has the cause and a hint.
        FolderInUse: another process uses the folder.
    """
    _require_valid(config, problems, samples, sources, ratios)
    require_one_process("paint advise")
    display = Display()
    rollout = config.rollout
    if not rollout.engine_type.is_stored:
        rollout = resolve_evaluation(rollout, display, is_full=False)
    config = replace(config, model=base_as_rank1_adapter(config.model), rollout=rollout)
    policy = load_eval_policy(config.model, config.rollout, prompts=config.prompts)
    trained_on = filter_problems(
        policy, config, read_problems(config.data, needs=config.needed_fields), display
    )
    count = min(problems, len(trained_on))
    chosen = [trained_on[i] for i in batch_indices(len(trained_on), count, 0, config.train.seed)]

    seen = views(config, sources, ratios)
    for view in seen:  # a field that is not there is said before anything is sampled
        Contexts(view.options, trained_on).references(chosen[0], config.train.seed)

    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        bank = collect(policy, config, chosen, samples, folder, display)
        scores = score(policy, config, bank, seen, trained_on, display)
        return report(folder, bank, scores, display)


def _require_valid(
    config: Config, problems: int, samples: int, sources: Sequence[str], ratios: Sequence[float]
) -> None:
    """Raise ConfigError for arguments that cannot be used."""
    require_paths(config)
    if problems < 1 or samples < 2:
        raise ConfigError(
            f"advise needs at least 1 problem and 2 samples, which are compared with each other, "
            f"got {problems} and {samples}"
        )
    if not all(0 <= ratio < 1 for ratio in ratios) or len(set(ratios)) < len(ratios) or not ratios:
        raise ConfigError(
            f"ratios must be distinct mask ratios in [0, 1), at least one, got "
            f"{format_value(list(ratios))}"
        )
    if len(set(sources)) < len(sources):
        raise ConfigError(f"context must name each source once, got {format_value(list(sources))}")
    if not config.algorithm.needs_context:
        raise ConfigError(
            f"train.method {format_value(config.train.method)} has no teacher to advise on; "
            f"pass --train.method distillation"
        )


@dataclass(frozen=True)
class Found:
    """What a view's scores say, each with a value for every problem (p).

    Attributes:
        slope: rise of accuracy towards the teacher (the module's docstring).
        kl: divergence from the student, nats a token.
        entropy_gap: teacher's entropy less the student's, nats a token.
        unclipped_mass: probability of the target that the clip leaves, a token.
        leak: probability of the right answer in the box of wrong rollouts; problems that have some.
        confusion: entropy gap behind the departure from the solution; problems that have some.
        kinds: share of the divergence by kind of token, over all problems (KINDS).
        tenths: the same by tenth of the rollout.
        hidden: mean masked share.
    """

    slope: np.ndarray
    kl: np.ndarray
    entropy_gap: np.ndarray
    unclipped_mass: np.ndarray
    leak: np.ndarray
    confusion: np.ndarray
    kinds: np.ndarray
    tenths: np.ndarray
    hidden: float


def find(scores: Sequence[Mapping[str, Any]], rewards: Float[np.ndarray, "p k"]) -> Found:
    """Reduce a view's scores to one value a problem."""
    count, k = rewards.shape

    def each(name: str) -> np.ndarray:
        return np.array([row[name] for row in scores], dtype=float).reshape(count, k)

    def a_token(name: str) -> np.ndarray:
        means: np.ndarray = (each(name) / each("tokens")).mean(axis=1)
        return means

    def known(name: str) -> np.ndarray:
        rows = [[x for x in row if not np.isnan(x)] for row in each(name)]
        return np.array([np.mean(row) for row in rows if row])

    # The other rollouts of the problem are the baseline, so that the estimate has no bias.
    advantage = (rewards - rewards.mean(axis=1, keepdims=True)) * k / (k - 1)
    total = max(each("kl").sum(), np.finfo(float).tiny)
    return Found(
        slope=(advantage * each("pull")).mean(axis=1),
        kl=a_token("kl"),
        entropy_gap=a_token("entropy_gap"),
        unclipped_mass=a_token("unclipped_mass"),
        leak=known("leak"),
        confusion=known("confusion"),
        kinds=np.sum([row["kinds"] for row in scores], axis=0) / total,
        tenths=np.sum([row["tenths"] for row in scores], axis=0) / total,
        hidden=float(each("mask_ratio").mean()),
    )


def mean(values: np.ndarray, bounds: tuple[float, float] = ANYWHERE) -> Interval:
    """The mean over problems with its 95 % interval; NaN without any."""
    if not len(values):
        return Interval(np.nan, np.nan, np.nan)
    return bootstrap([values], bounds=bounds, reached=bounds == SHARE)


def overlap_auc(bank: Bank, overlaps: Float[np.ndarray, "p k"]) -> np.ndarray:
    """The share of pairs of a right and a wrong rollout in which the right one overlaps more.

    A tie counts half. One value for each problem that has both.
    """
    values = []
    for reward, overlap in zip(bank.rewards, overlaps, strict=True):
        right, wrong = overlap[reward == 1], overlap[reward != 1]
        if len(right) and len(wrong):
            gaps = [a - b for a, b in product(right, wrong)]
            values.append(np.mean([(gap > 0) + (gap == 0) / 2 for gap in gaps]))
    return np.array(values)


def report(folder: Path, bank: Bank, scores: Scores, display: Display) -> dict[str, Any]:
    """Print the tables and the advice, and write them; return the content of summary.json."""
    rewards = bank.rewards
    found = {name: find(rows, rewards) for name, rows in scores.items()}
    overlaps = np.array([row["overlap"] for row in scores[RECIPE]]).reshape(rewards.shape)
    is_both = (rewards == 1).any(axis=1) & (rewards != 1).any(axis=1)
    shares = {
        "accuracy": (rewards == 1).mean(axis=1),
        "both": is_both.astype(float),
        "truncated": bank.share(lambda row: row.completion.truncated),
        "answerless": bank.share(lambda row: BOX not in row.text),
        "overlap_auc": overlap_auc(bank, overlaps),
    }
    facts = {name: mean(values, SHARE) for name, values in shares.items()}
    sheets = [
        _facts(facts, len(rewards), bank.samples),
        _teaching(found),
        _risks(found),
        _where(found),
    ]
    advice = advise_on(facts, found)
    summary = {
        "facts": {name: interval.table() for name, interval in facts.items()},
        "views": {name: _json(view) for name, view in found.items()},
        "advice": advice,
    }
    text = "\n".join(f"- {line}" for line in advice)
    write_summary(folder, summary, f"{markdown(sheets)}\n{text}\n")
    print_sheets(display.console, sheets)
    display.note(f"{text}\nwritten to {folder}: summary.json, summary.md")
    return summary


def advise_on(facts: Mapping[str, Interval], found: Mapping[str, Found]) -> list[str]:
    """The advice and its reasons, or "no advice" with what is missing."""
    lines = []
    if facts["truncated"].low > MUCH:
        lines.append(
            f"{facts['truncated'].points()} % of the rollouts are truncated, which makes them "
            f"wrong: raise rollout.max_new_tokens first"
        )
    if facts["both"].mean < FEW:
        return [
            *lines,
            f"no advice: only problems with right and wrong rollouts tell, and "
            f"{facts['both'].points()} % are; take more --samples, or problems that the model "
            f"sometimes solves",
        ]

    own = [name for name in found if not is_control(name)]
    best = max(own, key=lambda name: found[name].slope.mean())
    slope = mean(found[best].slope)
    if slope.low <= 0:
        return [
            *lines,
            f"no advice: the best context is {best}, with a slope of {slope.points(sign=True)}, "
            f"and 0 is in its interval; take more --problems, or another context",
        ]

    lines.append(f"show {best}: accuracy rises by {slope.points(sign=True)} points towards it")
    gap = mean(found[best].slope - found[RECIPE].slope)
    if best != RECIPE and gap.low > 0:
        lines.append(f"that is {gap.points(sign=True)} more than the recipe's own context")
    elif best != RECIPE:
        lines.append(
            f"the recipe's own context is not told from it ({gap.points(sign=True)}): keep it"
        )
    others = [name for name in found if name.startswith("other")]
    if others:
        control = max(others, key=lambda name: found[name].slope.mean())
        content = mean(found[best].slope - found[control].slope)
        lines.append(
            f"{content.points(sign=True)} of it is content: another row's ({control}) has the rest"
            if content.low > 0
            else f"another row's context ({control}) teaches as much: it is not the content"
        )
    clip = mean(found[best].unclipped_mass, SHARE)
    if clip.high < 1 - MUCH:
        lines.append(
            f"the clip leaves {clip.points()} % of the target: raise objective.clip, or set "
            f"objective.clip_mode none"
        )
    leak = mean(found[best].leak, SHARE)
    if leak.low > MUCH:
        lines.append(
            f"after wrong work the teacher writes the right answer with probability "
            f"{100 * leak.mean:.0f} %: it copies; hide the answer (a larger ratio)"
        )
    return lines


def is_control(name: str) -> bool:
    """Whether a view is a control: nothing, an answer, or another row's context."""
    return name.partition("@")[0] in CONTROLS


def _facts(facts: Mapping[str, Interval], problems: int, samples: int) -> Sheet:
    rows = [
        ["right", facts["accuracy"].points()],
        ["problems with right and wrong rollouts", facts["both"].points()],
        ["truncated", facts["truncated"].points()],
        ["without a box", facts["answerless"].points()],
        ["AUC of the overlap, right against wrong", facts["overlap_auc"].points()],
    ]
    title = f"The student: {problems} problems, {samples} rollouts each, in % with 95 % interval"
    return Sheet(title, ["", "share"], rows, is_main=True)


def _teaching(found: Mapping[str, Found]) -> Sheet:
    rows = []
    for name, view in found.items():
        control = f"other@{name.partition('@')[2]}" if "@" in name else ""
        content = ""
        if control in found and control != name:
            content = mean(view.slope - found[control].slope).points(sign=True)
        rows.append(
            [
                name,
                mean(view.slope).points(sign=True),
                content,
                _digits(mean(view.kl)),
                mean(view.unclipped_mass, SHARE).points(),
                f"{100 * view.hidden:.0f}",
            ]
        )
    columns = [
        "",
        "slope, points",
        "less another row's",
        "KL a token",
        "kept by the clip, %",
        "hidden, %",
    ]
    return Sheet("What each context would teach", columns, rows, is_main=True)


def _risks(found: Mapping[str, Found]) -> Sheet:
    rows = [
        [
            name,
            _digits(mean(view.entropy_gap), sign=True),
            _digits(mean(view.confusion), sign=True),
            mean(view.leak, SHARE).points() if len(view.leak) else "",
        ]
        for name, view in found.items()
    ]
    columns = [
        "",
        "entropy less the student's",
        "the same behind a departure",
        "right answer after wrong work, %",
    ]
    return Sheet("Risks", columns, rows)


def _where(found: Mapping[str, Found]) -> Sheet:
    rows = [
        [name, *(f"{100 * share:.0f}" for share in (*view.kinds, view.tenths[0], view.tenths[-1]))]
        for name, view in found.items()
    ]
    columns = ["", *KINDS, "first tenth", "last tenth"]
    return Sheet("Where the divergence is, in % of it", columns, rows)


def _digits(interval: Interval, *, sign: bool = False) -> str:
    """Format with three digits."""
    form = "{:+.3g}" if sign else "{:.3g}"
    mean, low, high = (form.format(x) for x in (interval.mean, interval.low, interval.high))
    return f"{mean} [{low}, {high}]"


def _json(view: Found) -> dict[str, Any]:
    """Unrounded: intervals of values by problem, and shares."""
    return {
        name: mean(value, BOUNDS[name]).table() if name in BOUNDS else np.asarray(value).tolist()
        for name, value in vars(view).items()
    }
