"""What a policy makes of its chat template's conventions, by the families' styles."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chat_templates import tokenizer_of
from conftest import DEMO
from paint.core.demo_files import MODEL
from paint.models.policy import Policy, load_policy
from strictgrade.thoughts import split_thought

DAY = "2024-02-03"


@pytest.fixture(scope="module")
def demo() -> Policy:
    return load_policy(DEMO, seed=0)


def with_template(demo: Policy, name: str, **changes: Any) -> Policy:
    return replace(demo, tokenizer=tokenizer_of(name, MODEL), **changes)


@pytest.mark.parametrize("name", ["CHATML", "MISTRAL", "R1", "GPT_OSS", "COHERE", "NO_LAST_END"])
def test_solution_ids_end_as_the_template_ends_a_turn(demo: Policy, name: str) -> None:
    policy = with_template(demo, name)
    ids = policy.solution_ids("It is 5.")
    assert policy.decode(ids, special=True) == "It is 5." + policy.conventions.end_of_turn
    assert ids[-1] in policy.end_ids
    assert not set(ids[:-1]) & set(policy.end_ids)


def test_solution_ids_without_an_end_token_end_by_the_tokenizers(demo: Policy) -> None:
    for name, text in (("NOTHING", "5"), ("WORDS", "5 END OF TURN")):
        policy = with_template(demo, name)
        ids = policy.solution_ids("5")
        assert policy.decode(ids[:-1]) == text
        assert ids[-1] == policy.tokenizer.eos_token_id


def test_student_prompt_switches_thinking_by_any_variable(demo: Policy) -> None:
    ends = {
        "DEEPSEEK_V3": ("</think>", "<think>"),
        "SEED": ("<seed:think>\n</seed:think>", "<|im_start|>assistant\n"),
        "NO_THINKING": ("[THINK]\n[/THINK]\n", "<|im_start|>assistant\n"),
    }
    for name, both in ends.items():
        policy = with_template(demo, name)
        for thinking, end in zip((False, True), both, strict=True):
            prompt = policy.student_prompt("Add 2 and 3.", thinking=thinking)
            text = policy.decode(prompt, special=True)
            assert text.endswith(end)
            assert "True" not in text


@pytest.mark.parametrize(
    ("name", "thinking", "before"),
    [
        ("R1", False, "\n</think>\n\n"),
        ("QWEN3_THINKING", False, "\n</think>\n\n"),
        ("QWEN3_THINKING", True, "\n</think>\n\n"),
        ("DEEPSEEK_V3", True, "\n</think>\n\n"),
        ("DEEPSEEK_V3", False, ""),
        ("GPT_OSS", False, "<|channel|>final<|message|>"),
        ("COHERE", False, "<|START_RESPONSE|>"),
        ("QWEN3", False, ""),
        ("QWEN3", True, ""),
        ("CHATML", False, ""),
        ("MISTRAL", False, ""),
    ],
)
def test_reference_ids_close_the_thought_that_the_prompt_opens(
    demo: Policy, name: str, thinking: bool, before: str
) -> None:
    policy = with_template(demo, name, student_thinking=thinking)
    ids = policy.reference_ids("It is \\boxed{5}.")
    turn = policy.conventions.end_of_turn
    assert policy.decode(ids, special=True) == f"{before}It is \\boxed{{5}}.{turn}"
    prompt = policy.student_prompt("Add 2 and 3.")
    text = policy.transcript(prompt, ids)
    answer = split_thought(text, policy.conventions.tags).answer
    assert answer is not None
    assert "It is \\boxed{5}." in answer


def test_reference_ids_solution_with_its_own_thought_continues_the_prompts(demo: Policy) -> None:
    policy = with_template(demo, "R1")
    end = policy.conventions.end_of_turn
    for solution in ("<think>\nWe add.\n</think>\n\n5", "We add.\n</think>\n\n5"):
        ids = policy.reference_ids(solution)
        assert policy.decode(ids, special=True) == f"We add.\n</think>\n\n5{end}"


def test_transcript_begins_with_any_thought_that_the_prompt_opens(demo: Policy) -> None:
    for name in ("R1", "DEEPSEEK_V3"):
        policy = with_template(demo, name)
        prompt = policy.student_prompt("Add 2 and 3.", thinking=True)
        text = policy.transcript(prompt, policy.tokenizer.encode("It is \\boxed{5}"))
        assert text == "<think>\nIt is \\boxed{5}"
        assert split_thought(text, policy.conventions.tags).answer is None


def test_template_reads_the_clock_of_the_policy(demo: Policy) -> None:
    for name, text in (("LLAMA3", "Today: 03 Feb 2024"), ("GPT_OSS", "Date: 2024-02-03")):
        policy = with_template(demo, name, day=DAY)
        assert policy.conventions.date == DAY
        assert f"date fixed at {DAY}" in policy.conventions.line()
        for prompt in (
            policy.student_prompt("Add 2 and 3."),
            policy.teacher_prompt("Add 2 and 3.", "It is 5.", complete=True),
        ):
            assert text in policy.decode(prompt, special=True)
    assert with_template(demo, "CHATML", day=DAY).conventions.date is None


def test_load_policy_base_model_ends_by_its_templates_token(demo_copy: Path) -> None:
    """As Qwen's base models: they declare <|endoftext|>, and the template writes <|im_end|>."""
    end: dict[str, Any] = {"eos_token_id": 0}
    changes = end, end, {"eos_token": "<|endoftext|>"}
    files = "config.json", "generation_config.json", "tokenizer_config.json"
    for name, change in zip(files, changes, strict=True):
        table = json.loads((demo_copy / name).read_text())
        (demo_copy / name).write_text(json.dumps({**table, **change}))
    policy = load_policy(replace(DEMO, path=str(demo_copy)), seed=0)
    assert policy.conventions.end_tokens == ("<|endoftext|>", "<|im_end|>")
    assert policy.tokenizer.convert_tokens_to_ids("<|im_end|>") in policy.end_ids
