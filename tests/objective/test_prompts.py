"""Prompts of the student and the teacher."""

from typing import Any, get_args

from paint.objective.messages import (
    INSTRUCTION,
    Wording,
    announces_complete,
    rationale_messages,
    student_messages,
    teacher_messages,
)


def test_messages_match_paper() -> None:
    reason = "Please reason step by step, and put your final answer within \\boxed{}."
    assert reason == INSTRUCTION
    asked = f"Problem: What is 1+1?\n\n{INSTRUCTION}"
    assert student_messages("What is 1+1?") == [{"role": "user", "content": asked}]
    for complete, opening in (
        (False, "a part of reference solution"),
        (True, "a reference solution"),
    ):
        shown = (
            f"Problem: What is 1+1?\n\nHere is {opening} to this problem:\n"
            "=== Reference Solution Begin ===\nAdd. ...(omitted)...\n"
            "=== Reference Solution End ===\n\nAfter reading the reference solution above, "
            f"derive the same final answer in your own words.\n\n{INSTRUCTION}"
        )
        found = teacher_messages("What is 1+1?", "Add. ...(omitted)...", complete=complete)
        assert found == [{"role": "user", "content": shown}]


def test_announces_complete_follows_wording() -> None:
    announced = {
        wording: [announces_complete(wording, is_complete=whole) for whole in (True, False)]
        for wording in get_args(Wording)
    }
    assert announced == {"as_shown": [True, False], "complete": [True] * 2, "part": [False] * 2}


def test_teacher_messages_with_rationale_are_conversation() -> None:
    [request] = rationale_messages("What is 1+1?", "Add.", complete=False)
    rest: dict[str, Any] = {"complete": False, "rationale": "It adds."}
    first, reply, last = teacher_messages("What is 1+1?", "Add.", **rest)
    assert (first, INSTRUCTION in request["content"]) == (request, False)
    assert reply == {"role": "assistant", "content": "It adds."}
    asked = f"Now derive the same final answer in your own words.\n\n{INSTRUCTION}"
    assert last == {"role": "user", "content": asked}
