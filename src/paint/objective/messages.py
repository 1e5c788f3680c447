"""Prompts of the student and the teacher, as chat messages.

    problem -> student_messages;   problem, masked or complete solution -> teacher_messages

Source: figure 'Prompt views'. The student's prompt is the one used at deployment; the teacher's
adds a reference solution. A reason-first teacher first writes a rationale (rationale_messages).
"""

from typing import Literal

Wording = Literal["as_shown", "complete", "part"]

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


def announces_complete(wording: Wording, *, is_complete: bool) -> bool:
    """Whether the teacher's prompt says "a reference solution" rather than "a part of" one."""
    # "complete" always says so and "part" never does: then two prompts differ only in the mask.
    return wording == "complete" or (wording == "as_shown" and is_complete)


def student_messages(problem: str) -> list[dict[str, str]]:
    """Deployment prompt: the problem and the instruction (paper: figure 'Prompt views')."""
    return [{"role": "user", "content": f"Problem: {problem}\n\n{INSTRUCTION}"}]


def teacher_messages(
    problem: str, context: str, *, complete: bool, rationale: str | None = None
) -> list[dict[str, str]]:
    """Privileged prompt: the problem, a masked or complete solution, and the instruction.

    complete: the solution is announced as such. With a rationale, the prompt is a conversation: the
    request of ``rationale_messages``, the rationale as reply, and the instruction (paper:
    'reason-first teachers'; the wording is ours).
    """
    if rationale is None:
        reference = _reference(problem, context, complete)
        request = (
            "After reading the reference solution above, "
            "derive the same final answer in your own words."
        )
        return [{"role": "user", "content": f"{reference}{request}\n\n{INSTRUCTION}"}]
    request = "Now derive the same final answer in your own words."
    return [
        *rationale_messages(problem, context, complete=complete),
        {"role": "assistant", "content": rationale},
        {"role": "user", "content": f"{request}\n\n{INSTRUCTION}"},
    ]


def rationale_messages(problem: str, context: str, *, complete: bool) -> list[dict[str, str]]:
    """Prompt for the rationale that a reason-first teacher writes (the wording is ours)."""
    request = (
        "Explain why the reference solution above works: "
        "its key ideas, and what must follow from them."
    )
    return [{"role": "user", "content": f"{_reference(problem, context, complete)}{request}"}]


def _reference(problem: str, context: str, complete: bool) -> str:
    opening = "Here is a reference solution" if complete else "Here is a part of reference solution"
    return (
        f"Problem: {problem}\n\n"
        f"{opening} to this problem:\n"
        f"=== Reference Solution Begin ===\n{context}\n=== Reference Solution End ===\n\n"
    )
