"""Advice before training: slopes, places, resumption, and when there is none."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paint.config.schema import ConfigError
from paint.core.storage import CorruptFileError
from paint.data.problems import Problem
from paint.evaluation.intervals import Interval
from paint.experiments.advise import Found, advise, advise_on, find, overlap_auc, views
from paint.experiments.rollout_bank import Bank, marks_of
from paint.grading.base import Grade
from paint.inference.engine import Completion
from paint.models.policy import Policy
from paint.objective.solution import KINDS
from paint.training.rollouts import Rollout
from runs import changed, rows_of

DEMO = changed("demo-paint", {"rollout": {"max_new_tokens": 60}})


def advised(folder: Path, **options: Any) -> dict[str, Any]:
    return advise(
        DEMO,
        folder,
        **{"samples": 2, "sources": ("solution", "other"), "ratios": (0.0,), **options},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Advice of four problems, which was begun with fewer."""
    folder = tmp_path_factory.mktemp("advice")
    advised(folder, problems=1)
    (folder / "SHA256SUMS").unlink()  # as a kill leaves it, with a line that is cut
    with (folder / "rollouts.jsonl").open("a") as file:
        file.write('{"problem_id": "cut')
    advised(folder, problems=4)
    return folder


@pytest.mark.slow
def test_advise_on_demo_shows_the_whole_solution(tmp_path: Path) -> None:
    summary = advised(tmp_path, problems=40, samples=4)
    slopes = {name: view["slope"]["mean"] for name, view in summary["views"].items()}
    assert slopes["solution@0"] > slopes["recipe"] > slopes["other@0"]
    assert summary["advice"][0].startswith("show solution@0")


def test_advise_summary_has_every_view(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert list(summary["views"]) == ["recipe", "solution@0", "other@0"]
    assert summary["views"]["solution@0"]["hidden"] == 0 < summary["views"]["recipe"]["hidden"]
    for view in summary["views"].values():
        assert sum(view["kinds"]) == pytest.approx(1)
        assert sum(view["tenths"]) == pytest.approx(1)


def test_advise_interrupted_goes_on_with_stored_rollouts(folder: Path) -> None:
    rows = rows_of(folder / "rollouts.jsonl")
    assert len({(row["problem_id"], row["sample"]) for row in rows}) == len(rows) == 8


def test_advise_changed_rollouts_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "changed")
    path = tmp_path / "changed/rollouts.jsonl"
    path.write_text(path.read_text().replace('"truncated": false', '"truncated": true', 1))
    with pytest.raises(CorruptFileError, match="advise again"):
        advised(tmp_path / "changed", problems=4)


def test_advise_other_sampling_in_folder_is_refused(folder: Path) -> None:
    other = replace(DEMO, rollout=replace(DEMO.rollout, temperature=0.7))
    with pytest.raises(ConfigError, match=r"other settings \(temperature 1\.1\).*--folder"):
        advise(other, folder, problems=2)


def test_advise_on_stored_rollouts_finds_the_same(folder: Path, tmp_path: Path) -> None:
    stored = {"engine": "stored", "stored": str(folder / "rollouts.jsonl")}
    config = changed("demo-paint", {"rollout": {"max_new_tokens": 60, **stored}})
    summary = advise(config, tmp_path, problems=4, samples=2, sources=("solution",), ratios=(0.0,))
    before = json.loads((folder / "summary.json").read_text())["views"]["solution@0"]
    for name, interval in summary["views"]["solution@0"].items():
        assert interval == pytest.approx(before[name])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"problems": 0}, "at least 1 problem"),
        ({"samples": 1}, "2 samples"),
        ({"ratios": (0.5, 0.5)}, "distinct"),
        ({"ratios": (1.0,)}, r"in \[0, 1\)"),
        ({"sources": ("other", "other")}, "each source once"),
    ],
)
def test_advise_invalid_arguments_are_refused(
    options: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=match):
        advised(tmp_path, **options)


def test_views_have_every_ratio_of_sources_that_are_masked() -> None:
    names = [view.name for view in views(DEMO, ("solution", "none", "answer"), (0.0, 0.25))]
    assert names == ["recipe", "solution@0", "solution@0.25", "none", "answer"]


def rollout(policy: Policy, problem: Problem, text: str, reward: float, row: int = 0) -> Rollout:
    ids = policy.tokenizer.encode(text, add_special_tokens=False)
    completion = Completion(tuple(ids), (0.0,) * len(ids), False)
    return Rollout(row, problem, [1], completion, text, grade=Grade(reward, ""))


