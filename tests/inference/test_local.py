"""Sampling follows the right distribution; a completion depends on its prompt and seed alone."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from conftest import DEMO
from paint.core.display import Display
from paint.data.problems import Problem
from paint.inference import local
from paint.inference.decoders import StaticDecoder
from paint.inference.engine import EngineError, Sampling
from paint.inference.local import LocalEngine
from paint.inference.sampling import distribution, invert
from paint.models import attention
from paint.models.policy import Policy, load_policy
from paint.objective.loss import token_log_probs
from tiny_models import tiny_config, tiny_model

SHORT = Sampling(temperature=1.5, top_p=0.99, top_k=20, max_new_tokens=24)
GREEDY = dataclasses.replace(SHORT, temperature=0.0)


def prompts_of(policy: Policy, problems: list[Problem], count: int) -> list[list[int]]:
    """Prompts of different lengths: a third of them also show a part of the solution."""
    return [
        policy.teacher_prompt(p.problem, p.solution[:20], complete=False)
        if i % 3 == 2
        else policy.student_prompt(p.problem)
        for i, p in enumerate(problems[:count])
    ]


def test_generate_depends_only_on_prompt_and_seed(policy: Policy, problems: list[Problem]) -> None:
    prompts = prompts_of(policy, problems, 7)
    seeds = list(range(7))
    together = LocalEngine(policy, batch_size=7).generate(prompts, SHORT, seeds)
    in_threes = LocalEngine(policy, batch_size=3).generate(prompts[::-1], SHORT, seeds[::-1])[::-1]
    alone = LocalEngine(policy, batch_size=1).generate(prompts[4:5], SHORT, seeds[4:5])
    assert [c.ids for c in together] == [c.ids for c in in_threes]
    assert together[4].ids == alone[0].ids
    other = LocalEngine(policy, batch_size=7).generate(prompts, SHORT, [s + 100 for s in seeds])
    assert [c.ids for c in together] != [c.ids for c in other]
    assert LocalEngine(policy, batch_size=7).generate([], SHORT, []) == []


def test_generate_log_probs_match_trainer(trained: Policy, problems: list[Problem]) -> None:
    prompts = prompts_of(trained, problems, 6)
    completions = LocalEngine(trained, batch_size=6).generate(prompts, SHORT, range(6))
    ids = [c.ids for c in completions]
    logits = trained.lm_head(trained.hidden_states(prompts, ids)).detach()
    trainer = token_log_probs(logits, torch.tensor([i for row in ids for i in row]))
    engine = torch.tensor([x for c in completions for x in c.log_probs])
    torch.testing.assert_close(engine, trainer, rtol=1e-4, atol=1e-4)


def test_generate_ends_with_end_or_is_truncated(policy: Policy, problems: list[Problem]) -> None:
    prompts = prompts_of(policy, problems, 9)
    whole, cut = (
        LocalEngine(policy, batch_size=9).generate(
            prompts, dataclasses.replace(SHORT, max_new_tokens=tokens), range(9)
        )
        for tokens in (90, 10)
    )
    for long, short in zip(whole, cut, strict=True):
        assert not long.truncated
        assert long.ids[-1] in policy.end_ids
        assert not set(long.ids[:-1]) & set(policy.end_ids)
        assert short.truncated
        assert short.ids == long.ids[:10]
        assert len(short.log_probs) == 10
    # The last token that a completion may have can be its end.
    tight = dataclasses.replace(SHORT, max_new_tokens=len(whole[0].ids))
    [exact] = LocalEngine(policy, batch_size=1).generate(prompts[:1], tight, [0])
    assert (exact.ids, exact.truncated) == (whole[0].ids, False)


def test_generate_with_more_candidates_than_are_looked_at_first_is_the_same(
    policy: Policy, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [policy.student_prompt(problem.problem) for problem in problems[:4]]
    hot, found = Sampling(3.0, 0.99, -1, 12), []
    for likeliest in (policy.lm_head.out_features, 1):  # without a repetition, and with several
        monkeypatch.setattr(local, "LIKELIEST", likeliest)
        engine = LocalEngine(policy, batch_size=4)
        found.append([c.ids for c in engine.generate(prompts, hot, range(4))])
    assert found[0] == found[1]


def test_generate_ignores_generation_config_of_model(
    policy: Policy, demo_copy: Path, problems: list[Problem]
) -> None:
    own = GenerationConfig.from_pretrained(demo_copy)
    own.update(repetition_penalty=5.0, do_sample=True, temperature=0.1)
    own.save_pretrained(demo_copy)
    bent = load_policy(dataclasses.replace(DEMO, path=str(demo_copy)), seed=0)
    prompts = prompts_of(policy, problems, 4)
    expected = LocalEngine(policy, batch_size=4).generate(prompts, SHORT, range(4))
    assert LocalEngine(bent, batch_size=4).generate(prompts, SHORT, range(4)) == expected


def nucleus(probs: Tensor, top_p: float) -> Tensor:
    """The probabilities of the fewest likeliest tokens that sum to top_p; 0 for the others."""
    ordered = probs.sort(descending=True).values
    count = 1 + int((ordered.cumsum(0) < top_p).sum())
    return probs * (probs >= ordered[count - 1])


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k", "keeps"),
    [
        (1.0, 1.0, -1, lambda p: p),
        (2.0, 1.0, -1, lambda p: p.sqrt()),
        (1.0, 1.0, 2, lambda p: p * (p >= p.topk(2).values[-1])),
        (1.0, 0.5, -1, lambda p: nucleus(p, 0.5)),
    ],
    ids=["plain", "temperature", "top-k", "top-p"],
)
def test_generate_samples_follow_model_distribution(
    policy: Policy, problems: Any, temperature: float, top_p: float, top_k: int, keeps: Any
) -> None:
    """4,000 draws of the token that continues a formula, against the library's logits."""
    prompt = policy.student_prompt(problems[0].problem)
    prompt += LocalEngine(policy, batch_size=1).generate([prompt], GREEDY, [0])[0].ids[:9]
    prompt = prompt[-5:]  # 4,000 copies are read, and five tokens leave more than one choice
    probs = policy.model(input_ids=torch.tensor([prompt])).logits[0, -1].detach().softmax(-1)
    expected = keeps(probs)
    expected = expected / expected.sum()
    draws, sampling = 4000, Sampling(temperature, top_p, top_k, max_new_tokens=1)
    engine = LocalEngine(policy, batch_size=draws)
    completions = engine.generate([prompt] * draws, sampling, range(draws))
    counts = torch.tensor([c.ids[0] for c in completions]).bincount(minlength=len(probs))
    error = (counts / draws - expected).abs()
    # Five deviations, and three draws more for tokens so rare that a deviation says little.
    bound = 5 * (expected * (1 - expected) / draws).sqrt() + 3 / draws * (expected > 0)
    assert (error <= bound).all()


