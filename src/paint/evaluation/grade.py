"""Grading of stored samples, and the summary of the grades.

Grading reads stored samples, so it can be repeated when a gold answer or the grader changes.
Unfinished evaluations are not graded: short completions finish first and are more often correct.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from paint.config.collapse import collapse_warnings, describe
from paint.config.recipe import to_table
from paint.config.schema import Config, GradingConfig
from paint.core.display import Display
from paint.core.errors import ConfigError
from paint.evaluation.defaults import grader_needs_answer
from paint.evaluation.frame import to_terminal, write_report
from paint.evaluation.metrics import GradedSamples
from paint.evaluation.store import (
    PURPOSE,
    SampleKey,
    Store,
    StoreError,
    find_stores,
    problem_digest,
    reopen_store,
)
from paint.evaluation.summary import SUMMARY, summary_report
from paint.grading.contract import Grade, Grader, describe_failures, require_some_grade
from paint.grading.graders import code_digest, open_grader
from paint.inference.rollout_grades import grade_rollouts, is_gradable, name_of_grader
from strictgrade.text import normalize
from strictgrade.thoughts import ThoughtTags

GRADED_AT_ONCE = 256  # samples per call of the grader

REPETITION_TAIL, REPETITION_WINDOW = 4_000, 40
"""Characters at the end of a text that are checked for repetition; length of an n-gram."""


def grade(
    store: Store, grader: Grader, grading: GradingConfig, display: Display, *, again: bool = False
) -> GradedSamples:
    """Grade all samples of a store and write the grades and votes to grades.jsonl.

    Completions that this grader, opened from ``grading``, has graded before keep their grades,
    unless ``again``: calls of a judge cost money and may end otherwise. Raises StoreError if
    samples are missing, ConfigError if the grader is "none", and GradingError if it failed on all
    of the first samples, and shall stop there.
    """
    if grading.is_off and PURPOSE not in store.settings:
        raise ConfigError('the grader must not be "none": an evaluation needs grades')
    if store.missing:
        raise StoreError(
            f"{store.folder}: {len(store.missing)} of {len(store.rows)} samples are missing; "
            f"the same `paint eval` command generates them"
        )

    identity, k = grader_identity(grading), store.settings["samples"]
    rows: dict[SampleKey, dict[str, Any]] = {}
    if not again and store.settings.get("grading") == identity:
        for key, (_, row) in store.matching_grades().items():
            if not row.get("failed"):
                rows[key] = row
    if rows:
        display.note(f"{store.folder.name}: {len(rows):,} samples keep their grades")
    # Completions that failed before may fail again beside others that are graded.
    stops = grading.stop_on_failure and not grading.is_off and not rows
    _grade_others(store, grader, grading, rows, display, stops=stops)
    ordered = [rows[problem.id, number] for problem, number in store.rows]
    # Anew also where grades are kept: votes depend on the other samples of a problem.
    if any("answer" in row for row in ordered):
        for row, vote in zip(ordered, cast_votes(ordered, k, grader), strict=True):
            row["vote"] = vote
    store.write_grades(identity, ordered)

    failed = describe_failures(list(map(grade_of, ordered)), [p.name for p, _ in store.rows])
    if failed:
        display.warn(f"{store.folder.name}: {failed} (the same command asks for them again)")
    graded = graded_samples(store)
    for warning in _hopeless(graded, grader.unanswered):
        display.warn(f"{store.folder.name}: {warning}")
    return graded


def _hopeless(graded: GradedSamples, unanswered: Sequence[str]) -> Iterator[str]:
    """The warnings of a run's first step that samples meet: nearly all cut off, or unanswered."""
    shares = {"truncated_frac": float(graded.truncated.mean())}
    if graded.unboxed is not None:
        shares["unboxed_frac"] = float(graded.unboxed.mean())
    elif unanswered:
        count = sum(graded.reasons.get(reason, 0) for reason in unanswered)
        shares["unboxed_frac"] = count / graded.truncated.size
    for name, (share, first) in collapse_warnings([shares]).items():
        yield describe(name, share, first)


def grader_identity(grading: GradingConfig) -> dict[str, Any]:
    """Return what determines the grades of a text: graders with modules, weights and options."""
    table = to_table(Config(grading=grading))["grading"]
    # The code counts, too: a changed function does not keep the grades of the former one.
    code = [code_digest(spec) for spec in grading.grader]
    # Not timeout and concurrency: they can only make a call fail, and failures are graded again. A
    # comparison of mathematics that is beyond the deadline counts as wrong, also in a sum.
    chosen = {name: table[name] for name in ("grader", "weights", "options", "deadline")}
    return {**chosen, "code": code}


