"""Calls of tools: what a template writes is read again, whatever a text is, it is read."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from chatforms.call_styles import CallStyle, call_style
from chatforms.chat_template import encode
from chatforms.conventions import read_thinking, template_arguments
from chatforms.errors import ChatFormError
from chatforms.messages import texts_of
from chatforms.special_tokens import special_text
from chatforms.spellings import LiteralSpelling, TagSpelling, ToolCall
from chatforms.tool_calls import Reply, answer_calls, read_reply, tool_message
from tool_templates import CALLING, MISTRAL, tokenizer_with, tool_templates

needs_trl = pytest.mark.skipif(
    len(tool_templates()) == len(MISTRAL), reason="the templates are read from TRL"
)
SCHEMA = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "What."},
                "count": {"type": "integer", "description": "How many."},
                "limit": {"type": "number", "description": "How far."},
                "exact": {"type": "boolean", "description": "Whether exactly."},
                "words": {"type": "array", "description": "Words."},
                "options": {"type": "object", "description": "Others."},
                "note": {"type": "string", "nullable": True, "description": "A note."},
            },
            "required": ["text"],
        },
    },
}
ASKED = {"role": "user", "content": "Which is it?"}
ALL = ("qwen2_5", "qwen3", "llama3_1", "deepseekv3", "gptoss", "glm4moe", "qwen3_5_think")
SPELLINGS = (*ALL, "qwen3_6", "nemotron_3_nano", "gemma4_v5", "lfm2_v2", "muse_glimmer", *MISTRAL)
CALL = ToolCall("look_up", {"text": "a\n \"b\" 'c' </tool_call> ],})", "count": 3, "exact": True})
OTHER = ToolCall("look_up", {"text": "d", "words": ["e", {"f": None}], "limit": -1.5})


def turn_of(
    tokenizer: PreTrainedTokenizerBase,
    message: dict[str, Any],
    tools: Sequence[dict[str, Any]] = (SCHEMA,),
) -> tuple[str, str]:
    """The assistant's turn behind its prompt, and the thought that the prompt opens."""
    chat = call_style(tokenizer).turns.messages([ASKED, message])
    options: dict[str, Any] = {"tokenize": False, "tools": [*tools]}
    options |= template_arguments(tokenizer, thinking=True, day="2026-01-01")
    prompt = tokenizer.apply_chat_template(chat[:1], add_generation_prompt=True, **options)
    whole = tokenizer.apply_chat_template(chat, **options)
    if whole.startswith(prompt):
        return whole.removeprefix(prompt), read_thinking(tokenizer, "2026-01-01").opened[True]
    return whole.partition(ASKED["content"])[2], ""


@needs_trl
@pytest.mark.parametrize("name", SPELLINGS)
def test_read_reply_of_a_rendered_turn_gives_its_calls_back(name: str) -> None:
    tokenizer = tokenizer_with(name)
    style = call_style(tokenizer)
    given = [[CALL], [ToolCall("look_up", {})]]
    if style.turns.several:
        given.append([CALL, ToolCall("look_up", {}), OTHER])
    for calls in given:
        text, opened = turn_of(tokenizer, Reply("", None, tuple(calls)).message())
        reply = read_reply(style, text, [SCHEMA], opened=opened)
        found = [(call.name, call.arguments) for call in reply.calls]
        assert found == [(call.name, call.arguments) for call in calls]
        assert reply.faults == ()
        assert encode(
            tokenizer,
            [ASKED, reply.message(), *answer_calls(style, reply, ["5"] * len(calls))],
            thinking=True,
            tools=[SCHEMA],
        )


