"""What the page of a run holds: its figures, and its rollouts token by token.

Values that were kept while training are those of the step itself (paint.training.token_log). The
likeliest tokens, other contexts and rows without kept values come from scoring the stored rollouts
again (paint.viewer.score); every row says which it is.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paint.config.recipe import to_table
from paint.config.run_folder import (
    RunError,
    latest_checkpoint,
    read_history,
    read_metrics,
    read_run,
    read_run_json,
    require_rollouts,
    step_of,
    step_paths,
)
from paint.config.schema import Config
from paint.core.display import Counter, Display
from paint.core.storage import read_jsonl
from paint.data.problems import Problem
from paint.evaluation.grade import is_repetitive
from paint.evaluation.metrics import GradedSamples, compute_metrics
from paint.grading.math.compare import boxed
from paint.models.policy import load_tokenizer
from paint.training.token_log import ABOUT, read_tokens, token_bytes, tokens_path
from paint.viewer.evaluation import graded_validation
from paint.viewer.page import TokenTable, packed, text_of
from paint.viewer.score import Detail, Scorer
from paint.viewer.solution import KINDS, anchors_of, hidden_part, kinds_of_tokens, written

MOST_TOKENS = 32 * 1024
"""Tokens of a page whose steps nobody named: a file of some megabytes."""

FEW_ROWS = 4
"""Rows of a step without kept values, where nobody named the step."""


@dataclass(frozen=True)
class PageSpec:
    """What a page is asked to hold.

    Attributes:
        steps: their numbers; none: all that fit.
        row: of each of these steps; None: all.
        contexts: other views of the teacher.
        again: whether rollouts are scored again.
    """

    steps: Sequence[int] = ()
    row: int | None = None
    contexts: Sequence[str] = ()
    again: bool = True


@dataclass(frozen=True)
class RenderContext:
    """What the rows of a page are made with.

    Attributes:
        scorer: None where nothing is scored again.
        problems: what the run was trained on, by id; none where nothing is scored again.
        vocabulary: grows with every row.
    """

    config: Config
    wanted: PageSpec
    scorer: Scorer | None
    tokenizer: Any
    problems: Mapping[str, Problem]
    vocabulary: TokenTable


def run_data(run: Path, wanted: PageSpec, display: Display) -> dict[str, Any]:
    """The page's data.

    Raises:
        RunError: no such run, step or row, or what belongs to a checkpoint is gone.
        CorruptFileError: a file cannot be read, or was changed since it was written.
        ConfigError, PolicyError: its model cannot be loaded to score again.
    """
    config, facts = read_run(run), read_run_json(run)
    saved = latest_checkpoint(run)
    done = step_of(saved) if saved else 0
    read_history(run, done)
    if config.log.keep_rollouts and not wanted.steps:
        require_rollouts(run, done)
    chosen = choose(run, config, wanted)
    is_scored = wanted.again and config.algorithm.needs_context and bool(chosen)
    scorer = Scorer(run, config, display) if is_scored else None
    tokenizer = scorer.policy.tokenizer if scorer else load_tokenizer(config.model.path)

    vocabulary = TokenTable()
    problems = {problem.id: problem for problem in scorer.problems} if scorer else {}
    making = RenderContext(config, wanted, scorer, tokenizer, problems, vocabulary)
    steps = []
    with display.counting("tokens", sum(map(len, chosen.values()))) as count:
        for step, rollouts in chosen.items():
            steps.append(step_data(making, run, step, rollouts, count))

    pieces = token_bytes(tokenizer, vocabulary.ids)
    return {
        "name": run.resolve().name,
        "method": config.train.method,
        "facts": {
            "model": config.model.path,
            "data": config.data.path,
            "steps": config.train.steps,
            "git": facts.get("git"),
            **{f"{name}": version for name, version in facts["versions"].items()},
        },
        "settings": settings_of(config),
        "objective": objective_of(config),
        "metrics": columns_of(read_metrics(run)),
        "validation": validation_figures(graded_validation(run, display)),
        "stored_steps": [step_of(path) for path in step_paths(run / "rollouts", ".jsonl")],
        "steps": steps,
        "kinds": list(KINDS),
        "vocabulary": [text_of(piece) for piece in pieces],
        "special": [i in tokenizer.all_special_ids for i in vocabulary.ids],
    }


def choose(run: Path, config: Config, wanted: PageSpec) -> dict[int, list[dict[str, Any]]]:
    """The rollouts of the page, by step; each gets its number as ``row``.

    Raises:
        RunError: a step or a row that is not there.
    """
    there = {step_of(path): path for path in step_paths(run / "rollouts", ".jsonl")}
    if not there:
        if wanted.steps:
            raise RunError(f"{run} holds no rollouts (log.keep_rollouts, or no step yet)")
        return {}
    for step in wanted.steps:
        if step not in there:
            raise RunError(
                f"{run} holds no rollouts of step {step}; there are steps "
                f"{min(there)} to {max(there)}"
            )

    advice = "put it back as it was, or start a new run"

    def rollouts(step: int) -> list[dict[str, Any]]:
        rows = list(read_jsonl(there[step], advice))
        return [{"row": number, **row} for number, row in enumerate(rows)]

    if wanted.steps:
        chosen = {step: rollouts(step) for step in sorted(set(wanted.steps))}
        if wanted.row is not None:
            chosen = {step: rows[wanted.row : wanted.row + 1] for step, rows in chosen.items()}
            if not all(chosen.values()):
                raise RunError(f"a step of {run} has no row {wanted.row}; rows count from 0")
        return chosen

    # All steps where they fit, else as many as do, evenly spread, the first and the last included.
    kept = {step: rows_kept(config, rollouts(step)) for step in there}
    if wanted.row is not None:
        kept = {step: [r for r in rows if r["row"] == wanted.row] for step, rows in kept.items()}
    sizes = {step: sum(len(r["completion_ids"]) for r in rows) for step, rows in kept.items()}
    steps = spread(sorted(kept), sizes)
    return {step: kept[step] for step in steps}


def rows_kept(config: Config, rollouts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a step that a page shows where nobody named it: those with kept values."""
    most = config.log.token_rows
    return list(rollouts if most == "all" else rollouts[: most or FEW_ROWS])