def test_grouped_decode_copies_keys_in_prefill(policy: Policy, problems: list[Problem]) -> None:
    prompts = prompts_of(policy, problems, 2)
    layers = policy.base.config.num_hidden_layers
    forward = sdpa_attention_forward
    with patch.object(attention, "sdpa_attention_forward", side_effect=forward) as copying:
        LocalEngine(policy, batch_size=2).generate(prompts, SHORT, range(2))
    assert {call.args[1].shape[2] for call in copying.call_args_list}.isdisjoint({1})
    assert copying.call_count in (layers, 2 * layers)  # with a common beginning, twice


@contextmanager
def passes(policy: Policy) -> Iterator[list[tuple[int, int]]]:
    """Rows and tokens of a row of every pass through the model, as they come."""
    shapes: list[tuple[int, int]] = []

    def note(_: Any, __: Any, inputs: dict[str, Tensor]) -> None:
        rows, tokens = inputs["input_ids"].shape
        shapes.append((rows, tokens))

    hook = policy.base.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
    yield shapes
    hook.remove()


def test_generate_reads_repeated_prompt_once(policy: Policy, problems: list[Problem]) -> None:
    prompts = prompts_of(policy, problems, 2) * 3
    with passes(policy) as shapes:
        together = LocalEngine(policy, batch_size=6).generate(prompts, SHORT, range(6))
    assert shapes[0] == (2, max(map(len, prompts)) - 1)  # the last token is the first step's
    assert shapes[1] == (6, 1)

    alone = LocalEngine(policy, batch_size=1).generate(prompts, SHORT, range(6))
    assert [c.ids for c in together] == [c.ids for c in alone]