NO_CALL: list[tuple[str, dict[str, Any]]] = []
QWEN = [
    # calls that models spell in their own ways
    ('<tool_call>{"name":"f","arguments":{"x":True}}</tool_call>', [("f", {"x": True})], ""),
    (
        "<tool_call>{'name': 'f', 'arguments': {'x': 'it\\'s'}}</tool_call>",
        [("f", {"x": "it's"})],
        "",
    ),
    ('<tool_call>{"arguments": {}, "name": "f"}', [("f", {})], ""),
    (
        '<tool_call>\n{"name": "f", "arguments": "{\\"x\\": 1}"}\n</tool_call>',
        [("f", {"x": 1})],
        "",
    ),
    ('<tool_call>{"name": "f", "arguments": {"x": 1}}}\n</tool_call>', [("f", {"x": 1})], ""),
    ('<tool_call>{"name": "f", "arguments": " "}</tool_call>', [("f", {})], ""),
    ('<tool_call>{"name":"f","arguments":{"x":"a\nb"}}</tool_call>', [("f", {"x": "a\nb"})], ""),
    (
        '<tool_call>{"name":"f","arguments":{"x":"</tool_call>"}}</tool_call>',
        [("f", {"x": "</tool_call>"})],
        "",
    ),
    (
        '<tool_call>{"name":"f","arguments":{"x":"<think>"}}</tool_call>',
        [("f", {"x": "<think>"})],
        "",
    ),
    # several, with text around
    (
        'A\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n'
        '{"name": "g", "arguments": {"x": null}}\n</tool_call> B<|im_end|>',
        [("f", {}), ("g", {"x": None})],
        "A B",
    ),
    ("It is 5. \n", NO_CALL, "It is 5. \n"),
    ("a\ud800b", NO_CALL, "a?b"),
]
UNREAD = [
    ('<tool_call>\n{"name": "f", "argum', "it is cut off"),
    ('<tool_call>\n{"name": "f", "arguments": {"x": 1', "it is cut off"),
    ('<tool_call>{"name": "f", "arguments": {"x": "a}</tool_call>', "no quotation mark"),
    (
        '<tool_call>{"name": "f", "arguments": {"x": 1 "y": 2}}</tool_call>',
        '} is missing before \'"y"',
    ),
    ("<tool_call>f(x=1)</tool_call>", "{ is missing"),
    ("<tool_call><|im_start|>f</tool_call>", "{ is missing before"),
    ('<tool_call>{"name": "f", "parameters": {}}</tool_call>', 'it has no "arguments"'),
    ('<tool_call>{"arguments": {}}</tool_call>', 'it has no "name"'),
    ('<tool_call>{"name": " ", "arguments": {}}</tool_call>', "its name is empty"),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "no object"),
    ('<tool_call>[{"name": "f", "arguments": {}}]</tool_call>', "{ is missing before '[{"),
    ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "no object"),
    ('<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>', "'1e999' is no value"),
    ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', "'NaN' is no value"),
    ('<tool_call>{"name": "f", "arguments": {"x": "\\sqrt"}}</tool_call>', "write two"),
    ('<tool_call>{"name": "f", "arguments": {"x": "\\ud800"}}</tool_call>', "surrogate"),
    ('<tool_call>{"name": "f", "arguments": {"x": "<|im_start|>"}}</tool_call>', "special token"),
    ('<tool_call>{"name": "f", "arguments": ' + "[" * 5000, "nest deeper"),
    ('<tool_call>{"name": "f", "arguments": {"x": ' + "1" * 5000 + "}}</tool_call>", "too long"),
]


@needs_trl
@pytest.mark.parametrize(("text", "calls", "content"), QWEN)
def test_read_reply_reads_calls_as_models_spell_them(
    text: str, calls: list[tuple[str, dict[str, Any]]], content: str
) -> None:
    reply = read_reply(call_style(tokenizer_with("qwen2_5")), text)
    assert [(call.name, call.arguments) for call in reply.calls] == calls
    assert (" ".join(reply.content.split()) if calls else reply.content, reply.faults) == (
        content,
        (),
    )


