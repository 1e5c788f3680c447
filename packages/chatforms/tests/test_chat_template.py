"""Every turn of a prompt is in its rendering, or the prompt is refused with the turn's role."""

from collections.abc import Sequence

import pytest

from chat_templates import CHATML, LOOP, TEMPLATES, tokenizer_of
from chatforms.chat_template import encode
from chatforms.conventions import missing_header
from chatforms.errors import MessageError

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
    with pytest.raises(MessageError, match=rf"leaves out the {role} turn") as refused:
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


def test_encode_refused_system_turn_names_the_turn() -> None:
    tokenizer = tokenizer_of("CHATML")
    chat = [{"role": "system", "content": "5 + 5 is 10."}, {"role": "user", "content": "5 + 5?"}]
    refusing = (
        "{%- if messages[0].role == 'system' %}{{ raise_exception('No system') }}{%- endif %}"
    )
    for template, fault in ((refusing + CHATML, "No system"), (TWO_ROLES, "leaves out the system")):
        tokenizer.chat_template = template
        with pytest.raises(MessageError, match=rf"{fault}.* a turn of the user") as refused:
            encode(tokenizer, chat, thinking=True)
        assert refused.value.turn == 0
    tokenizer.chat_template = "{{ raise_exception('Nothing') }}"
    with pytest.raises(MessageError, match="Nothing; change them") as refused:
        encode(tokenizer, chat, thinking=True)
    assert refused.value.turn is None


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
