"""Errors of chatforms are paint's wherever paint calls it."""

import pytest

from chatforms import rendering
from chatforms.errors import ChatFormError, MessageError, TemplateLimitError, ToolError
from paint.config.schema import PromptsConfig
from paint.core.errors import ConfigError, PaintError
from paint.data.problems import Problem
from paint.models.model_errors import PolicyError, PromptError, chat_errors
from paint.models.policy import Policy
from paint.models.prompts import student_chat

FAULT, ADVICE = "it leaves out the system turn", "write it into a turn of the user"
ENDLESS = "{%- for a in range(99999) %}{%- for b in range(99999) %}{%- endfor %}{%- endfor %}"


@pytest.mark.parametrize(
    ("error", "setting", "kind", "text"),
    [
        (ToolError("tool f"), "", ConfigError, "row 3: tool f"),
        (ChatFormError("no tools"), "", PolicyError, "row 3: no tools"),
        (TemplateLimitError("too long"), "", PolicyError, "row 3: too long"),
        (MessageError(FAULT, ADVICE, turn=0), "", PromptError, f"row 3: {FAULT}; {ADVICE}"),
        (
            MessageError(FAULT, ADVICE, turn=1),
            "prompts.teacher_system",
            PromptError,
            f"row 3: {FAULT}; {ADVICE}",
        ),
        (
            MessageError(FAULT, ADVICE, turn=0),
            "prompts.teacher_system",
            PolicyError,
            f"row 3: {FAULT}; prompts.teacher_system adds this system turn: set prompts.teacher ",
        ),
    ],
)
def test_chat_errors_are_of_tool_model_or_row(
    error: ChatFormError, setting: str, kind: type[PaintError], text: str
) -> None:
    with pytest.raises(PaintError) as raised, chat_errors("row 3", setting):
        raise error
    assert type(raised.value) is kind
    assert str(raised.value).startswith(text)


def test_student_chat_of_a_prompt_template_without_an_end_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendering, "SECONDS", 0.1)
    problem = Problem("Add 1 and 2.", "It is 3.", "3", "p")
    with pytest.raises(PolicyError, match=r"^prompts.student .* takes over 0.1 s"):
        student_chat(PromptsConfig(student="{{ problem }}" + ENDLESS), problem)


def test_policy_with_a_template_without_an_end_is_refused(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "SECONDS", 0.1)
    policy.tokenizer.chat_template = ENDLESS + str(policy.tokenizer.chat_template)
    for call in (
        lambda: policy.conventions,
        lambda: policy.student_prompt(Problem("2 + 3?", "", "", "p")),
        lambda: policy.call_style,
        lambda: policy.solution_ids("5"),
    ):
        with pytest.raises(PolicyError, match=r"takes over 0.1 s"):
            call()