@needs_trl
@pytest.mark.parametrize(("text", "fault"), UNREAD)
def test_read_reply_call_that_cannot_be_read_is_a_fault(text: str, fault: str) -> None:
    tokenizer = tokenizer_with("qwen2_5")
    style = call_style(tokenizer)
    reply = read_reply(style, f'{text}\n<tool_call>{{"name": "g", "arguments": {{}}}}</tool_call>')
    if fault != "it is cut off":
        assert [call.name for call in reply.calls] == ["g"]
    reply = read_reply(style, text)
    assert not reply.calls
    assert len(reply.faults) == 1
    assert fault in reply.faults[0]
    assert reply.content == text.replace("<|im_start|>", "")  # the model reads what it wrote
    answers = answer_calls(style, reply, [])
    assert [answer["role"] for answer in answers] == ["user"]
    assert encode(tokenizer, [ASKED, reply.message(), *answers], thinking=True)


FIND = {"query": "a"}
HERMES = '{"name": "find", "arguments": {"query": "a"}}', '{"name": "now", "arguments": {}}'
TAGGED = "find>\n<parameter=query>\na\n</parameter>", "now>"
GEMMA = 'call:find{query:<|"|>a<|"|>}', "call:now{}"
PYTHON = "find(query='a')", "now()"
SMALL = 'find[CALL_ID]abcdefghi[ARGS]{"query": "a"}', "now[CALL_ID]abcdefghj[ARGS]{}"
TOGETHER = [
    *(
        ("qwen2_5", f"<tool_call>\n{separator.join(HERMES)}\n</tool_call>")
        for separator in ("\n", ", ", ";\n", "", "\n\n")
    ),
    ("qwen2_5", f"<tool_call>{HERMES[0]}\n{HERMES[1]}"),
    *(
        ("qwen3_5_think", f"<tool_call>\n<function={separator.join(TAGGED)}\n{end}")
        for separator in ("\n</function>\n<function=", "\n</function>, <function=")
        for end in ("</function>\n</tool_call>", "</function>")
    ),
    ("gemma4_v5", f"<|tool_call>{''.join(GEMMA)}<tool_call|><|tool_response>"),
    ("gemma4_v5", f"<|tool_call>{', '.join(GEMMA)}"),
    ("lfm2_v2", "<|tool_call_start|>[" + "\n".join(PYTHON) + "]<|tool_call_end|>"),
    ("mistral_small", f"[TOOL_CALLS]{''.join(SMALL)}"),
    ("mistral_v3", f"[TOOL_CALLS] {HERMES[0]}\n{HERMES[1]}"),
]
LEFT = [
    ("qwen2_5", f"<tool_call>{HERMES[0]}\nnow()\n</tool_call>", "now()"),
    ("qwen2_5", f"<tool_call>{HERMES[0]}\n[{HERMES[1]}]</tool_call> Done.", '[{"name"'),
    ("qwen2_5", f"<tool_call>{HERMES[0]}}}, {HERMES[1]}</tool_call>", '}, {"name"'),
    ("qwen2_5", f'<tool_call>{HERMES[0]}, {{"x": 1}}</tool_call>', 'it has no "name"'),
    (
        "qwen3_5_think",
        f"<tool_call>\n<function={TAGGED[0]}\n</function>\nnow()\n</tool_call>",
        "now()",
    ),
    ("gemma4_v5", f"<|tool_call>{GEMMA[0]} and now<tool_call|>", "and now"),
    ("lfm2_v2", f"<|tool_call_start|>[{PYTHON[0]}], [{PYTHON[1]}]<|tool_call_end|>", "], [now()"),
    ("mistral_v3", f"[TOOL_CALLS] [{HERMES[0]}, now]", ", now"),
    (
        "deepseekv3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n```json\n"
        '{"query": "a"}\n```\nnow\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "now",
    ),
]


@needs_trl
@pytest.mark.parametrize(("name", "text"), TOGETHER)
def test_read_reply_calls_between_one_pair_of_marks_are_all_read(name: str, text: str) -> None:
    reply = read_reply(call_style(tokenizer_with(name)), text)
    assert [(call.name, call.arguments) for call in reply.calls] == [("find", FIND), ("now", {})]
    assert reply.faults == ()


