"""A model's conventions: how its chats end, how it thinks, and what its template reads.

They are found by rendering its chat template: two turns, to see what ends them; prompts with
thinking on and off; a thought, to see its tags.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date, datetime
from itertools import takewhile
from typing import Any

from jinja2 import TemplateError, meta
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import PreTrainedTokenizerBase

from chatforms.messages import THOUGHT_FIELDS, Message
from chatforms.rendering import by_template, render_chat
from strictgrade.thoughts import (
    ThoughtTags,
    closing_spellings,
    open_thought,
    split_thought,
)

# Texts of trial chats, which occur in no template.
_QUESTIONS = "trial-question-1", "trial-question-2"
_ANSWERS = "trial-answer-1", "trial-answer-2"
_THOUGHT = "trial-thought"

_SWITCH = re.compile(r"think|thought|reason", re.IGNORECASE)
"""Words in the names of variables by which templates switch thinking."""

_MARK = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z_]{2,40}\]|◁[^◁▷\s]{1,60}▷")
"""A mark of a chat template, such as <|im_end|> and [/INST]."""

_CLOCK = "strftime_now"
"""The function by which a template reads the clock."""

# A template raises what its expressions raise.
RENDERING_ERRORS = (
    *(TemplateError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError),
)


@dataclass(frozen=True, kw_only=True)
class Thinking:
    """How a chat template thinks. Pairs have the value with thinking off, then with thinking on."""

    tags: tuple[ThoughtTags, ...]  # of thoughts
    switches: tuple[str, ...]  # variables by which the template switches thinking
    can_switch_thinking: bool
    opened: tuple[str, str]  # the end of a prompt that leaves a thought open; "" if it leaves none
    closed: tuple[bool, bool]  # whether the prompt closes a thought, as Qwen3's with thinking off
    before_reference: tuple[str, str]  # closes that thought, or opens the answer's channel


@dataclass(frozen=True, kw_only=True)
class Conventions(Thinking):
    """What the tokenizer, the chat template and the generation settings of a model agree on."""

    end_of_turn: str  # what the template writes after an assistant's turn; "" for nothing
    end_of_turn_ids: tuple[int, ...]
    end_ids: tuple[int, ...]  # each ends a completion, sorted
    end_tokens: tuple[str, ...]  # their texts
    date: str | None  # what the template reads from the clock, as YYYY-MM-DD; None if it does not

    def table(self) -> dict[str, Any]:
        """Return the conventions as JSON stores them."""
        table: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return table

    def line(self) -> str:
        """Return the conventions in one line."""
        turn = self.end_of_turn.strip() or "nothing"
        parts = [f"end of turn {turn}", f"ends by {' '.join(self.end_tokens)}", self._thinking()]
        if self.date:
            parts.append(f"date fixed at {self.date}")
        return " ".join(", ".join(parts).split())

    def _thinking(self) -> str:
        if self.can_switch_thinking:
            text = "thinking can be switched"
        elif all(self.opened):
            return f"thinking cannot be switched off: the prompt opens {self.opened[0].strip()}"
        elif self.tags:
            text = "thinking cannot be switched"
        else:
            return "no thinking"
        if self.tags:
            text += f" ({', '.join(map(str, self.tags))})"
        return text

    def warnings(self, *, thinking: bool) -> list[str]:
        """Return what differs from what is requested: with thinking off, and in ends of turns."""
        lines = []
        if not thinking and self.opened[False]:
            lines.append(
                f"thinking cannot be switched off: the chat template opens "
                f"{self.opened[False].strip()} whatever is requested, so the model thinks all "
                f"the same; a reference solution follows the closed thought"
            )
        ends = {*self.end_ids} & {*self.end_of_turn_ids}
        if self.end_of_turn_ids and not ends:
            lines.append(
                f"the chat template ends a turn by {self.end_of_turn!r}, which is "
                f"{len(self.end_of_turn_ids)} tokens and none of the model's end tokens "
                f"({' '.join(self.end_tokens)}): completions end by these alone"
            )
        return lines


def read_conventions(
    tokenizer: PreTrainedTokenizerBase, declared_ends: Sequence[int], day: str | None = None
) -> Conventions:
    """Return the conventions of a tokenizer and its chat template.

    ``declared_ends`` are the end tokens of the model's generation settings and of the tokenizer.
    ``day`` is the date for a template that reads the clock, as YYYY-MM-DD; None is the current day.
    """
    template = _Template(tokenizer, day)
    turn, turn_ids = _end_of_turn(template, declared_ends)
    ends = {*declared_ends}
    # Base models declare another end token than their template writes (C33).
    if turn_ids and _is_end_token(template, turn_ids[-1]):
        ends.add(turn_ids[-1])
    return Conventions(
        **vars(read_thinking(tokenizer, day)),
        end_of_turn=turn,
        end_of_turn_ids=turn_ids,
        end_ids=tuple(sorted(ends)),
        end_tokens=tuple(str(tokenizer.convert_ids_to_tokens(i)) for i in sorted(ends)),
        date=(day or today()) if reads_clock(tokenizer) else None,
    )


def read_thinking(tokenizer: PreTrainedTokenizerBase, day: str | None = None) -> Thinking:
    """Return how the chat template thinks; ``day`` as for ``read_conventions``."""
    template, tags = _Template(tokenizer, day), thought_tags(tokenizer)
    off, on = (open_thought(template.header(thinking=mode), tags) for mode in (False, True))
    differs = template.prompt(thinking=False) != template.prompt(thinking=True)
    return Thinking(
        tags=tags,
        switches=tuple(_switches(tokenizer)),
        # Where the prompt opens a thought all the same, the model thinks.
        can_switch_thinking=differs and not off,
        opened=(off, on),
        closed=(
            _closes_thought(template.prompt(thinking=False), tags),
            _closes_thought(template.prompt(thinking=True), tags),
        ),
        before_reference=(
            _before_reference(template, tags, off, thinking=False),
            _before_reference(template, tags, on, thinking=True),
        ),
    )


def missing_header(tokenizer: PreTrainedTokenizerBase, day: str | None = None) -> str:
    """Return what begins an assistant's turn where add_generation_prompt does not add it.

    "" where a prompt is complete, as that of Mistral's template, whose replies have no header.
    """
    template = _Template(tokenizer, day)
    prompt, turn = template.prompt(thinking=True), template.chat([_user(0), _assistant(0)])
    if prompt != template.chat([_user(0)]):
        return ""
    written, found, _ = turn.removeprefix(prompt).partition(_ANSWERS[0])
    if not turn.startswith(prompt) or not found:
        return ""
    for pair in thought_tags(tokenizer):  # an empty thought is the reply's own
        opening, closing = re.escape(pair.opening), re.escape(pair.closing)
        written = re.sub(rf"(?s)(?:{opening}.*?)?{closing}|{opening}", "", written)
    return written.strip()


def keeps_turns(tokenizer: PreTrainedTokenizerBase, *, thinking: bool) -> bool:
    """Return whether a later turn's prompt begins with an earlier one and what followed it.

    A model that thinks is taken to write a thought, which templates may drop from earlier turns.
    """
    template = _Template(tokenizer)
    prompt, tags = template.prompt(thinking=thinking), thought_tags(tokenizer)
    opened, answer = "", _ANSWERS[0]
    if thinking and tags:
        opened = open_thought(_header(prompt), tags)
        begun = "" if opened else f"{tags[0].opening}\n"
        answer = f"{begun}{_THOUGHT}\n{tags[0].closing}\n\n{answer}"
    chat = [_user(0), _assistant(0) | {"content": opened + answer}, _user(1)]
    later = template.chat(chat, thinking=thinking, begins_reply=True)
    return later.startswith(prompt + answer)


def template_arguments(
    tokenizer: PreTrainedTokenizerBase, *, thinking: bool, day: str | None = None
) -> dict[str, Any]:
    """Return variables of the chat template: its switches of thinking, and its clock.

    ``day`` is the date that the clock shows, as YYYY-MM-DD; None is today.
    """
    # Qwen3's name. A template that does not read it ignores it.
    arguments: dict[str, Any] = {"enable_thinking": thinking}
    for name, values in _switches(tokenizer).items():
        if values[thinking] is not None:
            arguments[name] = values[thinking]
    return arguments | _clock_arguments(tokenizer, day)


def render_turns(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    thinking: bool,
    day: str | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    begins_reply: bool = False,
) -> str:
    """Return the text of a chat, with what begins a reply if asked for; nothing is checked.

    Raises what the template raises, which is among RENDERING_ERRORS, and TemplateLimitError.
    """
    arguments = template_arguments(tokenizer, thinking=thinking, day=day)
    if tools:
        arguments["tools"] = list(tools)
    return render_chat(tokenizer, messages, add_generation_prompt=begins_reply, **arguments)


def reads_clock(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the chat template reads the clock."""
    return _CLOCK in _variables(tokenizer)


