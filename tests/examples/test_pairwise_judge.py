"""The pairwise judge of examples/: both orders, and a win rate with its interval."""

import asyncio
import runpy
from pathlib import Path

import pairwise_judge
import pytest
from pairwise_judge import prefers

from paint.commands.api.results import Evaluation
from paint.evaluation.store import find_stores
from runs import rows_of

ROW = {"problem": "1 + 1", "base": r"It is $\boxed{2}$."}


@pytest.mark.parametrize(
    ("completion", "reward", "reason", "first"),
    [
        (r"$\boxed{2}$", 1.0, "won", 0.5),
        ("It is 2.", 0.0, "lost", 0.5),
        (ROW["base"], 0.5, "split", 1.0),  # equal answers: whichever is read first
    ],
)
def test_prefers_asks_in_both_orders(
    completion: str, reward: float, reason: str, first: float
) -> None:
    grade = asyncio.run(prefers(completion, ROW))
    assert (grade.reward, grade.reason) == (reward, reason)
    assert grade.metrics == {"prefers_first": first}


@pytest.mark.parametrize(
    ("said", "reward"),
    [(("A.", "b"), 1.0), (("**B**", "(A)"), 0.0), (("tie", "Tie."), 0.5), (("tie", "B"), 0.75)],
)
def test_prefers_verdict_is_read_without_its_signs(
    said: tuple[str, str], reward: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(problem: str, first: str, second: str) -> str:
        return said[first == ROW["base"]]

    monkeypatch.setattr(pairwise_judge, "ask", ask)
    assert asyncio.run(prefers("c", ROW)).reward == reward


@pytest.mark.slow
def test_example_win_rate_is_that_of_its_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(pairwise_judge.__file__, run_name="__main__")
    assert "prefers_first" in capsys.readouterr().out
    [folder] = [
        path for path in Path("evals").iterdir() if (path / "pairwise-step-000004").is_dir()
    ]
    table = Evaluation(folder).table.set_index(["policy", "metric"])
    base, [trained] = "base", find_stores(folder / "pairwise-step-000004")
    problems = {row["id"]: row for row in rows_of(trained / "problems.jsonl")}
    wins: list[float] = []
    for sample in rows_of(trained / "completions.jsonl"):
        row = problems[sample["problem_id"]]
        answers = {"problem": row["problem"], "base": row["fields"]["base"]}
        wins.append(asyncio.run(prefers(sample["text"], answers)).reward or 0.0)
    found = table.loc[("pairwise-step-000004", "reward")]
    assert found["mean"] == pytest.approx(sum(wins) / len(wins))
    assert found["low"] < found["mean"] < found["high"]
    # Of the base against itself, apart from what was drawn.
    assert table.loc[(base, "reward"), "low"] < 0.5 < table.loc[(base, "reward"), "high"]