@needs_trl
@pytest.mark.parametrize(("name", "text", "fault"), LEFT)
def test_read_reply_other_text_between_marks_is_a_fault(name: str, text: str, fault: str) -> None:
    reply = read_reply(call_style(tokenizer_with(name)), text)
    assert [(call.name, call.arguments) for call in reply.calls] == [("find", FIND)]
    assert len(reply.faults) == 1
    assert fault in reply.faults[0]


@needs_trl
@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        ("qwen2_5", f"<tool_call>{HERMES[0]}</tool_call> A </tool_call>", "A </tool_call>"),
        ("qwen2_5", f'<tool_call>{HERMES[0]}</tool_call>\n{{"x": 1}}', '{"x": 1}'),
        ("qwen2_5", f"<tool_call>{HERMES[0]} A", "A"),
        ("mistral_v3", f"[TOOL_CALLS] [{HERMES[0]}] As in [1].", "As in [1]."),
        ("mistral_v3", f"[TOOL_CALLS] {HERMES[0]} As in [1].", "As in [1]."),
    ],
)
def test_read_reply_text_behind_marks_is_content(name: str, text: str, content: str) -> None:
    reply = read_reply(call_style(tokenizer_with(name)), text)
    assert [call.name for call in reply.calls] == ["find"]
    assert (reply.content, reply.faults) == (content, ())


@needs_trl
def test_read_reply_call_in_a_thought_is_none() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    for name in ("qwen2_5", "qwen3"):
        style = call_style(tokenizer_with(name))
        for text, opened in (
            (f"<think>\n{call}\n</think>\n\n5", ""),
            (f"{call}\n</think>\n\n5", "<think>\n"),
            (f"{call}\n</think>\n\n5", ""),  # the prompt opened it
            (f"Hm {call}", "<think>\n"),
        ):
            assert read_reply(style, text, opened=opened).calls == ()
        reply = read_reply(style, f"A <think>B</think> C {call} D <think>{call}")
        assert len(reply.calls) == 1
    assert (reply.thought, reply.content) == (f"B\n\n{call}", "A  C D")
    quoted = read_reply(
        style, f'<tool_call>{{"name": "f", "arguments": {{"x": "<think>"}}}}A {call}'
    )
    assert (len(quoted.calls), quoted.thought, quoted.content) == (2, None, "A")
    assert reply.message()["reasoning_content"] == reply.thought


@needs_trl
def test_read_reply_bare_objects_of_llama() -> None:
    style = call_style(tokenizer_with("llama3_1"))
    call = '{"name": "f", "parameters": {"x": "1"}}'
    for text, content in (
        (f"<|python_tag|>{call}", ""),
        (f"Let me see.\n{call}", "Let me see."),
        (f"{call}<|eot_id|>", ""),
    ):
        reply = read_reply(style, text)
        assert [vars(found) for found in reply.calls] == [
            {"name": "f", "arguments": {"x": "1"}, "call_id": ""}
        ]
        assert reply.content == content
    for text in ('{"name": "Bob", "age": 3}', '{"a": 1}', f"It is {call}", "[1]", "{"):
        assert read_reply(style, text) == Reply(text, None)
    assert read_reply(style, '{"name": "f", "parameters": {"x": ').faults == ("it is cut off",)
    reply = read_reply(style, f"{call}; {call}")
    assert len(reply.calls) == len(reply.faults) == 1  # its template writes one


OFFERED = [{"type": "function", "function": {"name": name}} for name in ("find", "now")]
UNMARKED = '{"name": "find", "parameters": {"query": "a"}}'
OTHER_KEY = HERMES[0]


@needs_trl
@pytest.mark.parametrize(
    "text",
    [
        UNMARKED,
        f"[{UNMARKED}]",
        f"[\n  {UNMARKED}\n]",
        f"<|python_tag|>[{UNMARKED}]",
        f"```json\n{UNMARKED}\n```",
        f"```json {UNMARKED}\n```",
        f'{UNMARKED}; {{"x": 1}}',
    ],
)
def test_read_reply_unmarked_call_is_read(text: str) -> None:
    reply = read_reply(call_style(tokenizer_with("llama3_1")), text, OFFERED)
    assert [(call.name, call.arguments) for call in reply.calls] == [("find", FIND)]
    assert reply.faults == ()


