"""Rows dealt over ranks: each once, for about as long, whatever the order; and those at once."""

from collections.abc import Sequence
from typing import Any

import pytest
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st

from paint.config.schema import TrainConfig
from paint.data.problems import Problem
from paint.inference.engine import Completion
from paint.inference.rollouts import Rollout, TeacherPrompt
from paint.training import load_balancing
from paint.training.load_balancing import assign_rows, balance_rows, micro_batches, token_passes


def rollout(row: int, prompt: int, completion: int, teacher: int | None = None) -> Rollout:
    """One of so many tokens."""
    view = None if teacher is None else TeacherPrompt(None, False, [0] * teacher)
    ids = (0,) * completion
    written = Completion(ids, (0.0,) * completion, truncated=False)
    return Rollout(row, Problem("", "", "", ""), [0] * prompt, written, "", view)


def of_lengths(lengths: Sequence[int]) -> list[Rollout]:
    return [rollout(row, 10, length, 20) for row, length in enumerate(lengths)]


def asked(size: int, tokens: int) -> TrainConfig:
    return TrainConfig(micro_batch_size=size, micro_batch_tokens=tokens)


def numbers(rollouts: Sequence[Rollout]) -> list[int]:
    return [r.row for r in rollouts]


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 6000),
    st.randoms(use_true_random=False),
)
def test_assign_rows_covers_each_row_once_in_any_order(
    lengths: list[int], ranks: int, size: int, tokens: int, random: Any
) -> None:
    config = asked(size, tokens)
    rollouts = of_lengths(lengths)
    dealt = [numbers(share) for share in assign_rows(rollouts, ranks, config)]
    assert sorted(row for share in dealt for row in share) == list(range(len(lengths)))
    assert sum(not share for share in dealt) == max(0, ranks - len(lengths))
    random.shuffle(rollouts)
    assert [numbers(share) for share in assign_rows(rollouts, ranks, config)] == dealt


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 6000)
)
def test_micro_batches_respect_both_limits(lengths: list[int], size: int, tokens: int) -> None:
    config = asked(size, tokens)
    groups = list(micro_batches(of_lengths(lengths), config))
    assert sorted(row for group in groups for row in numbers(group)) == list(range(len(lengths)))
    widths = [max(20 + len(r.completion.ids) for r in group) for group in groups]
    assert widths == sorted(widths, reverse=True)
    for group, width in zip(groups, widths, strict=True):
        assert len(group) <= size
        assert len(group) == 1 or len(group) * width <= tokens
    for group, width, after in zip(groups, widths, groups[1:], strict=False):
        is_full = len(group) == size or (len(group) + 1) * width > tokens
        assert is_full, (numbers(group), numbers(after))


def test_micro_batches_count_teacher_prompt() -> None:
    config = asked(2, 200)
    student = [rollout(0, 90, 10), rollout(1, 90, 10)]
    assert list(map(numbers, micro_batches(student, config))) == [[0, 1]]
    both = [rollout(0, 40, 10, teacher=91), rollout(1, 40, 10, teacher=91)]
    assert list(map(numbers, micro_batches(both, config))) == [[0], [1]]
    assert token_passes(both[:1]) - token_passes([rollout(0, 40, 10)]) == 101


def test_assign_rows_balances_ranks() -> None:
    config = asked(4, 2048)
    rollouts = of_lengths([20_000, 18_000, 16_000, 14_000, *range(4_000, 1_200, -100)])
    costs = [token_passes([r]) for r in rollouts]
    shares = assign_rows(rollouts, 4, config)
    dealt = [sum(token_passes([r]) for r in share) for share in shares]
    assert max(dealt) < 1.02 * sum(costs) / 4 < sum(costs[:8]) / 1.9


@pytest.mark.parametrize("rank", [0, 1])
def test_balance_rows_gives_rank_its_share(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    everyones = of_lengths([50, 40, 30, 4, 3, 2])  # the first rank generated the long ones

    def gather(mine: list[Rollout]) -> list[Rollout]:
        assert numbers(mine) == [[0, 1, 2], [3, 4, 5]][rank]
        return everyones

    monkeypatch.setattr(load_balancing, "all_gather_objects", gather)
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    monkeypatch.setattr(Accelerator, "process_index", rank)
    mine = everyones[3 * rank : 3 * rank + 3]
    mine = balance_rows(Accelerator(cpu=True), mine, asked(1, 4096))
    assert numbers(mine) == [[0, 3, 4], [1, 2, 5]][rank]  # 291 and 336 tokens
