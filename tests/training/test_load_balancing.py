"""Rows dealt over ranks: each once, for about as long, whatever the order; and those at once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from conftest import DEMO
from paint.config.schema import Config, TrainConfig
from paint.data.problems import Problem
from paint.inference.engine import Completion
from paint.models.policy import Policy, load_policy
from paint.training import load_balancing
from paint.training.load_balancing import (
    CostModel,
    assign_rows,
    balance_rows,
    cost_model,
    flops,
    micro_batches,
)
from paint.training.rollouts import Rollout, TeacherPrompt

MODEL = CostModel(
    weights=10**6, attention=10**3, head=10**5, is_full=False, recomputes=False, packed=False
)


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
    dealt = [numbers(share) for share in assign_rows(rollouts, ranks, MODEL, config)]
    assert sorted(row for share in dealt for row in share) == list(range(len(lengths)))
    assert sum(not share for share in dealt) == max(0, ranks - len(lengths))
    random.shuffle(rollouts)
    assert [numbers(share) for share in assign_rows(rollouts, ranks, MODEL, config)] == dealt


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(1, 6000),
)
def test_micro_batches_respect_row_and_token_limits(
    lengths: list[int], size: int, tokens: int
) -> None:
    config = asked(size, tokens)
    groups = list(micro_batches(of_lengths(lengths), config, False))
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
    assert list(map(numbers, micro_batches(student, config, False))) == [[0, 1]]
    both = [rollout(0, 40, 10, teacher=91), rollout(1, 40, 10, teacher=91)]
    assert list(map(numbers, micro_batches(both, config, False))) == [[0], [1]]
    assert flops(both[:1], MODEL) - flops([rollout(0, 40, 10)], MODEL) == MODEL.forward(101)


def test_micro_batches_packed_rows_have_no_padding() -> None:
    rows = [rollout(0, 90, 10), rollout(1, 10, 10), rollout(2, 10, 10)]
    assert list(map(numbers, micro_batches(rows, asked(3, 150), False))) == [[0], [1, 2]]
    assert list(map(numbers, micro_batches(rows, asked(3, 150), True))) == [[0, 1, 2]]
    packed = replace(MODEL, packed=True)
    assert flops(rows, packed) == sum(flops([r], MODEL) for r in rows) < flops(rows, MODEL)


def test_assign_rows_balances_ranks() -> None:
    config = asked(4, 2048)
    rollouts = of_lengths([10_000, 9_000, 8_000, 7_000, *range(4_000, 1_200, -100)])
    costs = [flops([r], MODEL) for r in rollouts]
    dealt = [sum(flops([r], MODEL) for r in s) for s in assign_rows(rollouts, 4, MODEL, config)]
    assert max(dealt) < 1.02 * sum(costs) / 4 < sum(costs[:8]) / 1.9


def test_flops_of_long_row_exceed_proportion_of_tokens() -> None:
    """So that it is dealt less beside it."""
    long, short = rollout(0, 0, 4000), rollout(0, 0, 1000)
    assert flops([long], MODEL) > 4 * flops([short], MODEL)
    padded = flops([rollout(0, 0, 1000), rollout(1, 0, 10)], MODEL)
    assert padded > 1.5 * flops([short], MODEL)


@pytest.mark.parametrize("rank", [0, 1])
def test_balance_rows_gives_rank_its_share_of_all_rows(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    everyones = of_lengths([50, 40, 30, 4, 3, 2])  # the first rank generated the long ones

    def gather(mine: list[Rollout]) -> list[Rollout]:
        assert numbers(mine) == [[0, 1, 2], [3, 4, 5]][rank]
        return everyones

    monkeypatch.setattr(load_balancing, "all_gather_objects", gather)
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    monkeypatch.setattr(Accelerator, "process_index", rank)
    config = Config(train=asked(1, 4096))
    mine = balance_rows(Accelerator(cpu=True), everyones[3 * rank : 3 * rank + 3], policy, config)
    assert numbers(mine) == [[0, 3, 4, 5], [1, 2]][rank]


def test_flops_match_flop_counter() -> None:
    """Eager attention is what the counter sees; it takes all pairs, and a causal pass half."""
    policy = load_policy(replace(DEMO, attention="eager"), seed=0)
    model = cost_model(policy, recomputes=False)
    counted = {}
    for name, grad in (("forward", False), ("both", True)):
        with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(grad):
            states = policy.hidden_states([[5] * 20], [[6] * 80])
            if grad:
                states.sum().backward()
        counted[name] = counter.get_total_flops()
    squares = 2 * model.attention * 100**2
    assert counted["forward"] == pytest.approx(model.forward(100) + squares, rel=0.02)
    both = model.forward(100) + model.backward(100) + 3 * squares
    # Adapters get a gradient of their own, which is left out: large beside this model's matrices.
    assert both < counted["both"] < 1.25 * both
    recomputed = replace(model, recomputes=True)
    assert recomputed.backward(100) - model.backward(100) == model.forward(100)