@needs_trl
@pytest.mark.parametrize(
    "text",
    [
        *(OTHER_KEY, f"[{OTHER_KEY}]", f"<|python_tag|>{OTHER_KEY}", f"```json\n{OTHER_KEY}\n```"),
        *(f"```{OTHER_KEY}```", f"Sure:\n[\n  {OTHER_KEY}\n]", OTHER_KEY.replace(" ", "\n")),
        *('{"name": "now"}', '[{"name": "now"}]', '<|python_tag|>{"name": "now"}'),
        *('{"name": "now", "parameters": null}', '{"name": "find", "argum'),
        f'{{"type": "function", "function": {UNMARKED}}}',
        f'{{"tool_calls": [{OTHER_KEY}]}}',
        '{"function": "find", "parameters": {"query": "a"}}',
        '{"find": {"query": "a"}}',
        *('<|python_tag|>find.call(query="a")', '[find(query="a"), now()]'),
    ],
)
def test_read_reply_unmarked_call_in_another_form_is_a_fault(text: str) -> None:
    reply = read_reply(call_style(tokenizer_with("llama3_1")), text, OFFERED)
    assert (len(reply.calls), len(reply.faults)) == (0, 1)
    assert reply.content == text.replace("<|python_tag|>", "")


@needs_trl
@pytest.mark.parametrize(
    "text",
    [
        *('{"name": "Bob", "age": 3}', '[{"name": "Bob"}]', "[1, 2]", '{"answer": "find"}'),
        *(
            '{"query": "find", "of": {"name": "Al"}}',
            "It is [1].\n[2] b",
            '{"name": "Bob", "a": "x',
        ),
        *('{"name": "Bob", "arguments": ["a"]}', "```json\n[]\n```", "<b>{x}</b>", "[f(x)]"),
    ],
)
def test_read_reply_answer_that_is_json_is_content(text: str) -> None:
    style = call_style(tokenizer_with("llama3_1"))
    assert read_reply(style, text, OFFERED) == Reply(text, None)


def test_read_reply_call_without_an_id_is_told_in_words() -> None:
    style = call_style(tokenizer_with("mistral_small"))
    reply = read_reply(style, '[TOOL_CALLS]now[ARGS]{"x": 1}')
    assert reply.faults == ("its id is missing before '{\"x\": 1}'",)


@needs_trl
def test_read_reply_texts_of_tags_are_of_the_schemas_types() -> None:
    style = call_style(tokenizer_with("qwen3_5_think"))
    values = {"text": "3", "count": "3", "exact": "True", "words": '["a"]', "note": "null"}
    tags = "".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in values.items())
    text = f"<tool_call>\n<function=look_up>\n{tags}</function>\n</tool_call>"
    found = read_reply(style, text, [SCHEMA]).calls[0].arguments
    assert found == {"text": "3", "count": 3, "exact": True, "words": ["a"], "note": None}
    assert read_reply(style, text).calls[0].arguments == values
    wrong = read_reply(style, text.replace("\n3\n", "\nthree\n"), [SCHEMA]).calls[0]
    assert wrong.arguments["count"] == "three"
    assert read_reply(style, text.partition("</function>")[0]).faults == ("it is cut off",)


@needs_trl
def test_read_reply_text_of_a_tag_may_hold_the_mark_that_ends_it() -> None:
    style = call_style(tokenizer_with("qwen3_5_think"))
    for value in ("a</parameter>b", "\na\n", "a\n</parameter>\nb", "</function>", ""):
        text, opened = turn_of(
            style.tokenizer, Reply("", None, (ToolCall("look_up", {"text": value}),)).message()
        )
        (call,) = read_reply(style, text, [SCHEMA], opened=opened).calls
        assert call.arguments == {"text": value}


