"""Thought and answer of a completion, in every spelling that models use."""

import pytest

from strictgrade import answer_text, chosen_letter, reason_for, verify
from strictgrade.thoughts import ThoughtTags, open_thought, split_thought

PAIRS = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("<|channel|>commentary<|message|>", "<|channel|>final <|constrain|>json<|message|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<reasoning>", "</reasoning>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<ponder>", "</ponder>"),
    ("<reflection>", "</reflection>"),
    ("<think_never_used_51bce0c7>", "</think_never_used_51bce0c7>"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|think|>", "<|/think|>"),
    ("<longcat_think>", "</longcat_think>"),
    ("[BEGIN_THINK]", "[END_THINK]"),
    ("<\uff5cthink\uff5c>", "</think>"),
    ('<thinking effort="high">', "</thinking>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<Scratchpad>", "</Scratchpad>"),
]


@pytest.mark.parametrize(("opening", "closing"), PAIRS)
def test_open_thought_has_no_answer(opening: str, closing: str) -> None:
    cut = f"{opening}maybe \\boxed{{5}}, wait"
    assert split_thought(cut) == (cut, None)
    assert open_thought(f"Yes. {cut}") == cut
    complete = f"{cut}{closing}It is \\boxed{{4}}."
    assert split_thought(complete) == (f"{cut}{closing}", "It is \\boxed{4}.")
    empty = f"{cut}{closing}I cannot tell."
    reasons = [reason_for(text, "5") for text in (cut, complete, empty)]
    assert reasons == ["unclosed thought", "wrong", "no box"]
    assert verify(complete, "4")
    letter = f"{opening}The answer is B"
    assert chosen_letter(letter) is None
    assert chosen_letter(f"{letter}{closing}The answer is C") == "C"


def test_split_thought_another_thought_after_the_answer_is_open() -> None:
    assert split_thought("[THINK]a[/THINK] \\boxed{2} [THINK] hm").answer is None
    assert split_thought("<think>a[/THINK] \\boxed{2}").answer is None  # of another spelling
    assert split_thought("<think>[THINK]a[/THINK]</think> 2").answer == " 2"
    channels = "<|channel|>analysis<|message|>a<|end|><|start|>assistant"
    assert split_thought(f"{channels}<|channel|>analysis<|message|>\\boxed{{2}}").answer is None
    assert split_thought(f"{channels}<|channel|>final<|message|>2").answer == "2"


@pytest.mark.parametrize(
    "text",
    [
        "5<|end|>",
        "$a<b$ and I think $c>d$",
        "$a<think$ and $b>c$",
        "[Reasoning] We add. [Answer] 5",
        "I [think](x) so; <no_think> 5",
        "<analyst> 5 </analyst>",
    ],
)
def test_split_thought_other_text_is_no_thought(text: str) -> None:
    assert split_thought(text) == ("", text)


def test_split_thought_takes_a_models_own_tags() -> None:
    tags = [ThoughtTags("<muse>", "</muse>"), ThoughtTags("Let me see:", "My answer:")]
    for opening, closing in (("<muse>", "</muse>"), ("Let me see:", "My answer:")):
        cut = f"{opening} \\boxed{{5}}"
        assert split_thought(cut).answer == cut
        assert split_thought(cut, tags).answer is None
        assert split_thought(f"{cut} {closing} 4", tags).answer == " 4"
        assert (answer_text(cut, tags), answer_text(cut)) == (None, "5")
    assert split_thought("My answer: 4", tags).answer == "My answer: 4"


def test_split_thought_of_a_text_without_angle_brackets_searches_for_no_spelling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strictgrade.thoughts._SPELLINGS", None)
    assert split_thought("[THINK]a[/THINK]b") == ("[THINK]a[/THINK]", "b")
    own = [ThoughtTags("{in}", "{/in}")]
    assert split_thought("{in}a{/in}b", own) == ("{in}a{/in}", "b")
    with pytest.raises(TypeError):
        split_thought("a < b")
