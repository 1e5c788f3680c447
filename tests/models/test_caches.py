"""A beginning that prompts share: how long it is, and that reading it once changes no number."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import move
from paint.config.schema import TeacherConfig
from paint.models.caches import BLOCK, LEAST, read_beginning, shared_length
from paint.models.policy import Policy
from paint.models.teacher import Teacher, open_teacher
from tiny_models import tiny_config, tiny_model

GUIDE = torch.randint(4, 900, (LEAST + 3,), generator=torch.Generator().manual_seed(0)).tolist()
# The second turn of a conversation goes on in the row of the first.
PROMPTS = [[*GUIDE, 5, 6], [*GUIDE, 5, 6, 50, 60, 7, 8], [*GUIDE, 9]]
COMPLETIONS = [[50, 60], [70, 80, 90], [91, 92, 93, 94, 95, 96, 97]]


@pytest.mark.parametrize(
    ("prompts", "shared"),
    [
        ([], 0),
        ([GUIDE], 0),  # alone
        ([GUIDE, GUIDE], LEAST),  # a prompt's last token is its own
        ([GUIDE[:LEAST], GUIDE[:LEAST]], 0),
        ([GUIDE[:-4], GUIDE], 0),
        ([[*GUIDE, *[7] * LEAST], [*GUIDE, *[8] * (LEAST - 8)]], LEAST),  # half of the tokens
        ([[*GUIDE, *[7] * LEAST], [*GUIDE, *[8] * LEAST]], 0),
        ([[1, *GUIDE], GUIDE], 0),
    ],
)
def test_shared_length_is_of_long_beginnings_alone(prompts: list[list[int]], shared: int) -> None:
    assert shared_length(prompts) == shared


@given(
    st.lists(st.lists(st.integers(0, 1), max_size=40), min_size=2, max_size=5),
    st.integers(0, 90),
    st.randoms(use_true_random=False),
)
def test_shared_length_is_common_to_all_in_any_order(
    ends: list[list[int]], common: int, random: Any
) -> None:
    prompts = [[3] * common + end for end in ends]
    shared = shared_length(prompts)
    assert shared == 0 or min(map(len, prompts)) > shared >= LEAST
    assert shared % BLOCK == 0
    assert all(prompt[:shared] == prompts[0][:shared] for prompt in prompts)
    random.shuffle(prompts)
    assert shared_length(prompts) == shared


def of_family(policy: Policy, family: str, **settings: Any) -> Policy:
    """The policy with a tiny model of another family, in float64."""
    model = tiny_model(tiny_config(family, vocab_size=len(policy.tokenizer), **settings)).double()
    return replace(policy, model=model, lm_head=model.get_output_embeddings())


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "gpt2", "opt", "phi3"])
def test_hidden_states_with_beginning_are_those_of_whole_rows(policy: Policy, family: str) -> None:
    own = of_family(policy, family)
    with torch.no_grad():
        whole = own.hidden_states(PROMPTS, COMPLETIONS)
        beginning = read_beginning(own.base.get_decoder(), GUIDE[:LEAST])
        assert beginning is not None
        for _ in range(2):  # rows leave nothing behind
            shared = own.hidden_states(PROMPTS, COMPLETIONS, beginning)
            assert (shared - whole).abs().max() < 1e-10
        alone = own.hidden_states(PROMPTS[2:], COMPLETIONS[2:], beginning)
    assert (alone - whole[5:]).abs().max() < 1e-10


@pytest.mark.parametrize("family", ["bloom", "gemma3_text", "lfm2", "mamba"])
def test_teacher_of_other_caches_reads_whole_rows(policy: Policy, family: str) -> None:
    own = of_family(policy, family)
    teacher = open_teacher(own, TeacherConfig(weights="live"))
    whole = teacher.hidden_states(PROMPTS, COMPLETIONS)
    assert torch.equal(teacher.hidden_states(PROMPTS, COMPLETIONS, LEAST), whole)


@pytest.mark.parametrize("weights", ["frozen", "ema", "live"])
def test_teacher_reads_beginning_again_when_its_weights_change(
    policy: Policy, weights: str
) -> None:
    policy.model.double()
    teacher = open_teacher(policy, TeacherConfig(weights=weights, decay=0.5))  # type: ignore[arg-type]

    def states(of: Teacher) -> torch.Tensor:
        shared = of.hidden_states(PROMPTS, COMPLETIONS, LEAST)
        assert (shared - of.hidden_states(PROMPTS, COMPLETIONS)).abs().max() < 1e-10
        assert torch.equal(of.hidden_states(PROMPTS, COMPLETIONS, LEAST), shared)
        return shared

    first = states(teacher)
    [read] = teacher.beginnings.values()
    move(policy)
    teacher.follow(1)
    assert bool(teacher.beginnings) == (weights == "frozen")
    second = states(teacher)
    assert torch.equal(first, second) == (weights == "frozen")
    [again] = teacher.beginnings.values()
    assert (again is read) == (weights == "frozen")
    assert torch.equal(states(teacher.base), first)
    teacher.hidden_states([[7, *p] for p in PROMPTS], COMPLETIONS, LEAST)
    assert len(teacher.beginnings) == 1
