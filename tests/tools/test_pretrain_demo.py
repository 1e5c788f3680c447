"""Pretraining of the embedded model: its examples, and that the shipped files come from it."""

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from transformers import Qwen3ForCausalLM

import pretrain_demo
from chatforms.call_styles import call_style
from chatforms.spellings import ToolCall
from chatforms.tool_calls import read_reply
from demo_problems import NEW_RULES, RULES, VALUES, random_chains
from demo_problems import visible_rules as rules_in
from paint.core.demo_files import MODEL
from paint.models.policy import Policy
from pretrain_demo import (
    LAST,
    OTHERS,
    OWN,
    RULES_FIRST,
    SLIP_RATE,
    TOOLS,
    WORDS,
    Example,
    build_tokenizer,
    grown,
    pretraining_example,
    prompt_text,
    write_problems,
    wrong_rates,
)
from runs import rows_of


@cache
def examples() -> list[Example]:
    """Examples of the last stage."""
    rng = random.Random(7)
    return [pretraining_example(rng) for _ in range(8000)]


def problem_of(example: Example) -> str:
    [problem] = re.findall(r"Start at .* modulo \$100\$\.", example.messages[0]["content"])
    return str(problem)


def calls_in(example: Example) -> list[str]:
    """The words that earlier turns looked up."""
    words = []
    for message in example.messages:
        for call in message.get("tool_calls", []):
            assert call["function"]["name"] == "look_up"
            words.append(call["function"]["arguments"]["word"])
    return words


def call_of(example: Example) -> str | None:
    """The word that the completion looks up."""
    if "<tool_call>" not in example.text:
        return None
    found = re.fullmatch(r"<tool_call>(.*)</tool_call>", example.text)
    assert found is not None
    call = json.loads(found[1])
    assert call.keys() == {"name", "arguments"}
    assert call["name"] == "look_up"
    assert call["arguments"].keys() == {"word"}
    return str(call["arguments"]["word"])


def kind_of(example: Example) -> str:
    """What the prompt shows, by its text."""
    if example.tools:
        return "tools"
    content = example.messages[0]["content"]
    if len(example.messages) == 3:
        return "two turns"
    if "Explain why" in content:
        return "rationale"
    if "=== Reference Solution Begin ===\nThe answer is" in content:
        return "answer"
    return "reference" if "Reference Solution" in content else "alone"


def is_uniform(values: Iterable[int]) -> bool:
    """Whether VALUES occur equally often: the chi-square test at one in a thousand."""
    counts = Counter(values)
    assert set(counts) <= set(VALUES)
    expected = counts.total() / len(VALUES)
    assert expected > 40
    return sum((counts[value] - expected) ** 2 for value in VALUES) / expected < 16.27


@pytest.mark.parametrize("kind", ["alone", "reference", "answer", "rationale", "tools"])
def test_rules_that_no_text_states_are_guesses_equally_often_of_each_value(kind: str) -> None:
    guesses = []
    for example in examples():
        if kind_of(example) == kind:
            shown = "\n".join(message["content"] for message in example.messages)
            stated = rules_in(shown)
            found = rules_in(example.text)
            guesses += [value for word, value in found.items() if word not in stated]
    assert is_uniform(guesses)


def test_tool_calls_are_written_as_the_chat_template_shows_them(policy: Policy) -> None:
    style = call_style(policy.tokenizer)
    written = shown = 0
    for example in examples()[:2000]:
        prompt = prompt_text(policy.tokenizer, example.messages, tools=example.tools)
        assert ("# Tools" in prompt) == bool(example.tools)
        word = call_of(example)
        if word is not None:
            [call] = read_reply(style, example.text, TOOLS).calls
            assert call == ToolCall("look_up", {"word": word})
            written += 1
        for earlier in calls_in(example):
            call_text = {"name": "look_up", "arguments": {"word": earlier}}
            assert f"\n<tool_call>{json.dumps(call_text)}</tool_call><|im_end|>" in prompt
            shown += 1
    assert min(written, shown) > 20


@pytest.mark.parametrize("stage", [RULES_FIRST, grown(0.0), OTHERS, OWN, LAST], ids=range(5))
def test_problems_of_examples_are_never_held_out(stage: pretrain_demo.Stage) -> None:
    rng = random.Random(11)
    found = [problem_of(pretraining_example(rng, stage)) for _ in range(1000)]
    found += map(problem_of, examples())
    assert not any(hashlib.sha256(problem.encode()).digest()[0] % 10 == 0 for problem in found)


def test_write_problems_reproduces_shipped_files_and_disjoint_split(tmp_path: Path) -> None:
    write_problems(tmp_path)
    problems = {}
    for name, count, rules in (
        ("train.jsonl", 1000, RULES),
        ("held_out.jsonl", 200, RULES),
        ("held_out_new_rules.jsonl", 200, NEW_RULES),
    ):
        assert (tmp_path / name).read_text() == (MODEL / name).read_text()
        rows = rows_of(MODEL / name)
        problems[name] = {row["problem"] for row in rows}
        assert len(problems[name]) == len(rows) == count
        assert [row["id"] for row in rows] == [f"chain-{i}" for i in range(count)]
        stated: dict[str, int] = {}
        for row in rows:
            stated |= rules_in(row["solution"])
            assert row["solution"].endswith(f"is $\\boxed{{{row['answer']}}}$.")
        assert stated == rules
    assert not problems["train.jsonl"] & problems["held_out.jsonl"]
    assert not problems["train.jsonl"] & problems["held_out_new_rules.jsonl"]


def test_build_tokenizer_reproduces_shipped_tokenizer(policy: Policy) -> None:
    made = build_tokenizer()
    text = "<|im_start|>user\nStart at $47$<|im_end|>\n<think>\n47+38-zor and ünknown words</think>"
    assert made.get_vocab() == policy.tokenizer.get_vocab()
    assert made(text)["input_ids"] == policy.tokenizer(text)["input_ids"]
    assert policy.decode(made(text)["input_ids"], special=True) == text


def test_demo_model_knows_rules_and_copies_steps_by_what_the_prompt_states_alone() -> None:
    chains = random_chains(60, WORDS, seed=1, held_out=True)
    model = Qwen3ForCausalLM.from_pretrained(MODEL)
    found = wrong_rates(model, build_tokenizer(), chains)
    for view in ("alone", "hidden", "other", "answer"):
        # A guess is wrong three times in four.
        assert found[f"{view} rule"] == pytest.approx(0.75, abs=0.03), view
    assert found["alone step"] == pytest.approx(SLIP_RATE, abs=0.004)
    for view in ("alone", "answer", "hidden"):
        assert found[f"{view} step"] < 0.015, view
    # The same operations from another number are the worst of other solutions.
    assert found["other step"] < 0.03
    assert found["told rule"] < 0.01
    assert found["invented rule"] < 0.01
    assert found["told step"] < min(found["alone step"], 0.01)
    assert found["invented step"] < 0.1  # read, since nothing else can tell it