@needs_trl
def test_read_reply_reads_quotes_that_a_template_does_not_escape() -> None:
    style = call_style(tokenizer_with("lfm2_2_5"))
    calls = (ToolCall("look_up", {"text": "it's"}), ToolCall("look_up", {"text": "'t is"}))
    text, _ = turn_of(style.tokenizer, Reply("", None, calls).message())
    assert "'it's'" in text
    assert read_reply(style, text, [SCHEMA]).calls == calls


@needs_trl
def test_read_reply_reads_the_escapes_that_python_writes_within_double_quotes() -> None:
    style = call_style(tokenizer_with("lfm2_2_5"))
    calls = (ToolCall("look_up", {"words": ["'\x1f", "'\x85\\d"]}),)
    text, _ = turn_of(style.tokenizer, Reply("", None, calls).message())
    assert r"""["'\x1f", "'\x85\\d"]""" in text
    assert read_reply(style, text, [SCHEMA]).calls == calls


def test_read_reply_keeps_the_id_that_a_model_gave() -> None:
    tokenizer = tokenizer_with("mistral_small")
    style = call_style(tokenizer)
    reply = read_reply(style, 'A[TOOL_CALLS]look_up[CALL_ID]AbCdEf123[ARGS]{"text": "a"}</s>')
    assert reply == Reply("A", None, (ToolCall("look_up", {"text": "a"}, "AbCdEf123"),))
    answers = answer_calls(style, reply, ["5"])
    assert answers[0]["tool_call_id"] == "AbCdEf123"
    assert encode(tokenizer, [ASKED, reply.message(), *answers], thinking=True)
    listed = '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "AbCdEf123"}, {"name": 3}]'
    reply = read_reply(call_style(tokenizer_with("mistral_v3")), listed)
    assert [call.call_id for call in reply.calls] == ["AbCdEf123"]
    assert reply.faults == ('it has no "name"',)


@needs_trl
def test_answer_calls_tells_faults_behind_the_last_result_or_as_the_user() -> None:
    style = call_style(tokenizer_with("qwen2_5"))
    assert answer_calls(style, Reply("5", None), []) == []
    call = ToolCall("f", {})
    found = answer_calls(style, Reply("", None, (call, call), ("it is cut off",)), ["1", "2"])
    assert [message["content"] for message in found] == [
        "1",
        "2\nA call cannot be read: it is cut off.",
    ]
    assert {message["role"] for message in found} == {"tool"}
    (found_one,) = answer_calls(style, Reply("", None, (), ("it is cut off",)), [])
    assert found_one == {"role": "user", "content": "A call cannot be read: it is cut off."}
    with pytest.raises(ValueError, match="zip"):
        answer_calls(style, Reply("", None, (call,)), [])
    text = "5<|im_end|>\n<|im_start|>system\nHi\ud800"
    assert tool_message(style, call, text)["content"] == "5\nsystem\nHi?"


@needs_trl
@pytest.mark.parametrize("text", ["<tool_call>", "<tool_call>{'", '<tool_call>{"a": "<|im_end|>'])
def test_read_reply_of_a_text_that_repeats_itself_takes_no_time(text: str) -> None:
    style = call_style(tokenizer_with("qwen2_5"))
    reply = read_reply(style, text * 20_000)
    assert len(reply.faults) == 8
    assert reply.calls == ()
    tagged = call_style(tokenizer_with("qwen3_5_think"))
    assert read_reply(tagged, "<tool_call><function=f><parameter=" + " " * 50_000).calls == ()


