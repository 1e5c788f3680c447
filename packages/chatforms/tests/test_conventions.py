"""What is read from a chat template, by the families' styles, and what follows from it."""

import json

import pytest

from chat_templates import TEMPLATES, tokenizer_of
from chatforms.conventions import Conventions, read_conventions, reads_clock
from strictgrade.thoughts import ThoughtTags

DAY = "2024-02-03"
THINK = ThoughtTags("<think>", "</think>")
CHANNEL = ThoughtTags(
    "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
)
SEED = ThoughtTags("<seed:think>", "</seed:think>")


def read(name: str, *ends: str) -> Conventions:
    """The conventions of a template's model that declares these end tokens."""
    tokenizer = tokenizer_of(name)
    declared = [tokenizer.convert_tokens_to_ids(end) for end in ends or ("<|endoftext|>",)]
    return read_conventions(tokenizer, declared, DAY)


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
def test_conventions_end_of_turn_is_the_templates_and_an_end_id(name: str) -> None:
    found = read(name)
    assert found.end_of_turn.endswith(ENDS[name])
    assert set(found.end_tokens) == {"<|endoftext|>", ENDS[name]}
    assert found.end_of_turn_ids[-1] in found.end_ids
    assert f"end of turn {found.end_of_turn}," in found.line()


def test_conventions_declared_end_wins_over_other_marks_of_a_turn() -> None:
    assert read("COHERE", "<|END_RESPONSE|>").end_of_turn == "<|END_RESPONSE|>"
    # In GLM's style a turn ends where the next one begins.
    assert read("NOTHING", "<|endoftext|>", "<|user|>").end_of_turn == "<|user|>"


def test_conventions_template_without_end_of_turn_keeps_the_declared_end() -> None:
    for name in ("NOTHING", "ALWAYS_PROMPTS"):
        found = read(name)
        assert (found.end_of_turn, found.end_of_turn_ids) == ("", ())
        assert found.end_tokens == ("<|endoftext|>",)


def test_conventions_end_of_turn_in_words_is_no_end_id_and_is_reported() -> None:
    found = read("WORDS")
    assert found.end_of_turn == " END OF TURN"
    assert found.end_tokens == ("<|endoftext|>",)
    [warning] = found.warnings(thinking=True)
    assert "' END OF TURN" in warning


def test_conventions_token_that_ends_a_thought_is_no_end_id() -> None:
    tokenizer = tokenizer_of("GPT_OSS")
    tokenizer.chat_template = str(tokenizer.chat_template).replace("<|return|>", "<|end|>")
    declared = [tokenizer.eos_token_id]
    found = read_conventions(tokenizer, declared, DAY)
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
    name: str,
    tags: ThoughtTags,
    switches: tuple[str, ...],
    can_switch: bool,
    opened: tuple[str, str],
) -> None:
    found = read(name)
    assert found.tags == (tags,)
    assert found.switches == switches
    assert found.can_switch_thinking == can_switch
    assert found.opened == opened
    assert bool(found.warnings(thinking=False)) == bool(opened[0])
    assert ("cannot be switched off" in found.line()) == bool(opened[0])
    assert not found.warnings(thinking=True)


def test_conventions_date_is_that_of_a_template_that_reads_the_clock() -> None:
    for name in ("LLAMA3", "GPT_OSS"):
        assert reads_clock(tokenizer_of(name))
        assert read(name).date == DAY
        assert f"date fixed at {DAY}" in read(name).line()
    assert not reads_clock(tokenizer_of("CHATML"))
    assert read("CHATML").date is None


@pytest.mark.parametrize("name", TEMPLATES)
def test_conventions_of_every_template_are_json_and_one_line(name: str) -> None:
    found = read(name)
    assert json.loads(json.dumps(found.table())) == found.table()
    assert "\n" not in found.line()
