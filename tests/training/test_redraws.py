"""Problems that are drawn again until a completion is right: which, how often, by which methods."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from paint.config.run_folder import read_metrics
from paint.config.schema import ConfigError
from paint.data.problems import Problem
from paint.grading.contract import Grade
from paint.inference.engine import Completion, row_seed
from paint.inference.rollouts import Rollout
from paint.resolve.algorithm import LearnsFrom
from paint.resolve.check import check_config
from paint.training.redraws import draw_until_right
from paintvariants.oasis import Oasis
from paintvariants.on_correct import OnCorrect
from paintvariants.rlsd import Rlsd
from runs import changed, stored, train, variant

SMALL: dict[str, dict[str, Any]] = {
    "data": {"limit": 100},
    "model": {"lora_rank": 4, "lora_alpha": 8},
    # Hot enough that some problems have no right one at first, and what is drawn again differs.
    "rollout": {
        "max_new_tokens": 60,
        "temperature": 1.75,
        "samples_per_problem": 2,
        "max_attempts": 3,
    },
    "train": {"steps": 1, "batch_size": 8, "seed": 2},
}
OASIS = variant(Oasis)

Rewards = Sequence[Sequence[float | None]]
"""Of a problem's completions, by attempt."""


def attempts_at(
    rewards: Sequence[Rewards], learns_from: LearnsFrom, most: int = 3
) -> tuple[list[Rollout], list[list[int]]]:
    """Draw problems whose completions have these rewards; also the places drawn again."""
    asked: list[list[int]] = []
    problems = [p for p, attempts in enumerate(rewards) for _ in attempts[0]]
    places = [(p, i) for p, attempts in enumerate(rewards) for i in range(len(attempts[0]))]

    def drawn(chosen: Sequence[int], attempt: int) -> list[Rollout]:
        asked.append(list(chosen))
        found = []
        for place in chosen:
            p, i = places[place]
            completion = Completion((attempt,) * (10 * attempt + i), (), truncated=False)
            problem = Problem("p", "s", "a", str(rewards[p][attempt - 1][i]))
            found.append(Rollout(place, problem, [1], completion, ""))
        return found

    def grade(rollouts: Sequence[Rollout]) -> list[Rollout]:
        found = []
        for r in rollouts:
            reward = None if r.problem.id == "None" else float(r.problem.id)
            found.append(Rollout(r.row, r.problem, r.prompt, r.completion, "", grade=Grade(reward)))
        return found

    first = drawn(range(len(places)), 1)
    kept = draw_until_right(first, problems, drawn, grade, learns_from, most)
    return kept, asked[1:]


def test_draw_until_right_repeats_problems_without_a_right_completion() -> None:
    rewards: list[Rewards] = [
        [[0, 1]],  # solved at once
        [[0, 0.5], [1, 0]],
        [[0, 0], [0, 0], [0, 1]],
        [[0, 0], [0.5, 0], [0, 0.5]],  # never
    ]
    kept, asked = attempts_at(rewards, "right")
    assert asked == [[2, 3, 4, 5, 6, 7], [4, 5, 6, 7]]
    # A problem that nothing solves keeps its first completions.
    assert [r.completion.ids[0] for r in kept] == [1, 1, 2, 2, 3, 3, 1, 1]
    draws = [r.draws for r in kept if r.draws]
    assert [d.tokens for d in draws[:4]] == [(10,), (11,), (10, 20), (11, 21)]
    assert [d.tokens for d in draws[4:]] == 2 * [(10, 20, 30), (11, 21, 31)]
    assert [d.solved for d in draws] == [True] * 6 + [False] * 2
    assert [r.sampled_tokens for r in kept] == [10, 11, 30, 32, 60, 63, 60, 63]


def test_draw_until_right_by_differences_takes_unequal_rewards() -> None:
    rewards: list[Rewards] = [[[0, 0.5]], [[0.5, 0.5], [0, 0.5]], [[1, 1]]]
    kept, asked = attempts_at(rewards, "differences")
    assert asked == [[2, 3]]
    assert [r.completion.ids[0] for r in kept] == [1, 1, 2, 2, 1, 1]
    assert [r.draws.solved for r in kept if r.draws] == [False] * 4 + [True] * 2


def test_draw_until_right_problem_that_the_grader_failed_on_is_not_repeated() -> None:
    kept, asked = attempts_at([[[None, None]], [[None, 0], [None, None], [None, 1]]], "right")
    assert asked == [[2, 3], [2, 3]]
    assert [r.completion.ids[0] for r in kept] == [1, 1, 3, 3]


def test_row_seed_is_another_one_for_each_run_step_row_and_attempt() -> None:
    places = list(product((0, 1), (0, 1), (0, 1), (1, 2)))
    assert len({row_seed(*place) for place in places}) == len(places)


USES: dict[str, tuple[dict[str, dict[str, Any]], ...]] = {
    "grpo": ({"train": {"method": "grpo"}},),
    "rlsd": (variant(Rlsd), {"context": {"source": ["solution"]}}),
    "oasis": (OASIS,),
    "on correct": (variant(OnCorrect), {"rollout": {"samples_per_problem": 1}}),
    "peers": ({"context": {"source": ["rollout"]}},),
}
REFUSED: dict[str, tuple[dict[str, dict[str, Any]], ...]] = {
    "distillation": (),
    "sft": ({"train": {"method": "sft"}, "rollout": {"samples_per_problem": 1}},),
    "all alike": (variant(OnCorrect, correct_weight=0.5, wrong_weight=0.5),),
    "no peers": ({"context": {"source": ["rollout"]}, "rollout": {"samples_per_problem": 1}},),
}


@pytest.mark.parametrize("case", [*USES, *REFUSED])
def test_config_takes_attempts_where_right_completions_are_needed(case: str) -> None:
    config = changed("demo-paint", SMALL, *(USES | REFUSED)[case])
    if case in USES:
        assert check_config(config).needs_grades
        return
    with pytest.raises(ConfigError, match=r"^rollout\.max_attempts must be 1 with .* got 3 \("):
        check_config(config)


def test_train_first_attempt_is_what_a_run_without_draws(tmp_path: Path) -> None:
    run, without = tmp_path / "run", tmp_path / "without"
    train(changed("demo-paint", SMALL, OASIS), run)
    train(changed("demo-paint", SMALL, OASIS, {"rollout": {"max_attempts": 1}}), without)
    counts = []
    for row, first in zip(stored(run), stored(without), strict=True):
        counts.append(len(row["attempt_tokens"]))
        assert row["attempt_tokens"][0] == len(first["completion_ids"])
        assert "attempt_tokens" not in first
        is_first = row["completion_ids"] == first["completion_ids"]
        assert is_first == (counts[-1] == 1 or not solved(run, row["problem_id"]))
    assert {1} < set(counts) <= {1, 2, 3}

    metrics = read_metrics(run)[0]
    assert metrics["attempts"] == pytest.approx(sum(counts) / 8)
    assert metrics["solved_frac"] == sum(solved(run, row["problem_id"]) for row in stored(run)) / 8
    assert metrics["rollout_tokens"] == sum(sum(row["attempt_tokens"]) for row in stored(run))
    seconds, rate = metrics["seconds_rollout"], metrics["tokens_per_second_rollout"]
    assert seconds * rate == pytest.approx(metrics["rollout_tokens"])
    assert not {"attempts", "solved_frac"} & read_metrics(without)[0].keys()


def solved(folder: Path, problem: str) -> bool:
    return any(row["correct"] for row in stored(folder) if row["problem_id"] == problem)
