"""Prompts over the limit: refused with their lengths, or skipped and counted; never cut."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chatforms.lengths import token_lengths
from paint.config.recipe import from_table, to_table
from paint.config.schema import Config
from paint.core.display import Display
from paint.data.problems import DataError, Problem, read_problems
from paint.models.policy import load_policy
from paint.objective.masking import MARKER
from paint.resolve.check import check_config
from paint.training.prompt_filter import filter_problems
from runs import changed, stored, train, write_problems

LONG = "so " * 600
SKIP = {"on_bad_row": "skip"}
SMALL: dict[str, dict[str, Any]] = {
    "model": {"lora_rank": 4},
    "rollout": {"max_new_tokens": 24},
    "train": {"steps": 1, "batch_size": 8},
}


def of_rows(
    folder: Path,
    recipe: str,
    rows: Sequence[tuple[str, str]],
    data: dict[str, Any],
    **sections: dict[str, Any],
) -> Config:
    """A recipe on problems with these texts and solutions, named 1, 2, ..."""
    problems = [{"problem": p, "solution": s, "answer": "12"} for p, s in rows]
    path = write_problems(folder / "problems.jsonl", problems)
    return changed(recipe, SMALL, {"data": {"path": path} | data}, sections)


def kept(config: Config) -> list[str]:
    """The names of the problems that fit."""
    policy = load_policy(config.model, seed=0)
    return [
        p.id
        for p in filter_problems(
            policy, check_config(config), read_problems(config.data), Display()
        )
    ]


@pytest.mark.parametrize(
    ("recipe", "weight", "solution"),
    [("demo-grpo", 0.0, LONG), ("demo-sft", 0.0, "It is 12."), ("demo-grpo", 0.1, "It is 12.")],
)
def test_prompt_filter_limit_is_of_learnt_text(
    tmp_path: Path, recipe: str, weight: float, solution: str
) -> None:
    """GRPO reads no solution; SFT, or GRPO beside it, reads the problem with its solution."""
    rows, objective = [("What?", solution)], {"sft_weight": weight}
    policy = load_policy(of_rows(tmp_path, recipe, rows, {}).model, seed=0)
    length = len(policy.student_prompt("What?"))
    if recipe == "demo-sft" or weight:
        length += len(policy.solution_ids(solution))

    def limited(tokens: int) -> list[str]:
        data = {"max_prompt_tokens": tokens}
        return kept(of_rows(tmp_path, recipe, rows, data, objective=objective))

    assert limited(length) == ["1"]
    with pytest.raises(DataError, match=rf"problem 1 .* of {length} tokens.* {length - 1} "):
        limited(length - 1)


def test_prompt_filter_limit_is_at_most_positions(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"makes a prompt with its solution of .* limit of 1024 "):
        kept(of_rows(tmp_path, "demo-sft", [("What?", LONG)], {}))


@pytest.mark.parametrize(
    ("recipe", "source"),
    [("demo-paint", "solution"), ("demo-paint", "other"), ("demo-grpo", ""), ("demo-sft", "")],
)
def test_prompt_filter_tokenises_the_rows_that_may_be_over_the_limit_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, source: str
) -> None:
    rows = [(f"What is {i}?" + " So" * i, f"It is {i}." + " Indeed" * (i % 7)) for i in range(40)]
    context = {"context": {"source": source}} if source else {}
    config = of_rows(tmp_path, recipe, rows, SKIP, **context)
    policy, problems = load_policy(config.model, seed=0), read_problems(config.data).problems
    tokenised: list[str] = []

    def counted(tokenizer: Any, texts: Sequence[str]) -> list[int]:
        tokenised.extend(texts)
        return token_lengths(tokenizer, texts)

    def length(problem: Problem) -> int:
        prompt = len(policy.student_prompt(problem))
        if recipe == "demo-grpo":
            return prompt
        if recipe == "demo-sft":
            return prompt + len(policy.reference_ids(problem.solution))
        text = f"{problem.solution} {MARKER}"
        return len(policy.teacher_prompt(problem, text, complete=False))

    def names_within(limit: int) -> list[str]:
        within = [problem for problem in problems if length(problem) <= limit]
        if source == "other":
            beside = max((len(policy.solution_ids(p.solution)) for p in within), default=0)
            empty = (len(policy.teacher_prompt(p, MARKER, complete=False)) for p in within)
            within = [p for p, n in zip(within, empty, strict=True) if n + beside <= limit]
        return [problem.id for problem in within]

    for module in ("prompt_filter", "row_prompts"):
        monkeypatch.setattr(f"paint.training.{module}.token_lengths", counted)
    table = to_table(config)
    for limit in (*sorted(map(length, problems))[9::9], 900):
        tokenised.clear()
        table["data"]["max_prompt_tokens"] = limit
        assert kept(from_table(table)) == names_within(limit), limit
    if source != "other":
        assert tokenised == []


def test_prompt_filter_counts_references(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paint.core.display.LEAST_SECONDS", 0.0)  # of lines on counts
    rows = [("so " * 40, "It is 1."), ("Is it?", "so " * 40)]

    def names(limit: int, data: dict[str, Any] | None = None, **sections: Any) -> list[str]:
        data = {"max_prompt_tokens": limit} | (data or {})
        return kept(of_rows(tmp_path, "demo-paint", rows, data, **sections))

    assert names(200) == ["1", "2"]
    with pytest.raises(DataError, match=r"problem 1\b.*teacher prompt.*\b200\b"):
        names(200, context={"source": "other"})
    capsys.readouterr()
    assert names(200, SKIP, context={"source": "other"}) == ["2"]
    output = capsys.readouterr().out
    assert "their solutions measured: 2/2" in output


@pytest.mark.parametrize("source", ["solution", "other"])
def test_prompt_filter_skipped_rows_are_counted_and_never_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paint.core.display.LEAST_SECONDS", 0.0)  # of lines on counts
    rows = [(f"What is {i}?", f"It is {i}, as one sees.") for i in range(4)] + [("And?", LONG)]
    context = {"source": source}
    with pytest.raises(DataError, match=r"problem 5\b.*\b1000\b.*skip"):
        train(of_rows(tmp_path, "demo-paint", rows, {}, context=context), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    train(of_rows(tmp_path, "demo-paint", rows, SKIP, context=context), tmp_path / "run")
    output = capsys.readouterr().out
    assert "training problems measured: 5/5" in output
    assert "skipped 1 rows: over the token limit" in output
    assert "step 1: 4 of 4 contexts have no anchors" in output
    printed = [output.index(f"--- {part}") for part in ("first student", "first teacher", "comp")]
    assert printed == sorted(printed)
    rollouts = stored(tmp_path / "run")
    assert {row["problem_id"] for row in rollouts} == {"1", "2", "3", "4"}
    assert {(row["overlap"], row["mask_ratio"]) for row in rollouts} == {(0.0, 0.0)}
    assert all(row["context"].endswith(", as one sees.") for row in rollouts)
