"""Chat templates with tools: those that TRL ships, and two in the styles of Mistral."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from chat_templates import END, END_IF, LOOP, small_tokenizer

NINE = "Tool call IDs should be alphanumeric strings with length 9!"
TOOLS = f"""{{%- if tools %}}{{{{- '[AVAILABLE_TOOLS]' + tools | tojson }}}}
{{{{- '[/AVAILABLE_TOOLS]' }}}}{END_IF}"""
USER = "{%- if m.role == 'user' %}{{- '[INST] ' + m.content + '[/INST]' }}"
MISTRAL_V3 = f"""{TOOLS}{LOOP}{USER}
{{%- elif m.role == 'tool' %}}
{{%- if not m.tool_call_id or m.tool_call_id | length != 9 %}}
{{{{- raise_exception('{NINE}') }}}}{END_IF}
{{{{- '[TOOL_RESULTS] {{"content": ' + m.content + ', "call_id": "' + m.tool_call_id }}}}
{{{{- '"}}[/TOOL_RESULTS]' }}}}
{{%- elif m.tool_calls %}}{{{{- '[TOOL_CALLS] [' }}}}
{{%- for c in m.tool_calls %}}{{%- if not c.id or c.id | length != 9 %}}
{{{{- raise_exception('{NINE}') }}}}{END_IF}
{{%- set f = c.function | tojson %}}{{{{- f[:-1] + ', "id": "' + c.id + '"}}' }}}}
{{{{- ', ' if not loop.last else ']</s>' }}}}{END}
{{%- else %}}{{{{- ' ' + m.content + '</s>' }}}}{END_IF}{END}"""
MISTRAL_SMALL = f"""{TOOLS}{LOOP}{USER}
{{%- elif m.role == 'tool' %}}{{{{- '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}}}
{{%- else %}}{{{{- m.content or '' }}}}{{%- for c in m.tool_calls or [] %}}
{{%- if not c.id or c.id | length != 9 %}}{{{{- raise_exception('{NINE}') }}}}{END_IF}
{{{{- '[TOOL_CALLS]' + c.function.name + '[CALL_ID]' + c.id + '[ARGS]' }}}}
{{{{- c.function.arguments | tojson }}}}{END}{{{{- '</s>' }}}}{END_IF}{END}"""

# A call as a text with its name and arguments, in the style of no model that is known.
CALLING = """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.tool_calls %}{%- for c in m.tool_calls %}{%- set f = c.function %}CALL{%- endfor %}
{%- endif %}{{- m.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}""".replace("\n", "")
MISTRAL = {
    "mistral_v3": MISTRAL_V3.replace("\n", ""),
    "mistral_small": MISTRAL_SMALL.replace("\n", ""),
}

_SPECIAL = re.compile(r"<\|[^<>\s|]{1,30}\|?>|<[^<>\s|/]{1,30}\|>|<\uff5c[^<>]{1,40}\uff5c>")
_BRACKETED = re.compile(r"</s>|\[/?[A-Z_]+\]")


@cache
def tool_templates() -> dict[str, str]:
    """Templates by their names; without TRL, Mistral's alone."""
    found = find_spec("trl")
    folders = (found.submodule_search_locations if found else None) or ()
    paths = [path for folder in folders for path in Path(folder, "chat_templates").glob("*.jinja")]
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(paths)} | MISTRAL


@cache
def tokenizer_with(name: str, folder: Path | None = None) -> PreTrainedTokenizerBase:
    """``small_tokenizer`` with a template, whose marks are special tokens; change a copy of it."""
    template = tool_templates()[name]
    tokenizer = small_tokenizer(template, folder)
    pattern = _BRACKETED if name in MISTRAL else _SPECIAL
    tokenizer.add_special_tokens(
        {"additional_special_tokens": sorted({*pattern.findall(template)})}
    )
    return tokenizer