def today() -> str:
    """Return the current date as YYYY-MM-DD."""
    return date.today().isoformat()


def _clock_arguments(tokenizer: PreTrainedTokenizerBase, day: str | None) -> dict[str, Any]:
    # Midnight of a day, in place of transformers' own clock.
    if reads_clock(tokenizer):
        return {_CLOCK: datetime.fromisoformat(day or today()).strftime}
    return {}


def _template_text(tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.get_chat_template())


@by_template()
def _variables(tokenizer: PreTrainedTokenizerBase) -> frozenset[str]:
    """Variables that the chat template reads without setting them."""
    # A tag of transformers' own, which marks the assistant's text and prints it unchanged.
    plain = re.sub(r"{%-?\s*(?:end)?generation\s*-?%}", "", _template_text(tokenizer))
    environment = ImmutableSandboxedEnvironment(extensions=[loopcontrols])
    return frozenset(meta.find_undeclared_variables(environment.parse(plain)))


@dataclass(frozen=True)
class _Template:
    """A tokenizer's chat template, to try chats with."""

    tokenizer: PreTrainedTokenizerBase
    day: str | None = None

    def chat(
        self, messages: Sequence[Message], *, thinking: bool = True, begins_reply: bool = False
    ) -> str:
        """The text of a chat; "" where the template refuses it."""
        with suppress(*RENDERING_ERRORS):
            return render_turns(
                self.tokenizer, messages, thinking=thinking, day=self.day, begins_reply=begins_reply
            )
        return ""

    def prompt(self, *, thinking: bool) -> str:
        """The text of a prompt up to the reply."""
        return self.chat([_user(0)], thinking=thinking, begins_reply=True)

    def header(self, *, thinking: bool) -> str:
        """The text between a user's message and the reply."""
        return _header(self.prompt(thinking=thinking))

    def thought(self) -> tuple[str, str, str]:
        """The field of a message for its thought, and what is before and behind the thought.

        All are "" where the template shows no thought.
        """
        for name in THOUGHT_FIELDS:
            turn = self.chat([_user(0), {**_assistant(0), name: _THOUGHT}])
            before, found, after = _header(turn).partition(_THOUGHT)
            if found and _ANSWERS[0] in after:
                return name, before, after.partition(_ANSWERS[0])[0]
        return "", "", ""


