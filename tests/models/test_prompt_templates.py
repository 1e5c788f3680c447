"""Prompts by templates and from chats; of the default wording, token by token the paper's."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from paint.config.schema import DataConfig, PromptsConfig
from paint.data.problems import Problem, validate_rows
from paint.data.readers import DataError
from paint.models.policy import Policy
from paint.models.prompts import rationale_chat, student_chat, teacher_chat
from paint.objective import messages as paper

ROW = {"problem": "Is {{ answer }} {% x %} even?", "solution": "It is {{ 1 }}.", "answer": "2"}
ROW |= {"hint": "look", "two words": "seen"}
CHAT = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Where is it?"},
    {"role": "assistant", "content": "On its way."},
]


def problem_of(row: dict[str, Any]) -> Problem:
    [(_, problem)] = validate_rows([(1, row)], DataConfig(), needs={})
    assert isinstance(problem, Problem)
    return problem


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("complete", [False, True])
def test_messages_default_is_the_papers(complete: bool) -> None:
    options, problem, text = PromptsConfig(), problem_of(ROW), str(ROW["problem"])
    assert student_chat(options, problem) == paper.student_messages(text)
    asked = rationale_chat(options, problem, "c", complete=complete)
    assert asked == paper.rationale_messages(text, "c", complete=complete)
    for rationale in (None, "r"):
        given: Any = {"complete": complete, "rationale": rationale}
        shown = teacher_chat(options, problem, "c", **given)
        assert shown == paper.teacher_messages(text, "c", **given)


def test_messages_template_sees_fields_and_braces_are_data() -> None:
    options = PromptsConfig(
        student="{{ problem }} {{ hint }} {{ row['two words'] }}",
        teacher="{{ student }}|{{ context }}|{{ 'all' if complete else 'part' }}|{{ answer }}",
    )
    problem = problem_of(ROW)
    asked = user(f"{ROW['problem']} look seen")
    assert student_chat(options, problem) == [asked]
    context = "{{ problem }}"
    reasoned: Any = {"rationale": "r", "request": "Why {{ context }}?"}
    assert teacher_chat(options, problem, context, complete=True) == [
        user(f"{ROW['problem']} look seen|{{{{ problem }}}}|all|2")
    ]
    assert teacher_chat(options, problem, context, complete=False, **reasoned) == [
        user("Why {{ problem }}?"), {"role": "assistant", "content": "r"}, asked
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ qestion }}", "'qestion' is undefined"),
        ("question", "inserts nothing"),
        ("{{ problem.__class__.__mro__ }}", "is unsafe"),
        ("{{ parts }}", "it inserts a list"),
        ("{{ row.gone }}", "it inserts null"),
    ],
)
def test_messages_template_that_cannot_be_rendered_is_refused(template: str, said: str) -> None:
    row = ROW | {"parts": ["a", 3], "gone": None}
    with pytest.raises(DataError, match=rf"^prompts\.student .*{said}"):
        student_chat(PromptsConfig(student=template), problem_of(row))


def test_messages_of_chat_are_its_turns_and_reference_its_reply() -> None:
    problem = problem_of({"messages": CHAT})
    assert (problem.problem, problem.solution) == ("Where is it?", "On its way.")
    assert student_chat(PromptsConfig(), problem) == CHAT[:-1]

    *before, last = teacher_chat(PromptsConfig(), problem, "Rules", complete=False)
    assert before == CHAT[:-2]
    assert last == user("=== Reference Begin ===\nRules\n=== Reference End ===\n\nWhere is it?")
    short = PromptsConfig(student="{{ problem }} In a word.")
    assert student_chat(short, problem) == [*CHAT[:-2], user("Where is it? In a word.")]


def test_messages_teacher_system_replaces_system_turn() -> None:
    problem = problem_of({"messages": CHAT})
    options = PromptsConfig(teacher_system="{{ context }}")
    ruled = {"role": "system", "content": "Rules"}
    assert teacher_chat(options, problem, "Rules", complete=True) == [ruled, *CHAT[1:-1]]
    assert student_chat(options, problem) == CHAT[:-1]
    plain = teacher_chat(options, Problem("p", "", "", "1"), "Rules", complete=True)
    assert plain == [ruled, *paper.student_messages("p")]


def test_messages_system_is_the_rows_system_turn() -> None:
    options = PromptsConfig(teacher_system="{{ system }} {{ context }}")
    [system, *_] = teacher_chat(options, problem_of({"messages": CHAT}), "Rules", complete=True)
    assert system == {"role": "system", "content": "Be kind. Rules"}
    # Without such a turn it is the row's field of that name, or nothing.
    for row, text in (({"system": "Be brief."}, "Be brief."), ({}, "")):
        problem = problem_of({"problem": "p", **row})
        [system, *_] = teacher_chat(options, problem, "Rules", complete=True)
        assert system["content"] == f"{text} Rules"


def test_policy_prompts_are_those_of_its_settings(policy: Policy) -> None:
    own = type(policy)(**{**vars(policy), "prompts": PromptsConfig(student="Say {{ problem }}")})
    assert "user\nSay it<|im_end|>" in own.decode(own.student_prompt("it"), special=True)
    assert own.template_difference() == policy.template_difference()


def test_printed_templates_are_the_papers_wording() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/own-context.md").read_text()
    [block] = [b for b in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "boxed" in b]
    options = PromptsConfig(**tomllib.loads(block)["prompts"])
    problem, own = Problem("What is 1 + 1?", "", "", "1"), PromptsConfig()
    assert student_chat(options, problem) == student_chat(own, problem)
    for complete in (False, True):
        shown = [teacher_chat(o, problem, "c", complete=complete) for o in (options, own)]
        assert shown[0] == shown[1]
