"""Grading of stored samples, and the summary of the grades.

Grading reads stored samples, so it can be repeated when a gold answer or the grader changes.
Unfinished evaluations are not graded: short completions finish first and are more often correct.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np

from paint.config.schema import GradingConfig
from paint.core.display import Display
from paint.core.errors import ConfigError
from paint.core.storage import digest
from paint.data.gold_answer_checks import gold_warnings
from paint.data.problems import LABELS, Problem, item_of
from paint.evaluation.frame import to_terminal, write_report
from paint.evaluation.metrics import GradedSamples
from paint.evaluation.store import (
    Store,
    StoreError,
    find_stores,
    reopen_store,
    write_grades,
)
from paint.evaluation.summary import SUMMARY, summary_report, worth_showing
from paint.grading.contract import Grade, Grader, require_some_grade
from paint.grading.graders import NoGrader, open_grader
from paint.grading.math.grader import MathGrade, MathGrader
from paint.grading.thoughts import ThoughtTags
from paint.objective.anchors import normalize

GRADED_AT_ONCE = 256  # samples per call of the grader; their texts are in memory together
MOST_LABELS = 30  # maximum number of levels or subjects in a table; columns with more get none

REPETITION_TAIL, REPETITION_WINDOW = 4_000, 40
"""Characters at the end of a text that are checked for repetition; length of an n-gram."""


def grade(
    store: Store, grader: Grader, display: Display, *, stop_on_failure: bool = True
) -> GradedSamples:
    """Grade all samples of a store and write the verdicts and votes to grades.jsonl.

    Raises GradingError if the grader failed on all of the first samples, if it shall
    stop there.
    """
    if isinstance(grader, NoGrader):
        raise ConfigError('the grader must not be "none": an evaluation needs grades')
    rows = [(problem.id, sample) for problem, sample in store.rows]
    if store.missing:
        raise StoreError(
            f"{store.folder}: {len(store.missing)} of {len(rows)} samples are missing; "
            f"the same `paint eval` command generates them"
        )

    problems = {problem.id: problem for problem in store.problems}
    tags = []
    for pair in store.settings.get("conventions", {}).get("tags", ()):
        tags.append(ThoughtTags(**pair))
    graded_by_row: dict[tuple[str, int], tuple[Grade, tuple[int, bool], bool]] = {}
    samples = store.samples()
    with display.counting(f"grading {store.folder.name}", len(rows), 0) as count:
        while chunk := list(islice(samples, GRADED_AT_ONCE)):
            found = grader.grade(
                [
                    item_of(problems[s.problem], s.text, truncated=s.truncated, tags=tags)
                    for s in chunk
                ]
            )
            if stop_on_failure and not graded_by_row:
                require_some_grade(found, store.folder.name)
            for s, verdict in zip(chunk, found, strict=True):
                length, is_looping = (s.tokens, s.truncated), is_repetitive(s.text)
                graded_by_row[s.problem, s.sample] = verdict, length, is_looping
            count.to(len(graded_by_row))

    grades, lengths, looping = zip(*(graded_by_row[row] for row in rows), strict=True)
    votes: Sequence[int | None] = [None] * len(rows)
    if isinstance(grader, MathGrader):
        votes = cast_votes(grades, store.settings["samples"], grader)
    lines = [
        {"problem": problem, "sample": i, **_verdict_columns(grade, vote), "looping": is_looping}
        for (problem, i), grade, vote, is_looping in zip(rows, grades, votes, looping, strict=True)
    ]
    write_grades(store, lines)
    cost = grader.take_cost()
    if cost.calls:
        display.note(
            f"{store.folder.name}: the grader was called {cost.calls:,} times, "
            f"{cost.seconds:,.1f} s in all"
        )
    graded = to_graded_samples(store, lines, lengths)
    if graded.failures:
        problem, reason = graded.failures[0]
        display.note(
            f"{store.folder.name}: the grader failed on {len(graded.failures)} of {len(rows)} "
            f"samples, which count 0; first on problem {problem}: {reason}"
        )
    return graded


def _verdict_columns(grade: Grade, vote: int | None) -> dict[str, Any]:
    """The columns of grades.jsonl; other graders have a reward and no lenient verdict."""
    if isinstance(grade, MathGrade):
        return {"strict": asdict(grade.strict), "lenient": asdict(grade.lenient), "vote": vote}
    verdict = {"correct": grade.correct, "answer": None, "reason": grade.reason}
    columns: dict[str, Any] = {"strict": verdict, "reward": grade.reward}
    columns["failed"] = grade.failed
    if grade.feedback:
        columns["feedback"] = grade.feedback
    if grade.parts:
        columns["rewards"] = {name: part.reward for name, part in grade.parts.items()}
    return columns


def to_graded_samples(
    store: Store, grades: Sequence[Mapping[str, Any]], lengths: Sequence[tuple[int, bool]]
) -> GradedSamples:
    """Convert the rows of grades.jsonl, and each sample's tokens and truncation, to arrays."""
    k = store.settings["samples"]
    has_rewards = any("reward" in row for row in grades)

    def table(values: Iterable[Any]) -> Any:
        return np.array(list(values)).reshape(-1, k)

    def math_only(values: Iterable[Any]) -> Any:
        if has_rewards:
            return None
        return table(values)

    return GradedSamples(
        problems=[digest(p.id, p.problem, *p.answers) for p in store.problems],
        correct=table(row["strict"]["correct"] for row in grades),
        lenient=math_only(row["lenient"]["correct"] for row in grades),
        votes=math_only(row["vote"] for row in grades),
        tokens=table(tokens for tokens, _ in lengths),
        truncated=table(is_truncated for _, is_truncated in lengths),
        unboxed=math_only(row["strict"]["answer"] is None for row in grades),
        repetitive=table(row["looping"] for row in grades),
        rewards=table(float(row["reward"]) for row in grades) if has_rewards else None,
        reasons=Counter(row["strict"]["reason"] for row in grades),
        failures=[(row["problem"], row["strict"]["reason"]) for row in grades if row.get("failed")],
        labels=_labels(store.problems),
        gold_warnings=() if has_rewards else gold_warnings(store.problems),
    )