def test_generate_reads_common_prefix_once(policy: Policy, problems: list[Problem]) -> None:
    beginning = policy.student_prompt(problems[9].problem)
    prompts = [beginning + prompt for prompt in prompts_of(policy, problems, 5)]
    shared = len(beginning) + len(policy.student_prompt("#")) - len(policy.student_prompt("#")[1:])
    with passes(policy) as shapes:
        together = LocalEngine(policy, batch_size=3).generate(prompts, SHORT, range(5))
    (one, length), (rows, rest), *_ = shapes
    assert one == 1
    assert shared <= length < min(map(len, prompts))
    assert (rows, rest) == (3, max(map(len, prompts)) - 1 - length)

    alone = [
        LocalEngine(policy, batch_size=1).generate([prompt], SHORT, [seed])[0]
        for seed, prompt in enumerate(prompts)
    ]
    assert [c.ids for c in together] == [c.ids for c in alone]
    for mine, theirs in zip(together, alone, strict=True):
        assert mine.log_probs == pytest.approx(theirs.log_probs, abs=1e-4)


def test_generate_after_a_prompt_with_which_another_begins_is_as_alone(
    policy: Policy, problems: list[Problem]
) -> None:
    prompt = policy.student_prompt(problems[9].problem)
    prompts = [prompt, prompt + prompt[:5]]
    together = LocalEngine(policy, batch_size=2).generate(prompts, SHORT, range(2))
    alone = LocalEngine(policy, batch_size=1).generate(prompts, SHORT, range(2))
    assert [c.ids for c in together] == [c.ids for c in alone]


def test_generate_refills_finished_rows(policy: Policy, problems: list[Problem]) -> None:
    """Whoever waits for the longest row of each batch takes as many passes as those together."""
    prompts, whole = prompts_of(policy, problems, 12), dataclasses.replace(SHORT, max_new_tokens=90)
    with passes(policy) as shapes:
        completions = LocalEngine(policy, batch_size=4).generate(prompts, whole, range(12))
    assert max(rows for rows, _ in shapes) == 4
    ordered = sorted(range(12), key=lambda i: (-len(prompts[i]), prompts[i]))
    lengths = [len(completions[i].ids) for i in ordered]
    ends = [0] * 4
    for length in lengths:
        ends[ends.index(min(ends))] += length  # the slot that is free first
    ends.sort()
    decoded = sum(rows for rows, tokens in shapes if tokens == 1)
    assert decoded == sum(lengths) + ends[1] - ends[0]  # the last three are decoded as four

    waiting = sum(max(lengths[i : i + 4]) for i in range(0, 12, 4))
    assert sum(tokens == 1 for _, tokens in shapes) == ends[-1] < waiting