def _grade_others(
    store: Store,
    grader: Grader,
    grading: GradingConfig,
    rows: dict[SampleKey, dict[str, Any]],
    display: Display,
    *,
    stops: bool,
) -> None:
    """Grade the samples that have no row, and add their rows."""
    needs_answer = grader_needs_answer(grading)
    # The tags of the model that sampled: grading loads no model.
    tags = [ThoughtTags(**pair) for pair in store.settings.get("conventions", {}).get("tags", ())]
    left = [s for s in store.samples() if s.key not in rows]
    # An environment's reward is a number, whatever the grader gives.
    is_given = any(s.grade for s in left)
    gives_answers = grader.gives_answers and not is_given
    with display.counting(f"grading {store.folder.name}", len(left), 0) as count:
        for start in range(0, len(left), GRADED_AT_ONCE):
            chunk = left[start : start + GRADED_AT_ONCE]
            texts = [s.text for s in chunk]
            grades = grade_rollouts(grader, chunk, texts, tags=tags, needs_answer=needs_answer)
            graded = list(zip(chunk, grades, strict=True))
            # At the first chunk: a judge that is down is found before it was asked for all samples.
            if stops and not start:
                told = [(s, g) for s, g in graded if is_gradable(s, needs_answer=needs_answer)]
                ids = [s.problem.id for s, _ in told]
                environment = store.settings.get("conversation", {}).get("environment", "")
                is_given = all(s.grade for s, _ in told)
                who = name_of_grader(grading.grader, environment, is_given=is_given)
                require_some_grade([g for _, g in told], ids, who, store.folder.name)
            for s, verdict in graded:
                rows[s.key] = {
                    "problem_id": s.problem.id,
                    "sample": s.row,
                    "of": store.graded_digest(s),
                    **_grade_columns(verdict, gives_answers=gives_answers),
                    "looping": is_repetitive(s.text),
                }
            count.to(start + len(chunk))


def _grade_columns(grade: Grade, *, gives_answers: bool) -> dict[str, Any]:
    correct = None if grade.reward is None else grade.correct
    columns: dict[str, Any] = {"correct": correct, **grade.columns}
    if gives_answers or grade.answer is not None:
        columns["answer"] = grade.answer
    if not gives_answers:
        columns |= {"reward": grade.reward, "failed": grade.failed}
    return columns


def grade_of(row: Mapping[str, Any]) -> Grade:
    """Return the grade that a row of grades.jsonl holds; of parts, their rewards."""
    reward = row.get("reward", row["correct"])
    if reward is not None:
        reward = float(reward)  # a verdict is true or false
    return Grade.stored(row, reward, row.get("answer"))


def graded_samples(store: Store) -> GradedSamples:
    """Return the stored grades of a store as arrays, NaN for what has none.

    Raises StoreError where grades of a sample are missing.
    """
    graded = store.graded()
    k = store.settings["samples"]
    rows = [row for _, row in graded]

    def table(values: list[Any]) -> Any:
        return np.array(values).reshape(-1, k)

    votes = unboxed = rewards = None
    parts = {}
    # Verdicts are rewards, too, where some row has no answer to compare with.
    if "reward" in rows[0] or any(row["correct"] is None for row in rows):
        rewards = table([grade_of(row).reward for row in rows]).astype(float)
        # A function that says parts of its reward says none where it failed.
        for name in dict.fromkeys(name for row in rows for name in row.get("rewards", {})):
            values = table([row.get("rewards", {}).get(name) for row in rows]).astype(float)
            if not np.isnan(values).all():  # which a grader that did not grade gives
                parts[name] = values
    if any("answer" in row for row in rows):
        votes = table([row["vote"] for row in rows])
        unboxed = table([row.get("answer") is None for row in rows])
    metrics = {}
    for name in dict.fromkeys(name for row in rows for name in row.get("metrics", {})):
        metrics[name] = table([row.get("metrics", {}).get(name) for row in rows]).astype(float)
    return GradedSamples(
        problems=[problem_digest(problem) for problem in store.problems],
        correct=table([bool(row["correct"]) for row in rows]),
        votes=votes,
        tokens=table([len(sample.completion.ids) for sample, _ in graded]),
        truncated=table([sample.completion.truncated for sample, _ in graded]),
        unboxed=unboxed,
        repetitive=table([row["looping"] for row in rows]),
        rewards=rewards,
        parts=parts,
        metrics=metrics,
        reasons=Counter(row["reason"] for row in rows if not row.get("failed")),
        failures=sum(bool(row.get("failed")) for row in rows),
    )


