"""Every turn of a prompt is in its rendering, or the prompt is refused with the turn's role."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from chat_templates import CHATML, LOOP, TEMPLATES, tokenizer_of
from paint.config.schema import Config, DataConfig, ModelConfig, PromptsConfig
from paint.core.demo_files import MODEL
from paint.core.display import Display
from paint.data.problems import DataError, Problem, ValidRows
from paint.evaluation.generate import deployment_prompts
from paint.lab.validate import TURNS, check_file
from paint.models.chat_template import PolicyError, PromptError, encode
from paint.models.conventions import missing_header
from paint.models.policy import Policy, load_tokenizer
from paint.resolve.check import check_config
from paint.training.prompt_filter import filter_problems
from runs import changed

TWO_ROLES = f"""{LOOP}{{%- if m.role in ('user', 'assistant') %}}
{{{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}}}{{%- endif %}}
{{%- endfor %}}{{%- if add_generation_prompt %}}
{{{{- '<|im_start|>assistant\\n' }}}}{{%- endif %}}"""
FIRST_SYSTEM = (
    "{%- if messages[0].role == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}" + TWO_ROLES
)
LAST_ONLY = CHATML.replace("in messages", "in messages[-1:]")
MERGED = """{%- set text = namespace(system='') %}{%- for m in messages %}
{%- if m.role == 'system' %}{%- set text.system = m.content + '\\n\\n' %}
{%- elif m.role == 'user' %}
{{- '[INST] ' + (text.system if loop.last else '') + m.content + ' [/INST]' }}
{%- else %}{{- ' ' + m.content + '</s>' }}{%- endif %}{%- endfor %}"""
CUT = CHATML.replace("m.content", "m.content[:20]")
USERS_THOUGHT = CHATML.replace("m.content", "m.content.split('</think>')[-1]")
ALL = TEMPLATES | {
    "TWO_ROLES": TWO_ROLES.replace("\n", ""),
    "FIRST_SYSTEM": FIRST_SYSTEM.replace("\n", ""),
    "LAST_ONLY": LAST_ONLY,
    "MERGED": MERGED.replace("\n", ""),
    "CUT": CUT,
    "USERS_THOUGHT": USERS_THOUGHT,
    "JSON": CHATML.replace("m.content", "m.content | tojson"),
    "CAPITALS": CHATML.replace("m.content", "m.content | upper"),
    "ONE_LINE": CHATML.replace("m.content", "m.content | replace('\\n', '<n>')"),
    "COMMANDS": CHATML.replace("m.content", "m.content | replace('/no_think', '')"),
}

Turns = Sequence[tuple[str, str]]
ASKED = ("user", " What is 2 + 3?\n\nThink. ")
TURNS_OF = {
    "system": [("system", "Be brief: 'one' word."), ASKED],
    "developer": [("developer", "Be brief."), ASKED],
    "later system": [ASKED, ("assistant", "5"), ("system", "Be brief."), ASKED],
    "earlier": [("user", "Hello?"), ("assistant", "Yes."), ASKED],
    "thought": [("user", "Hello?"), ("assistant", "<think>\nA\n</think>\n\nYes."), ASKED],
    "lone": [("user", "Hello?"), ("assistant", "A\n</think>\n\nYes."), ASKED],
    "command": [("system", "Be brief. /no_think"), ASKED],
    "long": [("user", "Add these: " + " + ".join(map(str, range(20))))],
    "user's tag": [("user", "Does </think> end a thought?")],
    "short": [("system", "5"), ("user", "What is 5 + 5?")],
}


def render(template: str, turns: Turns) -> str:
    tokenizer = tokenizer_of(template if template in TEMPLATES else "CHATML")
    tokenizer.chat_template = ALL[template]
    chat = [{"role": role, "content": text} for role, text in turns]
    return str(tokenizer.decode(encode(tokenizer, chat, thinking=True)))


@pytest.mark.parametrize(
    ("template", "name", "role"),
    [
        ("TWO_ROLES", "system", "system"),
        ("TWO_ROLES", "short", "system"),  # whose text is in the user's, too
        ("TWO_ROLES", "developer", "developer"),
        ("FIRST_SYSTEM", "developer", "developer"),
        ("FIRST_SYSTEM", "later system", "system"),
        ("LAST_ONLY", "earlier", "user"),
        ("CUT", "long", "user"),
        ("USERS_THOUGHT", "user's tag", "user"),
    ],
)
def test_encode_turn_that_the_template_leaves_out_is_refused(
    template: str, name: str, role: str
) -> None:
    with pytest.raises(PromptError, match=rf"leaves out the {role} turn") as refused:
        render(template, TURNS_OF[name])
    assert "write its text into a turn of the user, or fix chat_template.jinja" in str(
        refused.value
    )


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("CHATML", "later system"),
        ("CHATML", "developer"),
        ("LLAMA3", "system"),  # trims
        ("GEMMA", "earlier"),
        ("FIRST_SYSTEM", "system"),
        ("FIRST_SYSTEM", "short"),
        ("MERGED", "system"),  # into the user's turn, as Mistral's
        ("JSON", "system"),
        ("CAPITALS", "system"),
        ("ONE_LINE", "system"),
        ("COMMANDS", "command"),  # as SmolLM3's
        ("USERS_THOUGHT", "lone"),
        *((template, name) for template in ("R1", "QWEN3") for name in ("thought", "lone")),
    ],
)
def test_encode_turn_that_is_trimmed_moved_or_without_its_thought_is_read(
    template: str, name: str
) -> None:
    text = render(template, TURNS_OF[name]).casefold()
    assert all(role_text[1].split()[0].casefold() in text for role_text in TURNS_OF[name][-1:])


def test_encode_refused_system_turn_names_the_setting_that_made_it() -> None:
    tokenizer = tokenizer_of("CHATML")
    chat = [{"role": "system", "content": "5 + 5 is 10."}, {"role": "user", "content": "5 + 5?"}]
    refusing = (
        "{%- if messages[0].role == 'system' %}{{ raise_exception('No system') }}{%- endif %}"
    )
    for template, fault in ((refusing + CHATML, "No system"), (TWO_ROLES, "leaves out the system")):
        tokenizer.chat_template = template
        with pytest.raises(PolicyError, match=rf"{fault}.*prompts.teacher_system adds") as refused:
            encode(tokenizer, chat, thinking=True, system_setting="prompts.teacher_system")
        assert "set prompts.teacher in its place" in str(refused.value)
        assert not isinstance(refused.value, PromptError)  # of every row, not of one
        with pytest.raises(PromptError, match=rf"row 3: .*{fault}.* a turn of the user"):
            encode(tokenizer, chat, thinking=True, place="row 3")


@pytest.fixture
def two_roles(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    (folder / "chat_template.jinja").write_text(TWO_ROLES)
    return str(folder)


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


def test_check_file_turn_that_is_left_out_makes_the_row_bad(two_roles: str, tmp_path: Path) -> None:
    rows = []
    for problem in ROWS:
        turns = [*problem.turns, ("assistant", problem.solution)]
        chat = [{"role": role, "content": text} for role, text in turns]
        rows.append(json.dumps({"messages": chat, "answer": "5"}))
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(rows))
    config = Config(model=ModelConfig(path=two_roles), data=DataConfig(path=str(path)))
    check = check_file(check_config(config), display=Display(enabled=False))
    assert check.good == 1
    assert [row for row, _ in check.bad[TURNS]] == [2, 3]
    roles = [text.partition("leaves out the ")[2].split()[0] for _, text in check.bad[TURNS]]
    assert roles == ["system", "developer"]
    config = replace(config, prompts=PromptsConfig(teacher_system="{{ context }}"))
    with pytest.raises(PolicyError, match=r"prompts.teacher_system adds this system turn"):
        check_file(check_config(config), display=Display(enabled=False))


HEADER = "{{- '<|im_start|>' + m.role + '\\n' }}"
NO_PROMPT = f"{LOOP}{HEADER}{{{{- m.content + '<|im_end|>\\n' }}}}{{%- endfor %}}"
NO_PROMPT_THOUGHT = NO_PROMPT.replace(
    "{{- m.content",
    "{{- ('<think>\\n\\n</think>\\n\\n' if m.role == 'assistant' else '') + m.content",
)
MAGISTRAL = TEMPLATES["MISTRAL"].replace("' ' + m", "'<think>\\n\\n</think>' + m")


@pytest.mark.parametrize(
    ("template", "header"),
    [
        (NO_PROMPT, "<|im_start|>assistant"),
        (NO_PROMPT_THOUGHT, "<|im_start|>assistant"),
        (TEMPLATES["GEMMA"].partition("{%- if add")[0], "<start_of_turn>model"),
        (TEMPLATES["GPT_OSS"].partition("{%- if add_generation_prompt %}")[0], None),
        (MAGISTRAL, ""),
        *((ALL[name], "") for name in ALL if name not in ("SINGLE", "LAST_ONLY")),
    ],
)
def test_missing_header_is_what_no_generation_prompt_writes(
    template: str, header: str | None
) -> None:
    tokenizer = tokenizer_of("CHATML")
    tokenizer.chat_template = template
    found = missing_header(tokenizer, "2024-02-03")
    assert found == header or (header is None and found.startswith("<|start|>assistant"))


def test_load_tokenizer_template_without_generation_prompt_is_refused(two_roles: str) -> None:
    load_tokenizer(two_roles)
    (Path(two_roles) / "chat_template.jinja").write_text(NO_PROMPT)
    with pytest.raises(PolicyError, match=r"no generation prompt.*'<\|im_start\|>assistant'") as no:
        load_tokenizer(two_roles)
    assert "add {%- if add_generation_prompt %}" in str(no.value)