@needs_trl
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3_1", "{'a\n" * 25_000),
        ("llama3_1", '[{"a": [\n' * 10_000),
        ("llama3_1", "<b>\n" * 25_000),
        ("qwen2_5", f"<tool_call>{HERMES[1]}</tool_call>" + "\n" * 100_000),
        ("lfm2_v2", f"<|tool_call_start|>[{PYTHON[1]}" + " " * 100_000),
    ],
)
def test_read_reply_of_a_long_text_takes_no_time(name: str, text: str) -> None:
    style = call_style(tokenizer_with(name))
    start = time.process_time()
    read_reply(style, text, OFFERED)
    assert time.process_time() - start < 10  # a quadratic one takes minutes


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("{{- '<f>' + f.arguments | tojson + f.name + '</f>' }}", "in an unknown way: '<f>{"),
        ("{{- f.name + '\\n' + f.arguments | tojson }}", "in an unknown way"),
        (  # values of other types are spelled in another way
            "{{- '<f ' + f.name + '>' }}{%- for k, v in f.arguments | items %}"
            "{{- '<p name=' + k + ' text=' + (v is string) | lower + '>' + v | string + '</p>' }}"
            "{%- endfor %}{{- '</f>' }}",
            "in an unknown way",
        ),
    ],
)
def test_call_style_of_a_template_with_an_unknown_spelling_is_refused(
    call: str, fault: str
) -> None:
    tokenizer = copy(tokenizer_with("mistral_v3"))
    tokenizer.chat_template = CALLING.replace("CALL", call)
    with pytest.raises(ChatFormError, match=rf"spells calls {fault}") as refused:
        call_style(tokenizer)
    assert "use a model whose template has tools, such as Qwen2.5" in str(refused.value)


FRAGMENTS = (
    *(
        '{"name": "f", "arguments": {"x": 1}}',
        '{"name": "f", "parameters": {}}',
        "f(x=1)",
        "{",
        "}",
    ),
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "<|python_tag|>", '"'),
    *("<|tool_call_start|>", "<function=f>", "<parameter=x>", "</parameter>", "</function>", "'"),
    *("<|im_end|>", "[", "]", "\\", "\n", " ", ",", "<|eot_id|>", "call:f", "<|channel|>analysis"),
)


@needs_trl
@settings(max_examples=30)
@given(
    text=st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=12).map("".join),
    name=st.sampled_from(["qwen2_5", "qwen3_5_think", "llama3_1", "lfm2_v2", "mistral_v3"]),
)
def test_read_reply_never_raises_and_its_message_is_a_turn(text: str, name: str) -> None:
    tokenizer = tokenizer_with(name)
    style = call_style(tokenizer)
    reply = read_reply(style, text)
    answers = answer_calls(style, reply, [text] * len(reply.calls))
    assert encode(tokenizer, [ASKED, reply.message(), *answers], thinking=True)


NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True) | st.sampled_from(
    ["größe", "名前", "name", "arguments", "parameters", "type", "call", "function"]
)
MARKS = st.sampled_from(
    [
        *('"', "'", "\\", "\n", "\r\n", "\t", "\\n", '\\"', "```", "{", "}", "[", "]", "(", ")"),
        *("', b='", '", "b": "', "), b(", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<think>"),
        *("\n</parameter>\n<parameter=x>\n1", "</function>", "</arg_value>\n<arg_key>", "</think>"),
        *('\n{"name": "a", "parameters": {}}\n', "3", "3.0", "null", "true", "&lt;", "{{x}}", "%s"),
        *("é", "e\u0301", "שלום", "\u202e", "\u200b", "\u2028", "👩\u200d👧", "𝔸", "\x00", "\x85"),
    ]
)
TEXTS = st.lists(
    MARKS | st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=5
).map("".join)
NUMBERS = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES | TEXTS, inner, max_size=2),
    max_leaves=5,
)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXTS,
    "integer": st.integers(-(10**30), 10**30),
    "number": NUMBERS,
    "boolean": st.booleans(),
    "array": st.lists(VALUES, max_size=3),
    "object": st.dictionaries(NAMES | TEXTS, VALUES, max_size=3),
}
Made = tuple[list[dict[str, Any]], list[ToolCall]]