def summarise(
    folders: Sequence[Path], out: Path, display: Display, grading: GradingConfig | None = None
) -> None:
    """Write summary.json and summary.md of all stores below some folders; print the tables.

    All are graded again by ``grading``; by default their stored grades are taken.
    """
    graded: dict[Path, GradedSamples] = {}
    for path in stored_in(folders):
        with reopen_store(path) as store:
            if grading is None:
                graded[path] = graded_samples(store)
            else:
                with open_grader(grading) as grader:
                    graded[path] = grade(store, grader, grading, display, again=True)
    write_summary(graded, out, display)


def write_summary(graded: Mapping[Path, GradedSamples], folder: Path, display: Display) -> None:
    """Write summary.json and summary.md of graded stores; print the tables.

    The policy of the first store is the baseline of the comparisons.
    """
    names = policy_names(list(graded))
    by_policy: dict[str, dict[str, GradedSamples]] = {}
    for path, samples in graded.items():
        by_policy.setdefault(names[path], {})[path.name] = samples
    report = summary_report(by_policy)
    write_report(folder, SUMMARY, report, StoreError)
    to_terminal(report.tables, display.console)
    display.note(f"written to {folder}: {SUMMARY}.json, {SUMMARY}.md")


def stored_in(folders: Sequence[Path]) -> list[Path]:
    """Return the evaluations below some folders, the base model's first."""
    paths = []
    for folder in folders:
        stores = find_stores(folder)
        if not stores:
            raise StoreError(f"{folder} holds no evaluation; `paint eval` makes one")
        # All differences are to the first policy.
        paths += sorted(stores, key=lambda path: path.parent.name != "base")
    return list(dict.fromkeys(paths))  # a folder may be named together with one above it


def policy_names(stores: Sequence[Path]) -> dict[Path, str]:
    """Return the policy of every store: its folder's name, or its path if two are equal."""
    folders = list(dict.fromkeys(store.parent for store in stores))
    names = Counter(folder.name for folder in folders)
    policies = {}
    for store in stores:
        is_unique = names[store.parent.name] == 1
        policies[store] = store.parent.name if is_unique else str(store.parent)
    return policies


def cast_votes(rows: Sequence[Mapping[str, Any]], k: int, grader: Grader) -> list[int]:
    """Return the vote of each row of grades.jsonl: equal answers to one problem share a number.

    Correct answers are 0, since each equals the gold answer. A wrong answer gets the number of the
    first wrong answer that it is equal to by the grader, or else a new one. No answer is -1.
    """
    votes: list[int] = []
    # All pairs of a problem are asked for at once: several are compared side by side.
    for start in range(0, len(rows), k):
        of_problem = [(row.get("answer"), row["correct"]) for row in rows[start : start + k]]
        wrong = [answer for answer, correct in of_problem if answer is not None and not correct]
        pairs = sorted({(a, b) for a, b in combinations(wrong, 2) if normalize(a) != normalize(b)})
        equal = {pair for pair, same in zip(pairs, grader.equal(pairs), strict=True) if same}

        distinct: dict[str, int] = {}  # the vote of each distinct wrong answer
        for vote, (answer, correct) in enumerate(of_problem, start=1):
            if answer is None or correct:
                votes.append(-1 if answer is None else 0)
                continue
            same = []
            for other, earlier in distinct.items():
                if normalize(other) == normalize(answer) or (other, answer) in equal:
                    same.append(earlier)
            # The earliest: undecided answers count as unequal, so equality may not be transitive.
            votes.append(same[0] if same else distinct.setdefault(answer, vote))
    return votes


def is_repetitive(text: str) -> bool:
    """Return whether under half of the 40-character n-grams of a text's end are distinct (ours).

    In mathematics of real models that share is at least 0.9; a paragraph repeated three times has
    0.33.
    """
    tail = text[-REPETITION_TAIL:]
    runs = [tail[i : i + REPETITION_WINDOW] for i in range(len(tail) - REPETITION_WINDOW + 1)]
    return len(runs) >= 10 * REPETITION_WINDOW and 2 * len(set(runs)) < len(runs)
