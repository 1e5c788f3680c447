"""A row whose turns a chat template leaves out is refused, by whoever reads rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from chat_templates import LOOP
from paint.config.schema import PromptsConfig
from paint.core.display import Display
from paint.data.problems import DataError, Problem, ValidRows
from paint.evaluation.generate import deployment_prompts
from paint.models.model_errors import PolicyError, PromptError
from paint.models.policy import Policy, load_tokenizer
from paint.resolve.check import check_config
from paint.training.prompt_filter import filter_problems
from runs import changed

TWO_ROLES = f"""{LOOP}{{%- if m.role in ('user', 'assistant') %}}
{{{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}}}{{%- endif %}}
{{%- endfor %}}{{%- if add_generation_prompt %}}
{{{{- '<|im_start|>assistant\\n' }}}}{{%- endif %}}"""
NO_PROMPT = (
    f"{LOOP}{{{{- '<|im_start|>' + m.role + '\\n' }}}}{{{{- m.content + '<|im_end|>\\n' }}}}"
    f"{{%- endfor %}}"
)


def chat_of(identity: str, *turns: tuple[str, str]) -> Problem:
    return Problem(turns[-1][1], "It is 5.", "5", identity, turns=turns, row=int(identity))


@pytest.fixture
def policy_of_two_roles(policy: Policy) -> Policy:
    policy.tokenizer.chat_template = TWO_ROLES
    return policy


ROWS = [
    chat_of("1", ("user", "2 + 3?")),
    chat_of("2", ("system", "Be brief."), ("user", "2 + 3?")),
    chat_of("3", ("user", "2?"), ("developer", "Be brief."), ("user", "2 + 3?")),
]


def test_filter_problems_turn_that_is_left_out_is_refused_or_skipped(
    policy_of_two_roles: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    for recipe in ("demo-paint", "demo-grpo", "demo-sft"):
        run = check_config(changed(recipe, {"data": {"path": "rows.jsonl"}}))
        with pytest.raises(DataError, match=r"rows.jsonl: problem 2: .* the system turn .* skip"):
            filter_problems(policy_of_two_roles, run, ValidRows(ROWS, {}), Display())
        run = run.changed("data", on_bad_row="skip")
        found = filter_problems(policy_of_two_roles, run, ValidRows(ROWS, {}), Display())
        assert [problem.id for problem in found] == ["1"]
        line = "skipped 2 rows: the chat template does not take their turns or thoughts"
        assert line in capsys.readouterr().out


def test_prompts_of_every_kind_are_checked(policy_of_two_roles: Policy) -> None:
    policy = replace(
        policy_of_two_roles, prompts=PromptsConfig(teacher_system="{{ context }} {{ student }}")
    )
    plain, system, _ = ROWS
    assert policy.student_prompt(plain)
    with pytest.raises(PolicyError, match=r"problem 1: .*prompts.teacher_system adds"):
        policy.teacher_prompt(plain, "It is 5.", complete=True)
    with pytest.raises(PolicyError, match=r"problem 1: .*prompts.teacher_system adds"):
        policy.rationale_prompt(plain, "It is 5.", complete=True)
    with pytest.raises(PromptError, match=r"problem 2: .* the system turn"):
        deployment_prompts(policy, [plain, system], thinking=False)


def test_load_tokenizer_template_without_generation_prompt_is_refused(demo_copy: Path) -> None:
    (demo_copy / "chat_template.jinja").write_text(TWO_ROLES)
    load_tokenizer(str(demo_copy))
    (demo_copy / "chat_template.jinja").write_text(NO_PROMPT)
    with pytest.raises(PolicyError, match=r"no generation prompt.*'<\|im_start\|>assistant'") as no:
        load_tokenizer(str(demo_copy))
    assert "add {%- if add_generation_prompt %}" in str(no.value)