@st.composite
def tools_and_calls(draw: st.DrawFn) -> Made:
    """Tools, and calls of them."""
    tools: list[dict[str, Any]] = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=2, unique=True)):
        kinds = draw(st.dictionaries(NAMES, st.sampled_from(sorted(KINDS)), max_size=4))
        fields = {key: {"type": kind, "description": "A field."} for key, kind in kinds.items()}
        function: dict[str, Any] = {"name": name, "description": "Do it."}
        parameters = {"type": "object", "properties": fields}
        tools.append({"type": "function", "function": function | {"parameters": parameters}})
    calls = []
    for tool in draw(st.lists(st.sampled_from(tools), min_size=1, max_size=3)):
        function = tool["function"]
        fields = function["parameters"]["properties"]
        given = {key: KINDS[field["type"]] for key, field in fields.items()}
        arguments = draw(st.fixed_dictionaries({}, optional=given))
        calls.append(ToolCall(function["name"], arguments))
    return tools, calls


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        yield from keys_of(item)


def is_told_apart(name: str, style: CallStyle, call: ToolCall) -> bool:
    """Whether no other call is written in the same way, as of templates that escape nothing."""
    texts, spelling = [*texts_of(call.arguments)], style.spelling
    if any(special_text(style.tokenizer, text) for text in (call.name, *texts)):
        return False  # it is never sent
    if name.startswith("lfm2_2_5"):
        raw = [text for text in call.arguments.values() if isinstance(text, str)]
        return not any(re.search(r"\\|'\s*(?:[,:)\]}]|$)", text) for text in raw)
    if isinstance(spelling, LiteralSpelling) and spelling.quote not in ("'", '"'):
        return all(re.fullmatch(r"[\w$.-]+", key) for key in keys_of(call.arguments))
    if isinstance(spelling, TagSpelling):
        marks = [spelling.key_mark, *re.findall(r"</\S+?>", spelling.tail)]
        ends = [text for text in texts if spelling.value_end.strip() in text]
        return not any(mark.strip() in text for mark in marks for text in ends)
    return True


def named(calls: Sequence[ToolCall]) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.arguments) for call in calls]


@cache
def templates_with_calls() -> list[str]:
    """The templates of the table in docs/how-to/turns-and-tools.md with a spelling."""
    found = []
    for name in tool_templates():
        with suppress(ChatFormError):
            call_style(tokenizer_with(name))
            found.append(name)
    return found


ROUND_TRIP = {
    "made": tools_and_calls(),
    "content": st.sampled_from(["", "Let me see.", 'It\'s "x" [1] {y}\nb: 5']),
    "cut": st.floats(0, 1),
}


def check_round_trip(name: str, made: Made, content: str, cut: float) -> None:
    """Calls that a template writes are read as they were, and of a part of the text the first."""
    tokenizer, (tools, calls) = tokenizer_with(name), made
    style = call_style(tokenizer)
    calls = calls if style.turns.several else calls[:1]
    assume(all(is_told_apart(name, style, call) for call in calls))
    message = Reply(content, None, tuple(calls)).message()
    text, opened = turn_of(tokenizer, message, tools)

    reply = read_reply(style, text, tools, opened=opened)
    assert named(reply.calls) == named(calls)
    assert reply.faults == ()
    if content and text.startswith(content):
        assert reply.content == content

    cut_off = read_reply(style, text[: int(cut * len(text))], tools, opened=opened)
    assert named(cut_off.calls) == named(calls[: len(cut_off.calls)])


@needs_trl
@settings(max_examples=60)
@given(name=st.sampled_from(sorted(SPELLINGS)), **ROUND_TRIP)
def test_read_reply_of_any_rendered_calls_gives_them_back(
    name: str, made: Made, content: str, cut: float
) -> None:
    check_round_trip(name, made, content, cut)


@pytest.mark.slow
@needs_trl
@settings(max_examples=2_000)
@given(data=st.data(), **ROUND_TRIP)
def test_read_reply_of_calls_of_any_template_gives_them_back(
    data: st.DataObject, made: Made, content: str, cut: float
) -> None:
    name = data.draw(st.sampled_from(templates_with_calls()))
    check_round_trip(name, made, content, cut)