def spread(steps: Sequence[int], sizes: Mapping[int, int]) -> list[int]:
    """As many steps as fit into MOST_TOKENS, evenly spread."""
    for count in range(len(steps), 1, -1):
        places = {round(i * (len(steps) - 1) / (count - 1)) for i in range(count)}
        chosen = [steps[i] for i in sorted(places)]
        if sum(sizes[step] for step in chosen) <= MOST_TOKENS:
            return chosen
    return list(steps[-1:])


def step_data(
    making: RenderContext,
    run: Path,
    step: int,
    rollouts: Sequence[Mapping[str, Any]],
    count: Counter,
) -> dict[str, Any]:
    """A step of the page, with its rows."""
    path = tokens_path(run, step)
    kept = read_tokens(path) if path.exists() else {}
    student = making.scorer.become_student(step) if making.scorer else None
    rows = []
    for rollout in rollouts:
        rows.append(row_data(making, step, rollout, kept.get(rollout["row"])))
        count.add(len(rollout["completion_ids"]))
    return {"step": step, "student": student, "is_exact": student == step - 1, "rows": rows}


def row_data(
    making: RenderContext, step: int, rollout: Mapping[str, Any], kept: Mapping[str, Any] | None
) -> dict[str, Any]:
    """One rollout of the page."""
    scorer, vocabulary, tokenizer = making.scorer, making.vocabulary, making.tokenizer
    problem = making.problems.get(rollout["problem_id"])
    ids = rollout["completion_ids"]
    pieces = token_bytes(tokenizer, ids)
    values: dict[str, Any] = {}
    data: dict[str, Any] = {
        "row": rollout["row"],
        "problem_id": rollout["problem_id"],
        "problem": rollout["problem"],
        "answer": rollout["answer"],
        "boxed": boxed(rollout["text"]),
        "correct": rollout.get("correct"),
        "truncated": rollout["truncated"],
        "looping": is_repetitive(rollout["text"]),
        "source": rollout["source"],
        **{name: rollout[name] for name in METRICS if name in rollout},
        "ids": packed(vocabulary.add(ids)),
        "token_kinds": packed(np.array(kinds_of_tokens(pieces), np.uint8)),
        "prompts": prompts_of(rollout, tokenizer),
        "rationale": rollout.get("rationale"),
        "context": rollout.get("context"),
    }

    if kept is not None:
        values = {name: array for name, array in kept.items() if name not in ABOUT}
    if scorer is not None:
        found = scorer.score(rollout, rollout["teacher_prompt_ids"])
        scored = dict(found.values)
        if kept is None:
            values = scored | engine_values(rollout)
        else:
            data["moved"] = float(
                np.abs(scored["student_log_prob"] - values["student_log_prob"]).max(initial=0)
            )
            values["slope"] = scored["slope"]
        data["entries"] = entries_of(found, vocabulary)
        data["contexts"] = dict(other_contexts(making.wanted, step, rollout, problem, scorer))
    data["is_kept"] = kept is not None
    data["values"] = {name: packed(array) for name, array in values.items()}
    if problem is not None:
        data["solution"] = solution_of(problem, rollout, making.config, pieces)
    return data