def test_marks_of_wrong_rollout_force_right_answer(policy: Policy, problems: list[Problem]) -> None:
    problem = replace(problems[0], solution="$1+2 \\equiv 3$. \\boxed{3}", answer="3")
    text = "$1+2 \\equiv 4$. Then $4+4 \\equiv 8$. The answer is $\\boxed{8}$."
    marks = marks_of(policy, rollout(policy, problem, text, 0.0))
    assert policy.decode(marks.forced) == text.replace("\\boxed{8}$.", "\\boxed{3}")
    assert policy.decode(marks.forced[-marks.answer_tokens :]).endswith("3}")
    assert not marks_of(policy, rollout(policy, problem, text, 1.0)).forced
    assert not marks_of(policy, rollout(policy, problem, "no box", 0.0)).forced


def test_marks_of_departure_is_first_statement_that_solution_lacks(
    policy: Policy, problems: list[Problem]
) -> None:
    problem = replace(problems[0], solution="$1+2 \\equiv 3+5 \\equiv 8$.")
    text = "$1+2 \\equiv 3+6 \\equiv 9$."
    row = rollout(policy, problem, text, 0.0)
    marks = marks_of(policy, row)
    assert "3+6" in policy.decode(row.completion.ids[: marks.departure])
    assert "3+6" not in policy.decode(row.completion.ids[: marks.departure - 1])
    whole = rollout(policy, problem, problem.solution, 1.0)
    assert marks_of(policy, whole).departure == len(whole.completion.ids)


def test_find_slope_is_covariance_of_reward_and_pull() -> None:
    pulls, rewards = (
        np.array([[1.0, 3.0, -2.0], [0.5, 0.5, 0.5]]),
        np.array([[1.0, 0, 0], [1, 1, 0]]),
    )
    scores = [
        dict.fromkeys(("kl", "entropy_gap", "unclipped_mass", "mask_ratio", "leak"), 1.0)
        | {
            "pull": pull,
            "tokens": 2,
            "confusion": None,
            "kinds": [1, 0, 0, 0, 0],
            "tenths": [0.1] * 10,
        }
        for pull in pulls.flatten()
    ]
    found = find(scores, rewards)
    expected = [np.cov(pulls[0], rewards[0])[0, 1], 0.0]
    np.testing.assert_allclose(found.slope, expected, atol=1e-12)
    np.testing.assert_allclose(found.kl, 0.5)
    assert len(found.confusion) == 0
    assert len(found.kinds) == len(KINDS)


def test_overlap_auc_counts_pairs_within_problem(policy: Policy, problems: list[Problem]) -> None:
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    rows = [rollout(policy, problems[0], "1", reward, i) for i, reward in enumerate(rewards)]
    overlaps = np.array([[0.5, 0.5, 0.1], [0.2, 0.3, 0.4]])
    assert overlap_auc(Bank(rows, 3), overlaps).tolist() == [0.75]


def view(slope: float, **changes: Any) -> Found:
    """What 40 problems say that nearly agree."""
    noise = np.random.default_rng(int(1000 * slope)).uniform(-0.01, 0.01, 40)
    values: dict[str, Any] = {
        "slope": slope + noise,
        "kl": noise + 1,
        "entropy_gap": noise,
        "unclipped_mass": np.full(40, 0.99),
        "leak": np.full(40, 0.01),
        "confusion": noise,
        "kinds": np.zeros(5),
        "tenths": np.zeros(10),
        "hidden": 0.3,
    }
    return Found(**values | changes)


FACTS = dict.fromkeys(("both", "truncated"), Interval(0.5, 0.4, 0.6)) | {
    "truncated": Interval(0.0, 0.0, 0.1)
}


@pytest.mark.parametrize(
    ("facts", "found", "expected"),
    [
        ({}, {"recipe": view(0.3), "solution@0": view(0.5)}, ["show solution@0", "more than"]),
        ({}, {"recipe": view(0.3), "solution@0": view(0.29)}, ["show recipe"]),
        ({}, {"recipe": view(0.3), "solution@0": view(0.301)}, ["show solution@0", "keep it"]),
        ({}, {"recipe": view(0.3), "other@0": view(0.1)}, ["show recipe", "is content"]),
        ({}, {"recipe": view(0.3), "other@0": view(0.299)}, ["show recipe", "not the content"]),
        ({}, {"recipe": view(0.0), "other@0": view(0.9)}, ["no advice"]),
        ({"both": Interval(0.05, 0.0, 0.1)}, {"recipe": view(0.3)}, ["no advice"]),
        ({"truncated": Interval(0.6, 0.5, 0.7)}, {"recipe": view(0.3)}, ["max_new_tokens", "show"]),
        ({}, {"recipe": view(0.3, unclipped_mass=np.full(40, 0.4))}, ["show", "objective.clip"]),
        ({}, {"recipe": view(0.3, leak=np.full(40, 0.8))}, ["show", "it copies"]),
    ],
)
def test_advise_on_recommends_only_what_intervals_tell(
    facts: dict[str, Interval], found: dict[str, Found], expected: list[str]
) -> None:
    lines = advise_on(FACTS | facts, found)
    assert len(lines) == len(expected)
    for line, part in zip(lines, expected, strict=True):
        assert part in line
