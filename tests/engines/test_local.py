"""Sampling follows the right distribution; a completion depends on its prompt and seed alone."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig

from conftest import LAB
from paint.data.problems import Problem
from paint.engines.local import LocalEngine, MergedEngine, invert
from paint.engines.protocol import Completion, Sampling
from paint.model.policy import Policy, load_policy
from paint.objective import token_log_probs

SHORT = Sampling(temperature=1.5, top_p=0.99, top_k=20, max_new_tokens=60)
GREEDY = dataclasses.replace(SHORT, temperature=0.0)


def prompts_of(policy: Policy, problems: list[Problem], count: int) -> list[list[int]]:
    """Prompts of different lengths: a third of them also show a part of the solution."""
    return [
        policy.teacher_prompt(p.problem, p.solution[:20], complete=False)
        if i % 3 == 2
        else policy.student_prompt(p.problem)
        for i, p in enumerate(problems[:count])
    ]


def test_a_completion_depends_on_its_own_prompt_and_seed_alone(
    policy: Policy, problems: list[Problem]
) -> None:
    prompts = prompts_of(policy, problems, 7)
    seeds = list(range(7))
    together = LocalEngine(policy, batch_size=7).generate(prompts, SHORT, seeds)
    in_threes = LocalEngine(policy, batch_size=3).generate(prompts[::-1], SHORT, seeds[::-1])[::-1]
    alone = LocalEngine(policy, batch_size=1).generate(prompts[4:5], SHORT, seeds[4:5])
    assert [c.ids for c in together] == [c.ids for c in in_threes]
    assert together[4].ids == alone[0].ids
    other = LocalEngine(policy, batch_size=7).generate(prompts, SHORT, [s + 100 for s in seeds])
    assert [c.ids for c in together] != [c.ids for c in other]


def test_the_engines_log_probs_are_the_trainers(trained: Policy, problems: list[Problem]) -> None:
    prompts = prompts_of(trained, problems, 6)
    completions = LocalEngine(trained, batch_size=6).generate(prompts, SHORT, range(6))
    ids = [c.ids for c in completions]
    logits = trained.lm_head(trained.hidden_states(prompts, ids)).detach()
    trainer = token_log_probs(logits, torch.tensor([i for row in ids for i in row]))
    engine = torch.tensor([x for c in completions for x in c.log_probs])
    torch.testing.assert_close(engine, trainer, rtol=1e-4, atol=1e-4)


def test_greedy_is_the_likeliest_token_at_every_position(
    policy: Policy, problems: list[Problem]
) -> None:
    prompts = prompts_of(policy, problems, 5)
    completions = LocalEngine(policy, batch_size=5).generate(prompts, GREEDY, [0] * 5)
    ids = [c.ids for c in completions]
    choice = policy.lm_head(policy.hidden_states(prompts, ids)).argmax(-1)
    assert choice.tolist() == [i for row in ids for i in row]


def test_a_completion_ends_with_its_end_token_or_is_truncated(
    policy: Policy, problems: list[Problem]
) -> None:
    prompts = prompts_of(policy, problems, 9)
    whole = LocalEngine(policy, batch_size=9).generate(
        prompts, dataclasses.replace(SHORT, max_new_tokens=90), range(9)
    )
    cut = LocalEngine(policy, batch_size=9).generate(
        prompts, dataclasses.replace(SHORT, max_new_tokens=10), range(9)
    )
    for long, short in zip(whole, cut, strict=True):
        assert not long.truncated
        assert long.ids[-1] in policy.end_ids
        assert not set(long.ids[:-1]) & set(policy.end_ids)
        assert short.truncated
        assert short.ids == long.ids[:10]
        assert len(short.log_probs) == 10


def test_a_repetition_penalty_that_came_with_the_model_does_not_bend_the_policy(
    policy: Policy, lab_copy: Path, problems: list[Problem]
) -> None:
    own = GenerationConfig.from_pretrained(lab_copy)
    own.update(repetition_penalty=5.0, do_sample=True, temperature=0.1)
    own.save_pretrained(lab_copy)
    bent = load_policy(dataclasses.replace(LAB, path=str(lab_copy)), seed=0)
    prompts = prompts_of(policy, problems, 4)
    expected = LocalEngine(policy, batch_size=4).generate(prompts, SHORT, range(4))
    assert LocalEngine(bent, batch_size=4).generate(prompts, SHORT, range(4)) == expected


@pytest.mark.parametrize(
    ("sampling", "keeps"),
    [
        (Sampling(temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=1), lambda p: p),
        (Sampling(temperature=2.0, top_p=1.0, top_k=-1, max_new_tokens=1), lambda p: p.sqrt()),
        (
            Sampling(temperature=1.0, top_p=1.0, top_k=2, max_new_tokens=1),
            lambda p: p * (p >= p.topk(2).values[-1]),
        ),
        (
            Sampling(temperature=1.0, top_p=0.5, top_k=-1, max_new_tokens=1),
            lambda p: p * (p == p.max()),
        ),
    ],
    ids=["plain", "temperature", "top-k", "top-p"],
)
def test_samples_follow_the_models_distribution(  # type: ignore[no-untyped-def]
    policy: Policy, problems: list[Problem], sampling: Sampling, keeps
) -> None:
    """4,000 draws of the token that continues a formula, against the library's logits."""
    prompt = policy.student_prompt(problems[0].problem)
    prompt += LocalEngine(policy, batch_size=1).generate([prompt], GREEDY, [0])[0].ids[:9]
    prompt = prompt[-5:]  # 4,000 copies are read, and five tokens leave more than one choice
    probs = policy.model(input_ids=torch.tensor([prompt])).logits[0, -1].detach().softmax(-1)
    expected = keeps(probs)
    expected = expected / expected.sum()
    draws = 4000
    completions = LocalEngine(policy, batch_size=draws).generate(
        [prompt] * draws, sampling, range(draws)
    )
    counts = torch.zeros_like(probs)
    for completion in completions:
        counts[completion.ids[0]] += 1
    error = (counts / draws - expected).abs()
    # Five deviations, and three draws more for tokens so rare that a deviation says little.
    assert (
        error <= 5 * (expected * (1 - expected) / draws).sqrt() + 3 / draws * (expected > 0)
    ).all()


@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 1e-8, 0.1, 1.0, 3.0]), min_size=4, max_size=4), min_size=1
    ),
    st.floats(0, 1, exclude_max=True, width=32),
)
def test_inversion_never_draws_an_impossible_token(rows: list[list[float]], uniform: float) -> None:
    probs = torch.tensor([[*row, 0.5, 0.0] for row in rows])
    tokens = invert(probs, torch.full((len(rows),), uniform))
    assert (probs.gather(1, tokens[:, None]) > 0).all()
    below = torch.stack(
        [p[:t].sum() / p.sum() for p, t in zip(probs.double(), tokens, strict=True)]
    )
    assert (below <= uniform + 1e-6).all()


def test_the_merged_engine_generates_with_the_adapter_in_the_weights_and_gives_them_back(
    trained: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_merged() -> set[bool]:
        return {layer.merged for layer in trained.adapted.values()}

    generate_batch, seen = MergedEngine._generate_batch, []

    def look(engine: MergedEngine, *arguments: Any) -> list[Completion]:
        seen.append(is_merged())
        return generate_batch(engine, *arguments)

    monkeypatch.setattr(MergedEngine, "_generate_batch", look)
    MergedEngine(trained, batch_size=2).generate([[5, 6, 7]] * 3, SHORT, range(3))
    assert seen == [{True}, {True}]
    assert is_merged() == {False}