def _user(number: int) -> Message:
    return {"role": "user", "content": _QUESTIONS[number]}


def _assistant(number: int) -> Message:
    return {"role": "assistant", "content": _ANSWERS[number]}


def _header(text: str) -> str:
    """What follows the first question."""
    return text.partition(_QUESTIONS[0])[2]


@by_template()
def _switches(tokenizer: PreTrainedTokenizerBase) -> Mapping[str, tuple[Any, Any]]:
    """The variables that switch thinking, with their values for off and on; None leaves it unset.

    They are those with a word of ``_SWITCH`` in their name whose values change a prompt.
    """
    found = {}
    for name in sorted(_variables(tokenizer)):
        values = _values(tokenizer, name) if _SWITCH.search(name) else None
        if values is not None:
            found[name] = values
    return found


def _values(tokenizer: PreTrainedTokenizerBase, name: str) -> tuple[Any, Any] | None:
    """The values of a variable that switch thinking off and on; None if it is no switch."""
    clock = _clock_arguments(tokenizer, None)

    def prompt(value: Any) -> str:
        chosen = {} if value is None else {name: value}
        with suppress(*RENDERING_ERRORS):
            options = {"add_generation_prompt": True, **clock, **chosen}
            return render_chat(tokenizer, [_user(0)], **options)
        return ""

    plain = prompt(None)
    off, on = prompt(False), prompt(True)
    # A variable whose value is printed, as in "Reasoning: high", changes a prompt and is no switch.
    prints_value = off.count("False") > plain.count("False") or on.count("True") > plain.count(
        "True"
    )
    if off and on and off != on and not prints_value:
        # Of a variable such as no_thinking, True is off.
        if _closes_thought(on) and not _closes_thought(off):
            return (True, False)
        return (False, True)
    for value in (0, "none"):  # of a budget, of an effort
        if _closes_thought(prompt(value)) and not _closes_thought(plain):
            return value, None
    return None


