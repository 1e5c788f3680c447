"""The two views in Qwen3's chat format: what stands before the completion, token by token.

The template is Qwen3's as TRL has it, and all that a template writes gets the ids that Qwen3's
tokenizer gives it.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from conftest import DEMO
from paint.models.policy import Policy, load_policy
from paint.objective.messages import rationale_messages, student_messages, teacher_messages

NEWLINE, PARAGRAPH, USER, ASSISTANT = 198, 271, 872, 77091
START, END, THINK, END_THINK = 151644, 151645, 151667, 151668
CLOSED = [THINK, PARAGRAPH, END_THINK, PARAGRAPH]
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"

PROBLEM, CONTEXT = "What is $6 \\cdot 7$?", "Six sevens are ...(omitted)..."
STUDENT = r"""<|im_start|>user
Problem: What is $6 \cdot 7$?

Please reason step by step, and put your final answer within \boxed{}.<|im_end|>
<|im_start|>assistant
"""
Z = """Here is a part of reference solution to this problem:
=== Reference Solution Begin ===
Six sevens are ...(omitted)...
=== Reference Solution End ===

After reading the reference solution above, derive the same final answer in your own words.

"""
TEACHER = STUDENT.replace("Please reason", Z + "Please reason")

PAIRS = [(student, teacher) for student in (False, True) for teacher in (False, True)]


def template(name: str) -> str:
    """A chat template as TRL has it."""
    trl = pytest.importorskip("trl", reason="the templates of Qwen's models are read from TRL")
    return (Path(trl.__file__).parent / "chat_templates" / name).read_text()


def qwen3_tokenizer(chat_template: str) -> PreTrainedTokenizerFast:
    """Qwen3's bytes, its control tokens, and of its words those that a template writes."""
    newline = "Ċ"  # how byte-level vocabularies spell it
    vocabulary = {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {newline * 2: PARAGRAPH, "us": 355, "er": 261, "user": USER}
    vocabulary |= {"st": 267, "an": 276, "as": 300, "ist": 380, "ass": 395, "ant": 517}
    vocabulary |= {"assist": 50966, "assistant": ASSISTANT}
    merges = ["Ċ Ċ", "e r", "s t", "a n", "a s", "u s", "i st", "as s", "an t", "us er"]
    merges += ["ass ist", "assist ant"]

    special = {"<|endoftext|>": 151643, "<|im_start|>": START, "<|im_end|>": END}
    tags = {"<think>": THINK, "</think>": END_THINK}
    pairs = [(first, second) for first, second in map(str.split, merges)]
    tokenizer = Tokenizer(models.BPE(vocabulary | special | tags, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in tags])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=chat_template,
    )


@pytest.fixture(scope="module")
def qwen3() -> Policy:
    """A policy that reads as Qwen3 does; no test asks its model."""
    tokenizer = qwen3_tokenizer(template("qwen3.jinja"))
    return replace(load_policy(DEMO, seed=0), tokenizer=tokenizer)


def in_modes(policy: Policy, modes: tuple[bool, bool], chat_template: str | None = None) -> Policy:
    """The policy with these thinking modes of student and teacher, and perhaps another template."""
    tokenizer = qwen3_tokenizer(chat_template) if chat_template else policy.tokenizer
    student, teacher = modes
    return replace(policy, tokenizer=tokenizer, student_thinking=student, teacher_thinking=teacher)


def turn(policy: Policy, message: str) -> list[int]:
    """A user's turn and the opening of the assistant's, as Qwen3 tokenizes them."""
    text = policy.tokenizer.encode(message, add_special_tokens=False)
    return [START, USER, NEWLINE, *text, END, NEWLINE, START, ASSISTANT, NEWLINE]


@pytest.mark.parametrize("modes", PAIRS)
def test_prompts_match_expected_tokens_and_text(qwen3: Policy, modes: tuple[bool, bool]) -> None:
    policy = in_modes(qwen3, modes)
    shown = policy.teacher_prompt(PROBLEM, CONTEXT, complete=False)
    views = [
        (policy.student_prompt(PROBLEM), STUDENT, student_messages(PROBLEM)),
        (shown, TEACHER, teacher_messages(PROBLEM, CONTEXT, complete=False)),
    ]
    for (ids, text, [message]), thinking in zip(views, modes, strict=True):
        closed = [] if thinking else CLOSED
        assert ids == [*turn(policy, message["content"]), *closed]
        assert policy.decode(ids, special=True) == text + ("" if thinking else EMPTY_THOUGHT)


def test_teacher_prompt_rationale_is_a_turn_without_thinking(qwen3: Policy) -> None:
    [asked] = rationale_messages(PROBLEM, CONTEXT, complete=False)
    reason_first = "Now derive the same final answer in your own words.\n\nPlease reason"
    for modes in PAIRS:
        policy = in_modes(qwen3, modes)
        request = policy.rationale_prompt(PROBLEM, CONTEXT, complete=False)
        assert request == [*turn(policy, asked["content"]), *CLOSED]

        prompt = policy.teacher_prompt(PROBLEM, CONTEXT, complete=False, rationale="It is 42.")
        text = policy.decode(prompt, special=True)
        reply = "<|im_start|>assistant\nIt is 42.<|im_end|>\n"
        assert f"{reply}<|im_start|>user\n{reason_first}" in text
        tail = "" if policy.teacher_thinking else EMPTY_THOUGHT
        assert text.endswith("<|im_start|>assistant\n" + tail)


@pytest.mark.parametrize(
    ("name", "student_alone", "teacher_alone"),
    [
        ("qwen3.jinja", EMPTY_THOUGHT, ""),
        ("qwen3_5_think.jinja", "\n\n</think>\n\n", "\n"),  # both views open a thought
        ("qwen3_instruct_2507.jinja", "", ""),  # it has no thinking mode
    ],
)
def test_template_difference_finds_text_in_one_view(
    qwen3: Policy, name: str, student_alone: str, teacher_alone: str
) -> None:
    for modes in PAIRS:
        found = in_modes(qwen3, modes, template(name)).template_difference()
        alone = [student_alone, teacher_alone] if modes[0] != modes[1] else ["", ""]
        assert list(found) == (alone[::-1] if modes[0] else alone)
