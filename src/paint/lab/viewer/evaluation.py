"""Page of evaluations: every sample with its verdict, and the policies side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paint.data.problems import Problem
from paint.data.row_checks import gold_warnings
from paint.evaluation.grade import graded_samples, policy_names, stored_in
from paint.evaluation.metrics import GradedSamples
from paint.evaluation.store import Store, reopen_store
from paint.evaluation.summary import main_metric, summary_report
from paint.inference.rollouts import Rollout
from paint.lab.viewer.page import turns_of

TEXT_CHARACTERS = 6_000_000
"""Maximum characters of all samples on a page; longer samples lose their middle."""


def evaluation_data(targets: Sequence[Path]) -> dict[str, Any]:
    """Return the data of the page: all evaluations below some folders, with their stored grades.

    Raises StoreError if a folder contains no evaluation, an evaluation is not graded, or two
    policies have different problems in one benchmark.
    """
    graded: dict[str, dict[str, GradedSamples]] = {}
    settings: dict[str, dict[str, Any]] = {}
    stores: dict[str, dict[str, Store]] = {}  # by benchmark and policy
    for path, policy in policy_names(stored_in(targets)).items():
        with reopen_store(path) as store:
            graded.setdefault(policy, {})[path.name] = graded_samples(store)
        settings.setdefault(policy, {})[path.name] = store.settings
        stores.setdefault(path.name, {})[policy] = store
    count = sum(part.correct.size for parts in graded.values() for part in parts.values())
    max_characters = max(TEXT_CHARACTERS // count, 400)
    benchmarks = []
    for name, by_policy in stores.items():
        gives_answers = all(graded[policy][name].rewards is None for policy in by_policy)
        benchmarks.append(
            benchmark_data(name, by_policy, max_characters, gives_answers=gives_answers)
        )
    return {
        "name": targets[0].resolve().name,
        "policies": list(graded),
        "metric": main_metric(graded),
        **asdict(summary_report(graded)),
        "benchmarks": benchmarks,
        "settings": settings,
    }


def benchmark_data(
    name: str, by_policy: Mapping[str, Store], max_characters: int, *, gives_answers: bool
) -> dict[str, Any]:
    """Return the problems of a benchmark, with the samples of every policy that has it.

    Longer texts than ``max_characters`` lose their middle. With ``gives_answers``, gold answers are
    read as mathematics, and may be misread.
    """
    first = next(iter(by_policy.values()))
    problems = {problem.id: _problem_data(problem) for problem in first.problems}
    if gives_answers:
        for warning in gold_warnings(first.problems):
            problems[warning.problem.id]["doubt"] = str(warning)
    for policy, store in by_policy.items():
        for sample, row in store.graded():
            answers = problems[sample.problem.id]["answers"].setdefault(policy, [])
            answers.append(_answer_data(row, sample, max_characters))
    answers = [a for p in problems.values() for each in p["answers"].values() for a in each]
    return {
        "name": name,
        "k": first.settings["samples"],
        "problems": list(problems.values()),
        # Verdicts are shown as right and wrong, other rewards as numbers.
        "has_numbers": any(answer["reward"] not in (None, 0, 1) for answer in answers),
    }


def _problem_data(problem: Problem) -> dict[str, Any]:
    return {
        "id": problem.id,
        "problem": problem.problem,
        "turns": problem.turns,
        "solution": problem.solution,
        "golds": list(problem.answers),
        "labels": {
            name: str(value)
            for name, value in problem.fields.items()
            if value and name.casefold() in ("level", "subject")
        },
        "doubt": None,
        "answers": {},
    }


def _answer_data(row: Mapping[str, Any], sample: Rollout, max_characters: int) -> dict[str, Any]:
    conversation = sample.completion.conversation
    messages = conversation.messages if conversation else ()
    return {
        "correct": row["correct"],
        "answer": row.get("answer"),
        # If the grader gives answers, the verdict is the reward.
        "reward": row.get("reward", row["correct"]) if row["correct"] is not None else None,
        "rewards": row.get("rewards", {}),
        "reason": row["reason"],
        "feedback": shortened(row.get("feedback", ""), max_characters),
        "metrics": row.get("metrics", {}),
        "looping": row["looping"],
        "tokens": len(sample.completion.ids),
        "truncated": sample.completion.truncated,
        "text": shortened(sample.text, max_characters),
        "turns": [(role, shortened(text, max_characters)) for role, text in turns_of(messages)],
    }


def shortened(text: str, max_characters: int) -> str:
    """Shorten a text to its beginning and end, with a count of the characters between."""
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters ...]\n{text[-half:]}"