def _closes_thought(prompt: str, tags: Sequence[ThoughtTags] = ()) -> bool:
    thought, answer = split_thought(_header(prompt), tags)
    return bool(thought) and answer is not None


@by_template()
def thought_tags(tokenizer: PreTrainedTokenizerBase) -> tuple[ThoughtTags, ...]:
    """Return tags of thoughts: of a turn, of what a prompt opens or closes, of the vocabulary."""
    template = _Template(tokenizer)
    _, before, after = template.thought()
    opening, closing = open_thought(before).strip(), after.strip()
    if not opening:  # another spelling: what a turn without a thought does not have
        plain = _header(template.chat([_user(0), _assistant(0)])).partition(_ANSWERS[0])[0]
        start = shared = common_length(before, plain)
        for mark in _MARK.finditer(before):
            if mark.end() > shared:
                start = min(shared, mark.start())  # a mark that is shared in part is whole
                break
        opening = before[start:].strip()
    found = []
    if opening and closing:
        found.append(ThoughtTags(opening, closing))
    for thinking in (False, True):
        found += _tags_in_header(template, template.header(thinking=thinking))
    if not found:
        for token in _vocabulary(template):
            if open_thought(token):
                found += _tags_of(token, template)
    return tuple(dict.fromkeys(found))


@by_template()
def thought_field(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the field of a message in which the template looks for its thought, or ""."""
    return _Template(tokenizer).thought()[0]


def _vocabulary(template: _Template) -> list[str]:
    """Tokens that are more than pieces of words."""
    return [str(token) for token in template.tokenizer.added_tokens_decoder.values()]


def _tags_in_header(template: _Template, header: str) -> list[ThoughtTags]:
    """The tags of the thought that a prompt opens, or opens and closes; none without."""
    for opening in filter(open_thought, _MARK.findall(header)):
        rest = header.partition(opening)[2]
        for mark in _MARK.findall(rest):
            if _closes(opening, mark):
                return [ThoughtTags(opening, mark)]
        return _tags_of(opening, template)
    return []


def _tags_of(opening: str, template: _Template) -> list[ThoughtTags]:
    """An opening tag with its closing one, by vocabulary, template, or else its spelling."""
    spellings, text = closing_spellings(opening), _template_text(template.tokenizer)
    closings = [token for token in _vocabulary(template) if _closes(opening, token)]
    closings += [spelling for spelling in spellings if spelling in text]
    return [ThoughtTags(opening, closing) for closing in [*closings, *spellings][:1]]


def _closes(opening: str, mark: str) -> bool:
    """True if a mark closes the thought that the opening tag opens."""
    return not open_thought(opening + mark) or mark in closing_spellings(opening)


def _end_of_turn(template: _Template, declared_ends: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """Text and tokens that the template writes after an assistant's turn, up to the ending token.

    The ending token is the first that ends a completion anyway, or else the last special one of
    what follows every turn.
    """
    tokenizer = template.tokenizer
    special = _special_ids(tokenizer)
    after_first, after_last = _after_turns(template, {*declared_ends})
    last = _encode(tokenizer, after_last)
    ids = last[: common_length(last, _encode(tokenizer, after_first))]
    tokens = [i for i in ids if i in special][-1:]
    if not tokens:  # the last turn ends in another way, or is the only one
        ids = last
        tokens = [i for i in ids if i in special][:1]
    ends = [i for i in ids if i in declared_ends][:1] or tokens
    if ends:
        ids = ids[: ids.index(ends[0]) + 1]
    else:  # words
        shared = common_length(after_last, after_first or after_last)
        ids = _encode(tokenizer, after_last[:shared].rstrip())
    text = str(tokenizer.decode(ids, skip_special_tokens=False))
    if text.strip():
        return (text, tuple(ids))
    return ("", ())


def _after_turns(template: _Template, declared_ends: set[int]) -> tuple[str, str]:
    """What follows the first assistant's turn, and what follows the last one.

    Where nothing follows the last one, what the first one has before the user's turn.
    """
    turns = [_user(0), _assistant(0), _user(1), _assistant(1)]
    text = template.chat(turns)
    if any(turn["content"] not in text for turn in turns):  # a template for a single turn
        return "", template.chat(turns[:2]).partition(_ANSWERS[0])[2]
    before, _, rest = text.partition(_QUESTIONS[0])
    after_first = rest.partition(_ANSWERS[0])[2].partition(_QUESTIONS[1])[0]
    after_last = rest.partition(_ANSWERS[1])[2]
    if after_last.strip():
        return after_first, after_last
    if not declared_ends.isdisjoint(_encode(template.tokenizer, after_first)):
        return after_first, after_first
    # What precedes the user's first turn begins the second one, too.
    header = common_length(before[::-1], after_first[::-1])
    return "", after_first[: len(after_first) - header]


def common_length(first: Sequence[object], second: Sequence[object]) -> int:
    """Return the number of elements with which both sequences begin."""
    pairs = zip(first, second, strict=False)
    return len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def _special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Tokens that are more than pieces of words."""
    return {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids}


def _is_end_token(template: _Template, token: int) -> bool:
    """True for a special token, unless it also ends the thought within a turn."""
    tokenizer = template.tokenizer
    after_thought = template.thought()[2]
    return token in _special_ids(tokenizer) and token not in _encode(tokenizer, after_thought)


def _before_reference(
    template: _Template, tags: Sequence[ThoughtTags], opened: str, *, thinking: bool
) -> str:
    """What a turn has between its prompt and an answer without a thought.

    It closes the thought that the prompt opens, or opens the answer's channel. A thought that is
    opened and closed is left out: the prompt leaves it to the student.
    """
    prompt = template.prompt(thinking=thinking)
    turn = template.chat([_user(0), _assistant(0)], thinking=thinking)
    written, found, _ = turn.removeprefix(prompt).partition(_ANSWERS[0])
    is_continued = turn.startswith(prompt) and bool(found)
    if not opened:
        opens = any(open_thought(mark, tags) for mark in _MARK.findall(written))
        if is_continued and written.strip() and not opens:
            return written
        return ""
    if is_continued and not open_thought(opened + written, tags):
        return written
    after_thought = template.thought()[2]
    if after_thought and not open_thought(opened + after_thought, tags):
        return after_thought
    for pair in tags:
        if opened.startswith(pair.opening):
            # After Qwen3's "<think>\n" this is its own empty thought.
            return f"\n{pair.closing}\n\n"
    return ""
