"""Prompts of the student and the teacher."""

from typing import Any, get_args

from paint.objective.prompts import (
    INSTRUCTION,
    Wording,
    announces_complete,
    rationale_messages,
    student_messages,
    teacher_messages,
)


def test_messages_match_paper() -> None:
    assert INSTRUCTION == (
        "Please reason step by step, and put your final answer within \\boxed{}."
    )
    assert student_messages("What is 1+1?") == [
        {"role": "user", "content": f"Problem: What is 1+1?\n\n{INSTRUCTION}"}
    ]
    for complete, opening in (
        (False, "Here is a part of reference solution"),
        (True, "Here is a reference solution"),
    ):
        assert teacher_messages("What is 1+1?", "Add. ...(omitted)...", complete=complete) == [
            {
                "role": "user",
                "content": "Problem: What is 1+1?\n\n"
                f"{opening} to this problem:\n"
                "=== Reference Solution Begin ===\n"
                "Add. ...(omitted)...\n"
                "=== Reference Solution End ===\n\n"
                "After reading the reference solution above, "
                "derive the same final answer in your own words.\n\n"
                f"{INSTRUCTION}",
            }
        ]


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
    assert last == {
        "role": "user",
        "content": f"Now derive the same final answer in your own words.\n\n{INSTRUCTION}",
    }
