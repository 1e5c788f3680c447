"""README.md says what its examples print and what is read, and importing it stays light."""

import re
import subprocess
import sys
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from chatforms import call_styles, errors
from chatforms.tool_calls import read_reply
from tool_templates import MISTRAL, tokenizer_with, tool_templates

README = (Path(__file__).parents[1] / "README.md").read_text()
needs_trl = pytest.mark.skipif(
    len(tool_templates()) == len(MISTRAL), reason="the templates are read from TRL"
)


@needs_trl
def test_readme_examples_print_what_stands_behind_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda name: tokenizer_with("qwen3"))
    names: dict[str, Any] = {"__name__": "readme"}
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for block in blocks:
        exec(block, names)
        expected = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == expected
    assert len(blocks) == 3


FAMILIES = {
    "ObjectSpelling": ["qwen2_5", "qwen3", "llama3_1", "llama3_2", "mistral_v3"],
    "NamedSpelling": ["deepseekv3", "deepseek_r1_distill", "gptoss", "mistral_small"],
    "TagSpelling": ["qwen3_5_think", "qwen3_8", "nemotron_3_nano", "glm4moe", "muse_glimmer"],
    "LiteralSpelling": ["lfm2_v2", "lfm2_2_5", "gemma4_v5"],
}


@pytest.mark.slow
@needs_trl
def test_readme_table_has_the_spelling_of_each_family() -> None:
    for spelling, names in FAMILIES.items():
        for name in names:
            style = call_styles.call_style(tokenizer_with(name))
            assert type(style.spelling).__name__ == spelling, name
    trls = tool_templates().keys() - MISTRAL.keys()
    found = [fault_of(name) for name in trls]
    assert f"Of the {len(trls)} templates in TRL" in README
    assert f"{found.count('')} have calls" in README
    assert all(not fault or "has no calls of tools" in fault for fault in found)


def fault_of(name: str) -> str:
    try:
        call_styles.call_style(tokenizer_with(name))
    except errors.ChatFormError as error:
        return str(error)
    return ""


@needs_trl
def test_readme_says_what_parse_response_does_not_read() -> None:
    from trl.chat_template_utils import add_response_schema

    known = []
    for name in tool_templates().keys() - MISTRAL.keys():
        with suppress(ValueError):
            known.append(add_response_schema(copy(tokenizer_with(name))))
    assert f"for {len(known)} of its" in README
    tokenizer = add_response_schema(copy(tokenizer_with("qwen3")))
    call = '{"name": "f", "arguments": {"x": true}}'
    for inner in (call[:-5], call.replace("true", "True"), f"{call}\n{call}"):
        with pytest.raises(ValueError, match="could not parse"):
            tokenizer.parse_response(f"<tool_call>{inner}</tool_call>", prefix="")
        reply = read_reply(call_styles.call_style(tokenizer), f"<tool_call>{inner}</tool_call>")
        assert reply.calls or reply.faults


def test_imports_load_no_torch_and_messages_no_transformers() -> None:
    modules = sorted(Path(errors.__file__).parent.glob("[a-z]*.py"))
    names = ", ".join(f"chatforms.{path.stem}" for path in modules)
    code = (
        "import sys, chatforms, chatforms.errors, chatforms.messages, chatforms.spellings\n"
        "assert not {'transformers', 'jinja2'} & set(sys.modules)\n"
        f"import {names}\n"
        "assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