@pytest.mark.parametrize("most", [3, 1])
def test_generate_out_of_memory_halves_batch_and_goes_on(
    policy: Policy, problems: list[Problem], most: int, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = prompts_of(policy, problems, 6)
    expected = LocalEngine(policy, batch_size=4).generate(prompts, SHORT, range(6))

    def allocate(_: Any, __: Any, inputs: dict[str, Tensor]) -> None:
        row_counts.append(inputs["input_ids"].shape[0])
        if row_counts[-1] > most and len(row_counts) > 5:  # in the middle of rows
            raise torch.OutOfMemoryError("CUDA out of memory")

    row_counts: list[int] = []
    hook = policy.base.get_decoder().register_forward_pre_hook(allocate, with_kwargs=True)
    engine = LocalEngine(policy, batch_size=4, display=Display())
    completions = engine.generate(prompts, SHORT, range(6))
    hook.remove()
    assert [c.ids for c in completions] == [c.ids for c in expected]
    for mine, theirs in zip(completions, expected, strict=True):
        assert mine.log_probs == pytest.approx(theirs.log_probs, abs=1e-4)
    said = "engine: out of memory with {} rows at once; {} from now on".format
    sizes = [4, 2, 1][: 2 if most == 3 else 3]
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "memory" in line] == [said(*pair) for pair in pairwise(sizes)]


def test_generate_one_row_out_of_memory_is_an_error(policy: Policy) -> None:
    full = patch.object(StaticDecoder, "_forward", side_effect=torch.OutOfMemoryError)
    with full, pytest.raises(EngineError, match="max_new_tokens"):
        LocalEngine(policy, batch_size=2).generate([[5, 6], [7]], SHORT, range(2))


LINEAR = dict.fromkeys(["linear_num_key_heads", "linear_num_value_heads"], 2)
LINEAR |= dict.fromkeys(["linear_key_head_dim", "linear_value_head_dim"], 16)
WINDOW = {"sliding_window": 8}
FAMILIES: dict[str, dict[str, Any]] = {  # settings, by the family's name in transformers
    **{family: {} for family in ("llama", "qwen2", "qwen3", "gpt2", "phi3", "opt", "qwen3_moe")},
    **{family: {} for family in ("bloom", "gpt_neox", "falcon", "starcoder2", "olmo2")},
    "qwen2 with a window": WINDOW | {"use_sliding_window": True, "max_window_layers": 1},
    "gemma2": WINDOW | {"final_logit_softcapping": None},
    "gemma3_text": WINDOW,
    "mistral with a window": WINDOW,
    "mistral": {"sliding_window": None},
    "qwen3_next": LINEAR | {"num_hidden_layers": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "gpt_oss": WINDOW,
}

# One of each kind of cache, of positions and of masks; the others are slow tests.
KINDS = ("llama", "qwen3", "gpt2", "gemma2", "bloom", "qwen3_next", "lfm2", "gpt_oss")


def model_of(family: str, vocabulary: int) -> PreTrainedModel:
    """A tiny random model of a family, with logits far apart."""
    scale = "init_std" if family == "opt" else "initializer_range"
    fields = FAMILIES[family] | {"vocab_size": vocabulary, scale: 0.5}
    model = tiny_model(tiny_config(family.partition(" ")[0], **fields))
    model.generation_config = GenerationConfig(eos_token_id=3)
    return model


@pytest.mark.parametrize(
    "family",
    [
        *KINDS,
        *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name not in KINDS),
    ],
)
def test_generate_matches_library_for_every_model_family(policy: Policy, family: str) -> None:
    model = model_of(family, len(policy.tokenizer))
    own = dataclasses.replace(policy, model=model, lm_head=model.get_output_embeddings())

    # Ten rows of five lengths in four slots, so that slots are used again.
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(4, 30, (5, 40), generator=generator).tolist()
    prompts = [texts[0][:20] + text[: 3 + 4 * i] for i, text in enumerate(texts)]
    greedy = dataclasses.replace(GREEDY, max_new_tokens=16)
    completions = LocalEngine(own, batch_size=4).generate(prompts * 2, greedy, range(10))
    for prompt, *pair in zip(prompts, completions[:5], completions[5:], strict=True):
        written = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=16, eos_token_id=own.end_ids
        )
        for completion in pair:
            assert list(completion.ids) == written[0, len(prompt) :].tolist()


