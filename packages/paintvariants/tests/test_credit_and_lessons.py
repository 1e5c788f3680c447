"""Variants whose options make them a known algorithm, and the lessons of U-OPSD."""

from pathlib import Path
from typing import Any

import pytest

from paint.config.run_folder import read_metrics
from paint.data.problems import Problem
from paint.models.policy import Policy
from paint.resolve.check import check_config
from paintvariants.contrast import Contrast
from paintvariants.sipo import Sipo
from paintvariants.u_opsd import UOpsd, lesson, lesson_view
from runs import changed, completed, stored, train, variant, write_problems

SMALL: dict[str, dict[str, Any]] = {
    "rollout": {"max_new_tokens": 24, "batch_size": 8},
    "train": {"steps": 1, "batch_size": 8, "micro_batch_size": 3},
}

GROUPS: dict[str, dict[str, Any]] = {"rollout": {"samples_per_problem": 4}}


def figures(folder: Path, *sections: dict[str, Any]) -> dict[str, float]:
    """The metrics of a run's only step."""
    train(changed("demo-paint", SMALL, *sections), folder)
    return read_metrics(folder)[0]


@pytest.mark.slow
def test_contrast_of_strength_minus_one_is_the_other_context(tmp_path: Path) -> None:
    found = {}
    for strength, source in ((0.0, "solution"), (-1.0, "answer")):
        method = variant(Contrast, strength=strength, against="answer")
        found[source] = figures(tmp_path / f"of-{source}", method)["kl"]
        expected = figures(tmp_path / source, {"context": {"source": source}})["kl"]
        assert found[source] == pytest.approx(expected, rel=1e-4)
    assert found["solution"] != pytest.approx(found["answer"], rel=0.1)


@pytest.mark.slow
def test_credit_without_range_is_grpo(tmp_path: Path) -> None:
    group: dict[str, Any] = {"rollout": {"samples_per_problem": 8, "max_new_tokens": 60}}
    expected = figures(tmp_path / "grpo", group, {"train": {"method": "grpo"}})["gradient_norm"]
    assert expected > 0
    group["context"] = {"source": "answer"}
    for used in (0.0, 0.5):
        method = variant(Sipo, kappa=used)
        found = figures(tmp_path / str(used), group, method)["gradient_norm"]
        assert (found == pytest.approx(expected, rel=1e-4)) == (used == 0)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("1 1 2 2", (r"long \boxed{1}", 3)),  # half of all is enough, of equal votes the shorter
        ("1 2 2 3", (r"\boxed{2}", 3)),
        ("1 2 3 -", (None, None)),
        ("1 1 1 -", (None, None)),  # without an answer there is nothing to correct
        ("- - - -", (None, None)),
    ],
)
def test_u_opsd_lesson_is_majority_for_longest_other(
    answers: str, expected: tuple[str | None, int | None]
) -> None:
    texts = [f"\\boxed{{{a}}}" if a != "-" else "" for a in answers.split()]
    texts[0] = f"long {texts[0]}"
    group = [completed(row, 5 + row, text) for row, text in enumerate(texts)]
    assert lesson(group, 0.5) == expected


def test_u_opsd_lesson_with_special_text_is_that_without_it(policy: Policy) -> None:
    end = policy.tokenizer.eos_token
    run, rollout = check_config(changed("demo-paint", GROUPS, variant(UOpsd))), completed(text="1")
    marked = lesson_view(policy, run, rollout, f"So{end} it is 7.")
    assert marked.prompt == lesson_view(policy, run, rollout, "So it is 7.").prompt
    assert lesson_view(policy, run, rollout, None).prompt == policy.teacher_prompt(
        rollout.problem, None, complete=False
    )


def test_u_opsd_lesson_over_the_limit_is_none(policy: Policy) -> None:
    limit = {"data": {"max_prompt_tokens": 300}}
    run = check_config(changed("demo-paint", GROUPS, limit, variant(UOpsd)))
    short, long = (lesson_view(policy, run, completed(text="1"), "7. " * n) for n in (1, 200))
    assert (short.context, short.refused_tokens) == ("7. ", 0)
    assert long.context is None
    assert long.refused_tokens > 300 >= len(long.prompt)


def test_rationale_prompt_with_special_text_is_that_without_it(policy: Policy) -> None:
    end = policy.tokenizer.eos_token
    marked = policy.rationale_prompt("p", f"So{end} it is 7.", complete=True)
    assert marked == policy.rationale_prompt("p", "So it is 7.", complete=True)


@pytest.mark.slow
def test_u_opsd_trains_on_rows_without_answers(tmp_path: Path, problems: list[Problem]) -> None:
    # Problems whose words have an unknown value, so that answers to one differ.
    rows = [{"problem": p.problem} for p in problems if "A " in p.solution][:4]
    sections: dict[str, Any] = {
        "data": {"path": write_problems(tmp_path / "rows.jsonl", rows)},
        "context": {"source": "none"},
        "rollout": {"samples_per_problem": 8, "max_new_tokens": 96},
        "train": {"batch_size": 32},
        "grading": {"grader": "none"},
    }
    metrics = figures(tmp_path / "run", variant(UOpsd), sections)
    assert metrics["gradient_norm"] > 0
    assert metrics["kl"] > 1e-3
    found = stored(tmp_path / "run")
    groups = [found[i : i + 8] for i in range(0, len(found), 8)]
    learned = [(row, group) for group in groups for row in group if row["kept"]]
    assert 0 < len(learned) <= len(groups)
    for row, group in learned:
        assert row["context"] in [other["text"] for other in group if other is not row]