METRICS = ("overlap", "overlap_without_answer", "mask_ratio", "reward", "advantage", "loss")


def engine_values(rollout: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine said of each token, where an engine drew it."""
    said = rollout["engine_log_probs"]
    return {"engine_log_prob": np.array(said, np.float32)} if said else {}


def entries_of(found: Detail, vocabulary: TokenTable) -> dict[str, Any]:
    """The likeliest tokens at every position."""
    return {
        "edges": packed(found.edges),
        "ids": packed(vocabulary.add(found.entries.tolist())),
        **{view: packed(values) for view, values in found.log_probs.items()},
        "term": packed(found.terms),
    }


def other_contexts(
    wanted: PageSpec,
    step: int,
    rollout: Mapping[str, Any],
    problem: Problem | None,
    scorer: Scorer,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same completion under other views of the teacher; the values that differ."""
    if problem is None:
        return
    for shown in wanted.contexts:
        view = scorer.view(problem, rollout["mask_ratio"], shown, step, rollout["row"])
        if view is None:
            continue
        found = scorer.score(rollout, view.prompt).values
        names = ("loss", "kl", "teacher_log_prob", "teacher_entropy")
        yield (
            shown,
            {
                "context": view.context,
                "is_the_runs": view.prompt == rollout["teacher_prompt_ids"],
                "values": {name: packed(found[name]) for name in names},
            },
        )


def prompts_of(rollout: Mapping[str, Any], tokenizer: Any) -> dict[str, str]:
    """Both prompts as they were read, special tokens included."""
    ids = {"student": rollout["prompt_ids"], "teacher": rollout.get("teacher_prompt_ids")}
    return {
        name: tokenizer.decode(list(prompt), skip_special_tokens=False)
        for name, prompt in ids.items()
        if prompt
    }


def solution_of(
    problem: Problem, rollout: Mapping[str, Any], config: Config, pieces: Sequence[bytes]
) -> dict[str, Any]:
    """The solution, what of it was hidden, and its anchors with the tokens that hold them."""
    text, owners = written(pieces)
    is_own = config.context.source == "own"
    anchors = [
        {
            "text": anchor.text,
            "boxed": anchor.boxed,
            "found": anchor.found,
            "place": anchor.place,
            "tokens": anchor.met
            and [owners[anchor.met[0]], owners[min(anchor.met[1], len(text)) - 1]],
        }
        for anchor in anchors_of(problem.solution, text)
    ]
    hidden = hidden_part(problem.solution, rollout.get("context")) if is_own else None
    return {"text": problem.solution, "hidden": hidden, "anchors": anchors}


def settings_of(config: Config) -> list[list[Any]]:
    """Every setting: its name, its value, and whether it is another than the default."""
    defaults = to_table(Config())
    return [
        [f"{section}.{key}", json.dumps(value, ensure_ascii=False), value != defaults[section][key]]
        for section, keys in to_table(config).items()
        for key, value in keys.items()
    ]


def objective_of(config: Config) -> dict[str, Any]:
    """What the page needs to say which entries are clipped."""
    options = config.objective.resolve(config.rollout.temperature)
    names = (
        "clip",
        "clip_mode",
        "interpolation_weight",
        "top_fraction",
        "temperature",
        "skip_tokens",
    )
    return {name: getattr(options, name) for name in names} | {"shown": config.context.source}


def columns_of(metrics: Sequence[Mapping[str, float]]) -> dict[str, list[float | None]]:
    """The figures of all steps, by name; None where a step has none."""
    names = list(dict.fromkeys(name for row in metrics for name in row))
    return {name: [row.get(name) for row in metrics] for name in names}


def validation_figures(
    graded: Mapping[tuple[int, str], GradedSamples],
) -> list[dict[str, Any]]:
    """The figures of every checkpoint that was evaluated while training."""
    return [
        {
            "step": step,
            "benchmark": name,
            "k": samples.correct.shape[1],
            "problems": len(samples.problems),
            "figures": {f: i.table() for f, i in compute_metrics({name: samples})[name].items()},
        }
        for (step, name), samples in graded.items()
    ]