def whole_distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Of every token, also of those that are left out."""
    looked_at = 32
    while distribution(logits, sampling, looked_at)[2].any():
        looked_at *= 8
    probs, tokens, _ = distribution(logits, sampling, looked_at)
    assert ((tokens.diff() > 0) | (probs[:, 1:] == 0)).all()
    return torch.zeros_like(logits).scatter_add(-1, tokens, probs)


def plain_distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """By definition, token by token, in float64."""
    rows = []
    for row in (logits.double() / sampling.temperature).tolist():
        least = sorted(row)[-sampling.top_k] if 0 < sampling.top_k < len(row) else -torch.inf
        kept_scores = [x if x >= least else -torch.inf for x in row]
        weights = torch.tensor(kept_scores, dtype=torch.float64).softmax(0)
        kept, mass = torch.zeros_like(weights), 0.0
        for token in sorted(range(len(row)), key=lambda i: (-float(weights[i]), i)):
            if mass < sampling.top_p or sampling.top_p == 1:  # 1 is off
                kept[token] = weights[token]
            mass += float(weights[token])
        rows.append(kept / kept.sum())
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("top_k", [-1, 1, 7, 300, 1000])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.5, 0.01])
def test_distribution_top_k_p_is_as_defined(dtype: torch.dtype, top_k: int, top_p: float) -> None:
    """Peaked, flat and, in bfloat16, full of equals; more tokens than are looked at first."""
    generator = torch.Generator().manual_seed(top_k)
    scales = torch.tensor([0.01, 0.3, 1, 3, 9, 30])[:, None]
    logits = torch.randn(6, 700, generator=generator) * scales
    logits[0, ::3] = logits[0, 0]
    sampling = Sampling(1.1, top_p, top_k, 1)
    probs = whole_distribution(logits.to(dtype).double(), sampling)
    expected = plain_distribution(logits.to(dtype), sampling)
    assert ((probs > 0) == (expected > 0)).all()
    torch.testing.assert_close(probs / probs.sum(-1, keepdim=True), expected, rtol=1e-9, atol=0)


def test_distribution_that_reaches_top_p_exactly_keeps_no_further_token() -> None:
    probs, tokens, _ = distribution(torch.zeros(1, 4), Sampling(1.0, 0.5, -1, 1), 4)
    assert tokens[probs > 0].tolist() == [0, 1]


@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 1e-8, 0.1, 1.0, 3.0]), min_size=4, max_size=4), min_size=1
    ),
    st.floats(0, 1, exclude_max=True, width=32),
)
def test_invert_never_draws_zero_probability_token(rows: list[list[float]], uniform: float) -> None:
    probs = torch.tensor([[*row, 0.5, 0.0] for row in rows])
    tokens = invert(probs, torch.full((len(rows),), uniform))
    assert (probs.gather(1, tokens[:, None]) > 0).all()
    rows_drawn = zip(probs.double(), tokens, strict=True)
    below = torch.stack([p[:t].sum() / p.sum() for p, t in rows_drawn])
    assert (below <= uniform + 1e-6).all()


def test_generate_passes_cache_by_the_name_that_decoder_takes(policy: Policy) -> None:
    """transformers 5.24 calls past_key_values cache."""
    engine, decoder = LocalEngine(policy, batch_size=2), policy.base.get_decoder()
    prompts, sampling = [[5, 6, 7], [8, 9]], Sampling(1.0, 1.0, -1, 8)
    expected = engine.generate(prompts, sampling, [0, 1])
    forward = decoder.forward
    name = "cache" if "cache" in signature(forward).parameters else "past_key_values"

    def renamed(*, position_ids: Tensor, cache: Any = None, **options: Any) -> Any:
        return forward(position_ids=position_ids, **{name: cache}, **options)

    decoder.forward = renamed
    assert engine.generate(prompts, sampling, [0, 1]) == expected
