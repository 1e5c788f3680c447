"""What is read from a chat template, by the families' styles, and what follows from it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chat_templates import TEMPLATES, tokenizer_of
from conftest import DEMO
from paint.models.conventions import Conventions, read_conventions, reads_clock
from paint.models.policy import Policy, load_policy
from strictgrade.thoughts import ThoughtTags, split_thought

DAY = "2024-02-03"
THINK = ThoughtTags("<think>", "</think>")
CHANNEL = ThoughtTags(
    "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
)
SEED = ThoughtTags("<seed:think>", "</seed:think>")


@pytest.fixture(scope="module")
def demo() -> Policy:
    return load_policy(DEMO, seed=0)


def read(demo: Policy, name: str, *ends: str) -> Conventions:
    """The conventions of a template's model that declares these end tokens."""
    tokenizer = tokenizer_of(name)
    declared = [tokenizer.convert_tokens_to_ids(end) for end in ends or ("<|endoftext|>",)]
    return read_conventions(demo.base, tokenizer, declared, DAY)


def with_template(demo: Policy, name: str, **changes: Any) -> Policy:
    return replace(demo, tokenizer=tokenizer_of(name), **changes)


ENDS = {
    "CHATML": "<|im_end|>",
    "LLAMA3": "<|eot_id|>",
    "GEMMA": "<end_of_turn>",
    "PHI3": "<|end|>",
    "MISTRAL": "</s>",
    "R1": "<|end_of_sentence|>",
    "GPT_OSS": "<|return|>",
    "QWEN3": "<|im_end|>",
    "DEEPSEEK_V3": "<|end_of_sentence|>",
    "COHERE": "<|END_OF_TURN|>",
    "NO_LAST_END": "<|im_end|>",
    "SINGLE": "<|im_end|>",
}


@pytest.mark.parametrize("name", ENDS)
def test_conventions_end_of_turn_is_the_templates_and_an_end_id(demo: Policy, name: str) -> None:
    found = read(demo, name)
    assert found.end_of_turn.endswith(ENDS[name])
    assert set(found.end_tokens) == {"<|endoftext|>", ENDS[name]}
    assert found.end_of_turn_ids[-1] in found.end_ids
    assert f"end of turn {found.end_of_turn}," in found.line()


@pytest.mark.parametrize("name", ENDS)
def test_solution_ids_end_as_the_template_ends_a_turn(demo: Policy, name: str) -> None:
    policy = with_template(demo, name)
    ids = policy.solution_ids("It is 5.")
    assert policy.decode(ids, special=True) == "It is 5." + policy.conventions.end_of_turn
    assert ids[-1] in policy.end_ids
    assert not set(ids[:-1]) & set(policy.end_ids)


def test_conventions_declared_end_wins_over_other_marks_of_a_turn(demo: Policy) -> None:
    assert read(demo, "COHERE", "<|END_RESPONSE|>").end_of_turn == "<|END_RESPONSE|>"
    # In GLM's style a turn ends where the next one begins.
    assert read(demo, "NOTHING", "<|endoftext|>", "<|user|>").end_of_turn == "<|user|>"


def test_conventions_template_without_end_of_turn_keeps_the_declared_end(demo: Policy) -> None:
    for name in ("NOTHING", "ALWAYS_PROMPTS"):
        found = read(demo, name)
        assert (found.end_of_turn, found.end_of_turn_ids) == ("", ())
        assert found.end_tokens == ("<|endoftext|>",)
    policy = with_template(demo, "NOTHING")
    assert policy.tokenizer.eos_token_id == policy.solution_ids("5")[-1]


def test_conventions_end_of_turn_in_words_is_no_end_id_and_is_reported(demo: Policy) -> None:
    found = read(demo, "WORDS")
    assert found.end_of_turn == " END OF TURN"
    assert found.end_tokens == ("<|endoftext|>",)
    [warning] = found.warnings(thinking=True)
    assert "' END OF TURN" in warning
    policy = with_template(demo, "WORDS")
    ids = policy.solution_ids("5")
    assert policy.decode(ids[:-1]) == "5 END OF TURN"
    assert ids[-1] == policy.tokenizer.eos_token_id


def test_conventions_token_that_ends_a_thought_is_no_end_id(demo: Policy) -> None:
    tokenizer = tokenizer_of("GPT_OSS")
    tokenizer.chat_template = str(tokenizer.chat_template).replace("<|return|>", "<|end|>")
    declared = [tokenizer.eos_token_id]
    found = read_conventions(demo.base, tokenizer, declared, DAY)
    assert found.end_of_turn == "<|end|>"
    assert found.end_tokens == ("<|endoftext|>",)


@pytest.mark.parametrize(
    ("name", "tags", "switches", "can_switch", "opened"),
    [
        ("QWEN3", THINK, ("enable_thinking",), True, ("", "")),
        ("DEEPSEEK_V3", THINK, ("thinking",), True, ("", "<think>")),
        ("SEED", SEED, ("thinking_budget",), True, ("", "")),
        ("NO_THINKING", ThoughtTags("[THINK]", "[/THINK]"), ("no_thinking",), True, ("", "")),
        ("R1", THINK, (), False, ("<think>\n", "<think>\n")),
        ("QWEN3_THINKING", THINK, (), False, ("<think>\n", "<think>\n")),
        ("GPT_OSS", CHANNEL, (), False, ("", "")),
        ("CHATML", THINK, (), False, ("", "")),  # the vocabulary has the tags
    ],
)
def test_conventions_thinking_is_found_by_rendering(
    demo: Policy,
    name: str,
    tags: ThoughtTags,
    switches: tuple[str, ...],
    can_switch: bool,
    opened: tuple[str, str],
) -> None:
    found = read(demo, name)
    assert found.tags == (tags,)
    assert found.switches == switches
    assert found.can_switch_thinking == can_switch
    assert found.opened == opened
    assert bool(found.warnings(thinking=False)) == bool(opened[0])
    assert ("cannot be switched off" in found.line()) == bool(opened[0])
    assert not found.warnings(thinking=True)


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
    assert not reads_clock(tokenizer_of("CHATML"))
    assert with_template(demo, "CHATML", day=DAY).conventions.date is None


@pytest.mark.parametrize("name", TEMPLATES)
def test_conventions_of_every_template_are_json_and_one_line(demo: Policy, name: str) -> None:
    found = read(demo, name)
    assert json.loads(json.dumps(found.table())) == found.table()
    assert "\n" not in found.line()
    assert found.linear_layers == (
        *("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"),
    )


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