def summarise(
    stores: Sequence[Store], folder: Path, display: Display, grading: GradingConfig
) -> None:
    """Grade all stores, write summary.json and summary.md to ``folder``, and print the tables.

    The policy of the first store is the baseline of the comparisons.
    """
    names = policy_names([store.folder for store in stores])
    by_policy: dict[str, dict[str, GradedSamples]] = {}
    with open_grader(grading) as grader:
        for store in stores:
            graded = by_policy.setdefault(names[store.folder], {})
            graded[store.folder.name] = grade(
                store, grader, display, stop_on_failure=grading.stop_on_failure
            )
    write_summary(by_policy, folder, display)


def write_summary(
    by_policy: Mapping[str, Mapping[str, GradedSamples]], folder: Path, display: Display
) -> None:
    """Write summary.json and summary.md of graded samples by policy and set; print the tables."""
    report = summary_report(by_policy)
    write_report(folder, SUMMARY, report, StoreError)
    printed = worth_showing(report.tables, by_policy)
    to_terminal(printed, display.console)
    line = f"written to {folder}: {SUMMARY}.json, {SUMMARY}.md"
    if len(printed) < len(report.tables):
        line += f" ({len(report.tables) - len(printed)} more tables)"
    display.note(line)


def summarise_folders(
    folders: Sequence[Path], out: Path, display: Display, grading: GradingConfig
) -> None:
    """Call ``summarise`` on all stores below some folders."""
    with ExitStack() as stack:
        stores = []
        for path in stored_in(folders):
            stores.append(stack.enter_context(reopen_store(path)))
        summarise(stores, out, display, grading)


def stored_in(folders: Sequence[Path]) -> list[Path]:
    """Find the evaluations below some folders, the base model's first."""
    paths = []
    for folder in folders:
        stores = find_stores(folder)
        if not stores:
            raise StoreError(f"{folder} holds no evaluation; `paint eval` makes one")
        paths += sorted(stores, key=lambda path: path.parent.name != "base")
    return list(dict.fromkeys(paths))


def policy_names(stores: Sequence[Path]) -> dict[Path, str]:
    """The policy of every store: its folder's name, or its complete path if two are equal."""
    policies = []
    for policy in dict.fromkeys(store.parent for store in stores):
        policies.append(policy.name)
    return {
        store: policy.name if policies.count(policy.name) == 1 else str(policy)
        for store in stores
        for policy in [store.parent]
    }


def cast_votes(grades: Sequence[MathGrade], k: int, grader: MathGrader) -> list[int]:
    """The vote of each sample: equal answers to one problem share a number.

    Correct answers are 0, since each equals the gold answer. A wrong answer gets the number of the
    first wrong answer that it is verified equal to, or else a new one. No answer is -1.
    """
    votes: list[int] = []
    for start in range(0, len(grades), k):
        verdicts = []
        for grade in grades[start : start + k]:
            verdicts.append(grade.strict)
        wrong = []
        for v in verdicts:
            if v.answer is not None and not v.correct:
                wrong.append(v.answer)
        pairs = sorted({(a, b) for a, b in combinations(wrong, 2) if normalize(a) != normalize(b)})
        equal = {pair for pair, same in zip(pairs, grader.equal(pairs), strict=True) if same}

        distinct: dict[str, int] = {}  # the vote of each distinct wrong answer
        for vote, verdict in enumerate(verdicts, start=1):
            answer = verdict.answer
            if answer is None or verdict.correct:
                votes.append(-1 if answer is None else 0)
                continue
            same = []
            for other, earlier in distinct.items():
                if normalize(other) == normalize(answer) or (other, answer) in equal:
                    same.append(earlier)
            votes.append(same[0] if same else distinct.setdefault(answer, vote))
    return votes


def is_repetitive(text: str) -> bool:
    """Whether fewer than half of the 40-character n-grams of a text's end are distinct (ours).

    In mathematics of real models that share is at least 0.9; a paragraph repeated three times has
    0.33.
    """
    tail = text[-REPETITION_TAIL:]
    runs = []
    for i in range(len(tail) - REPETITION_WINDOW + 1):
        runs.append(tail[i : i + REPETITION_WINDOW])
    return len(runs) >= 10 * REPETITION_WINDOW and 2 * len(set(runs)) < len(runs)


def _labels(problems: Sequence[Problem]) -> dict[str, list[str]]:
    """The levels and subjects of the problems; columns without 2 to 30 values are omitted."""
    labels = {}
    for name in LABELS:
        labels[name] = [dict(problem.labels).get(name, "") for problem in problems]
    return {name: values for name, values in labels.items() if 1 < len(set(values)) <= MOST_LABELS}
