"""A template that does not end is stopped, in any thread, and others are rendered as before."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import cache

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import PreTrainedTokenizerBase

from chat_templates import tokenizer_of
from chatforms import rendering
from chatforms.chat_template import encode
from chatforms.conventions import read_thinking
from chatforms.errors import TemplateLimitError
from chatforms.rendering import limited, render_chat

ASKED = [{"role": "user", "content": "Hi"}]
NESTED = "{%- for a in range(99999) %}{%- for b in range(99999) %}{%- endfor %}{%- endfor %}"
ENDLESS = {
    "loops": NESTED,
    "loops within a condition": "{%- if messages %}{% set x = 1 %}" + NESTED + "{%- endif %}",
    "a macro that calls itself": "{%- macro f(n) %}{%- if n > 0 %}{{- f(n - 1) }}{{- f(n - 1) }}"
    "{%- endif %}{%- endmacro %}{{- f(60) }}",
    "loops in a generation": "{% generation %}" + NESTED + "{% endgeneration %}",
}


@cache
def tokenizer_with(template: str) -> PreTrainedTokenizerBase:
    tokenizer = copy(tokenizer_of("CHATML"))
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "SECONDS", 0.1)


@pytest.mark.parametrize("name", sorted(ENDLESS))
def test_render_chat_of_a_template_without_an_end_names_it_and_the_limit(name: str) -> None:
    tokenizer = tokenizer_with(ENDLESS[name])
    fault = rf"the chat template of {tokenizer.name_or_path} takes over 0.1 s"
    with pytest.raises(TemplateLimitError, match=fault):
        render_chat(tokenizer, ASKED)
    with ThreadPoolExecutor(1) as pool, pytest.raises(TemplateLimitError, match=fault):
        pool.submit(render_chat, tokenizer, ASKED).result()


@pytest.mark.parametrize(
    "read",
    [
        lambda tokenizer: encode(tokenizer, ASKED, thinking=True),
        lambda tokenizer: read_thinking(tokenizer, "2026-01-01"),
    ],
)
def test_template_limit_is_no_refusal_of_a_chat(
    read: Callable[[PreTrainedTokenizerBase], object],
) -> None:
    with pytest.raises(TemplateLimitError):
        read(tokenizer_with(NESTED))


@pytest.mark.parametrize(
    "template",
    [
        "{{ 9 ** (9 ** 9) }}",
        "{%- set ns = namespace(x=7) %}{%- for i in range(99) %}{%- set ns.x = ns.x * ns.x %}"
        "{%- endfor %}",
    ],
)
def test_render_chat_of_a_template_with_an_endless_number_names_it(template: str) -> None:
    with pytest.raises(TemplateLimitError, match="computes a number that is too large"):
        render_chat(tokenizer_with(template), ASKED)


@pytest.mark.parametrize("name", ["GPT_OSS", "LLAMA3", "QWEN3"])
def test_render_chat_is_what_the_template_writes_without_a_limit(name: str) -> None:
    tokenizer = tokenizer_of(name)
    expected = tokenizer.apply_chat_template(ASKED, tokenize=False)
    assert render_chat(tokenizer, ASKED) == expected


def test_limited_holds_for_what_is_rendered_within_alone() -> None:
    template = ImmutableSandboxedEnvironment().from_string(
        "{% for a in range(9) %}{% for b in range(9) %}{% endfor %}{% endfor %}"
        "{{ 2 ** 3 * 4 }}{{ 'a' * 3 }}{{ [1] * 2 }}{{ 2.5 * 2 }}"
    )
    assert template.render() == "32aaa[1, 1]5.0"
    with limited("it"):
        assert template.render() == "32aaa[1, 1]5.0"
