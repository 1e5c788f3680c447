"""Problems of a run: validation of their rows, and the batches of each step.

A problem is a text, or a chat whose last assistant turn is the solution. Texts reach the prompts
exactly as written. Prompt lengths need the model's tokenizer and are checked where prompts are
built (paint.training.prompt_filter).
"""

import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from paint.config.schema import DataConfig
from paint.core.demo_files import problems_path
from paint.core.errors import cut
from paint.core.storage import digest
from paint.data.chats import (
    is_chat,
    is_learned,
    is_marked_learned,
    json_value,
    read_chat,
    read_conversation_messages,
    require_unicode,
)
from paint.data.formats import convert_row, describe_formats, find_column
from paint.data.readers import BadRow, Number, Row, not_text, read_rows, shorten
from paint.data.readers import DataError as DataError

ROLES = ("id", "problem", "solution", "answer")
SOURCE = "data_source"
"""Field of a row that holds the name of its source in a mixture."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A training example: x, y* and the gold answer, as text (paper: section 'Background').

    Attributes:
        problem: its text; of a chat, its last user turn. solution, answer: "" where the row has
        none; ``also`` are further accepted answers. row: row number in the source, from 1; 0 if
        unknown. turns: of a chat, role and text of its turns up to that of the user. conversation:
        with data.turns "all", the messages after these, the assistant's first and last. fields: all
        fields of the row by name. source: in a mixture, the name of its source, which its id begins
        with; "" elsewhere.
    """

    problem: str
    solution: str
    answer: str
    id: str
    also: tuple[str, ...] = ()
    row: int = field(default=0, compare=False)
    turns: tuple[tuple[str, str], ...] = ()
    conversation: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)
    fields: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    source: str = ""

    @property
    def name(self) -> str:
        """The id as messages have it."""
        return cut(self.id)

    @property
    def answers(self) -> tuple[str, ...]:
        """All accepted answers; () if the row has none."""
        return (self.answer, *self.also) if self.answer else ()


@dataclass(frozen=True, slots=True)
class ValidRows:
    """Problems of the valid rows in file order, and the number of skipped rows by reason."""

    problems: list[Problem]
    skipped: dict[str, int]
    notes: tuple[str, ...] = ()


NEEDS_BOTH = {"solution": "", "answer": ""}  # fields, without what needs them

DATA_FIELD = "set --data.{role}-field to the one that holds the {role}"
OTHER_COLUMNS = (
    "name a file with other columns as FILE:problem,answer or FILE:problem,answer,id, "
    "by its own columns"
)
"""Hints in messages about a missing column: of training data, and of an evaluation set."""


def read_problems(
    data: DataConfig, *, needs: Mapping[str, str] = NEEDS_BOTH, solutions: bool = True
) -> ValidRows:
    """Read the problems of `data.path`: a file, a hub data set, or "demo"; or of several.

    A valid row has problem, solution and answer as text that is not blank (an answer or an id may
    be a number, several accepted answers are a list, and a problem may be a chat). It repeats
    neither the problem (white space aside) nor the id of an earlier valid row. Without an id
    column, its id is the row number. With `data.limit`, reading stops at that many valid rows.

    Of several sources the problems follow each other, ids begin with the source's name, a problem
    is in one of them only, and the limit is that of each.

    Args:
        needs: the fields that every problem needs, and what needs them (`Config.needed_fields`).
            Solution and answer are "" where they are not needed, and missing, null or blank.
        solutions: False for an evaluation set, which needs no solutions and may hold a problem
            twice, since published sets are evaluated unchanged.

    Raises DataError if the source cannot be read or has no valid row, or, with on_bad_row "error",
    a row is bad.
    """
    read = Earlier()
    parts = [
        _read_source(data.of(source.path), source.name, read, needs, solutions)
        for source in data.sources
    ]
    return ValidRows(
        [problem for part in parts for problem in part.problems],
        {reason: count for part in parts for reason, count in part.skipped.items()},
        tuple(note for part in parts for note in part.notes),
    )


def _read_source(
    data: DataConfig, name: str, read: "Earlier", needs: Mapping[str, str], solutions: bool
) -> ValidRows:
    source = problems_path(data.place)
    problems: list[Problem] = []
    skipped: dict[str, int] = {}
    formats: Counter[str] = Counter()
    rows = read_rows(source)
    valid = validate_rows(
        rows, data, needs=needs, solutions=solutions, source=name, read=read, formats=formats
    )
    for row, problem in valid:
        if isinstance(problem, Problem):
            problems.append(problem)
            # The rest of a long file, or of a stream from the hub, is not read.
            if len(problems) == data.limit:
                break
        elif data.on_bad_row == "error":
            skip = " or pass --data.on-bad-row skip" if solutions else ""
            raise DataError(f"{source} row {row}: {problem}; fix the row{skip}")
        else:
            skipped[problem.reason] = skipped.get(problem.reason, 0) + 1

    if not problems and skipped:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in skipped.items())
        raise DataError(f"{source} has no valid row ({reasons})")
    if not problems:
        raise DataError(f"{source} is empty; it must hold one problem a row")
    prefix = f"{name}: " if name else ""
    return ValidRows(
        problems,
        {f"{prefix}{reason}": count for reason, count in skipped.items()},
        tuple(f"{prefix}{note}" for note in describe_formats(formats)),
    )


Earlier = dict[tuple[str, str], str]
"""The places of rows by the ids and the problems that they have."""


def validate_rows(
    rows: Iterable[Row],
    data: DataConfig,
    *,
    needs: Mapping[str, str] = NEEDS_BOTH,
    solutions: bool = True,
    source: str = "",
    read: Earlier | None = None,
    formats: Counter[str] | None = None,
) -> Iterator[tuple[int, Problem | BadRow]]:
    """Yield the number of each row with its problem or its error, as for `read_problems`.

    ``source`` is the name of the rows' source in a mixture, ``read`` what sources before it have,
    and ``formats`` counts the rows of each format.
    """
    if not solutions:
        # An evaluation shows no solution to anyone.
        needs = {name: why for name, why in needs.items() if name != "solution"}
    first_rows = {} if read is None else read
    formats = Counter() if formats is None else formats
    for row, fields in rows:
        found: Problem | BadRow
        name, keys = "", []
        try:
            if isinstance(fields, BadRow):
                raise fields
            fields, name = convert_row(fields, data)
            problem = _problem(fields, row, data, needs, solutions)
            if source:
                problem = replace(problem, id=f"{source}/{problem.id}", source=source)
            # Copies of a problem differ in white space, such as line breaks.
            keys = [("id", problem.id)]
            if solutions:
                text = " ".join(text for _, text in problem.turns) or problem.problem
                keys.insert(0, ("problem", " ".join(text.split())))
            for role, text in keys:
                if (role, text) in first_rows:
                    detail = f", {first_rows[role, text]} (value {shorten(text)})"
                    raise BadRow(f"same {role} as an earlier row", detail)
            found = problem
        except BadRow as bad:
            found, keys = bad, []  # the copy of a bad row is no duplicate
        formats[name] += 1
        of_source = f" of {data.place}" if source else ""
        first_rows |= dict.fromkeys(keys, f"row {row}{of_source}")
        yield row, found


def problems_digest(problems: Sequence[Problem]) -> str:
    """Return a digest of the problems and their order: 16 hexadecimal digits."""
    parts: list[str] = []
    for p in problems:
        parts.extend((p.id, p.problem, p.solution, *p.answers))
    # Prompts, contexts and graders may read any other field. A source begins its problems' ids.
    others = [{k: v for k, v in p.fields.items() if k not in ROLES} for p in problems]
    parts += [json.dumps(fields, sort_keys=True, default=str) for fields in others if fields]
    return digest(*parts)[:16]


def to_row(problem: Problem) -> dict[str, Any]:
    """Return a problem as the row that an evaluation stores: all that ``row_of`` needs."""
    answer = list(problem.answers) if problem.also else problem.answer
    row: dict[str, Any] = {"id": problem.id, "problem": problem.problem, "answer": answer}
    if problem.source:
        row[SOURCE] = problem.source
    if problem.solution:
        row["solution"] = problem.solution
    if problem.turns:
        row["turns"] = [list(turn) for turn in problem.turns]
    if problem.fields:
        # A Parquet file has dates and other values that JSON has not.
        row["fields"] = json.loads(json.dumps(dict(problem.fields), default=str))
    return row


def from_row(row: dict[str, Any]) -> Problem:
    """Return the problem of a stored row. Raises KeyError, TypeError or ValueError."""
    answers = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
    answer, *also = dict.fromkeys(map(str, answers))
    return Problem(
        str(row["problem"]),
        str(row.get("solution", "")),
        answer,
        str(row["id"]),
        tuple(also),
        turns=tuple((str(role), str(text)) for role, text in row.get("turns", ())),
        fields=dict(row.get("fields", {})),
        source=str(row.get(SOURCE, "")),
    )


def row_of(problem: Problem) -> dict[str, Any]:
    """Return the fields of a problem, as graders and context functions get them.

    A chat has its turns in `messages`, whatever its column is. In a mixture, `data_source` is the
    name of the problem's source, unless the row has such a column.
    """
    chat = [{"role": role, "content": content} for role, content in problem.turns]
    return {
        **({SOURCE: problem.source} if problem.source else {}),
        **({"messages": chat} if chat else {}),
        **problem.fields,
        "id": problem.id,
        "problem": problem.problem,
        "solution": problem.solution,
        "answer": problem.answer,
        "answers": list(problem.answers),
    }


def batch_indices(count: int, batch_size: int, step: int, seed: int) -> list[int]:
    """Return the indices, in [0, count), of the `batch_size` problems of step `step` (from 0).

    Epochs are concatenated seeded permutations of all problems; a step may span several.

    Source: Algorithm 'complete adaptive privileged re-scoring recipe', 'Sample a minibatch'.
    """
    first, end = step * batch_size, (step + 1) * batch_size
    epochs = range(first // count, (end - 1) // count + 1)
    sequence = [index for epoch in epochs for index in _permutation(count, seed, epoch)]
    skip = first - epochs[0] * count
    return sequence[skip : skip + batch_size]


@lru_cache(maxsize=32)  # a mixture asks for the same ones at each problem
def _permutation(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    # random() is the same in every Python version, shuffle() is not.
    rng = random.Random(f"{seed}/{epoch}")
    keys = [rng.random() for _ in range(count)]
    return tuple(sorted(range(count), key=keys.__getitem__))


def _chat_field(fields: Mapping[str, object], data: DataConfig) -> str:
    """The column of the problem, or else of the messages; "" for neither."""
    columns = [find_column(fields, name) for name in (data.problem_field, "messages")]
    found = [column for column in columns if column is not None]
    # In Arrow files a row has null in the columns of other rows.
    return next((column for column in found if fields[column] is not None), [*found, ""][0])


def _problem(
    fields: dict[str, Any], row: int, data: DataConfig, needs: Mapping[str, str], solutions: bool
) -> Problem:
    hint = DATA_FIELD if solutions else OTHER_COLUMNS
    columns = (data.problem_field, data.solution_field, data.answer_field, data.id_field)
    fields = with_nested(fields, [*columns, *needs])
    if is_chat(fields.get("tools")):  # schemas: what JSON does not have is refused by row
        json_value(fields["tools"], "tools")

    place = _chat_field(fields, data)
    turns: list[tuple[str, str]] = []
    conversation: list[Mapping[str, Any]] = []
    solution = ""
    chat = fields.get(place)
    if is_chat(chat) and data.turns == "all":
        turns, conversation = _conversation(chat, place)
        contents = [m["content"] for m in conversation if is_learned(m)]
        solution = "\n\n".join(text for text in contents if text)
    elif is_chat(chat):
        turns, solution = _chat(chat, place)
    if turns:
        problem = turns[-1][1]
    elif place and find_column(fields, data.problem_field) is None:
        detail = f" with a role and a content (value {shorten(fields[place])})"
        raise BadRow(f'field "{place}" is no list of messages', detail)
    else:
        problem = _text(fields, data.problem_field, "problem", hint)
    if not solution:  # the reply of a chat stands before a column of solutions
        solution = _solution(fields, data.solution_field, needs, hint)

    # Fields get the names that contexts use, whatever their case in the file.
    for column in needs.keys() - NEEDS_BOTH.keys():  # of contexts, and the tests of code
        value = fields.get(find_column(fields, column) or "")
        if isinstance(value, list) and value and all(isinstance(line, str) for line in value):
            fields = fields | {column: "\n".join(value)}
        fields = fields | {column: _text(fields, column, column, f"{needs[column]} needs it")}
    answer, *also = _texts_of(fields, "answer", data.answer_field, needs, hint)
    # The default id column may be missing, one that was configured by name may not.
    is_numbered = data.id_field == "id" and find_column(fields, "id") is None
    name = str(row) if is_numbered else _text(fields, data.id_field, "id", hint)
    return Problem(
        problem, solution, answer, name, tuple(also), row, tuple(turns), tuple(conversation), fields
    )


def _solution(fields: dict[str, Any], name: str, needs: Mapping[str, str], hint: str) -> str:
    """The solution in a column: a text, or a reply alone, as of TRL's prompt/completion."""
    reference = fields.get(find_column(fields, name) or "")
    if not is_chat(reference):
        return _texts_of(fields, "solution", name, needs, hint)[0]
    speaker, solution = read_chat(reference, name)[-1]
    _require_learned(reference, name)
    if speaker != "assistant" or not solution.strip():
        detail = f" (value {shorten(reference)}); cut it there"
        raise BadRow(f'field "{name}" is no chat that ends in a reply', detail)
    return solution


def _texts_of(
    fields: dict[str, Any], role: str, name: str, needs: Mapping[str, str], hint: str
) -> list[str]:
    """The texts of a column, several of an answer; [""] where it is blank and nothing needs it."""
    column = find_column(fields, name)
    value = None if column is None else fields[column]
    is_blank = value is None or (isinstance(value, str) and not value.strip())
    if role not in needs and is_blank:
        return [""]
    if needs.get(role):
        hint = f"{needs[role]} needs it; {hint}"
    if role != "answer" or not isinstance(value, list):
        return [_text(fields, name, role, hint)]
    if not value:
        raise BadRow(f'field "{name}" is empty', " (value [])")
    return list(dict.fromkeys(_text({name: one}, name, role, hint) for one in value))


def _chat(messages: Sequence[Mapping[str, Any]], name: str) -> tuple[list[tuple[str, str]], str]:
    """The turns of a chat up to the last user's, and the assistant's reply to it ("" for none)."""
    turns = read_chat(messages, name)
    roles = ", ".join(role for role, _ in turns)
    reply = ""
    if turns[-1][0] == "assistant":
        _require_learned(messages, name)
        reply = turns.pop()[1]
    if not turns or turns[-1][0] != "user":
        detail = f" or in the reply to one (its roles: {roles}); cut it there"
        raise BadRow(f'field "{name}" is no chat that ends in a turn of the user', detail)
    return turns, reply


def _require_learned(messages: Sequence[Mapping[str, Any]], name: str) -> None:
    if not is_marked_learned(messages[-1], name, len(messages)):
        detail = f": the last message is {shorten(messages[-1])}; leave the row out"
        raise BadRow(f'field "{name}" has no turn to learn', detail)


def _conversation(
    messages: Sequence[Mapping[str, Any]], name: str
) -> tuple[list[tuple[str, str]], list[Mapping[str, Any]]]:
    """The turns of a chat before its first assistant turn, and the messages from that one on."""
    roles = [message.get("role") for message in messages]
    first = roles.index("assistant") if "assistant" in roles else len(roles)
    opening = read_chat(messages[:first], name) if first else []
    if not opening or opening[-1][0] != "user" or roles[-1] != "assistant":
        detail = (
            f" and ends in one of the assistant (its roles: {', '.join(map(str, roles))}); cut it "
            f"there, or set data.turns last"
        )
        raise BadRow(f'field "{name}" is no chat that begins with a turn of the user', detail)
    later = read_conversation_messages(messages[first:], name, first)
    return opening, later


def with_nested(fields: dict[str, object], names: Iterable[str]) -> dict[str, object]:
    """Return the fields, and by full names, as reward_model.ground_truth, those within objects."""
    found = dict(fields)
    for name in names:
        if "." in name and name not in fields:
            value: object = fields
            for part in name.split("."):
                column = find_column(value, part) if isinstance(value, dict) else None
                if not isinstance(value, dict) or column is None:
                    break
                value = value[column]
            else:
                found[name] = value
    return found


def _text(fields: dict[str, object], field_name: str, role: str, column_hint: str) -> str:
    name = find_column(fields, field_name)
    if name is None:
        names: list[str] = []
        for column, inner in fields.items():
            names += [f"{column}.{key}" for key in inner] if isinstance(inner, dict) else [column]
        row = f"fields of the row: {', '.join(names) or 'none'}"
        detail = f" ({row}); {column_hint.format(role=role)}"
        raise BadRow(f'field "{field_name}" is missing', detail)

    value = fields[name]
    # Lists and objects of Parquet have plain numbers.
    if isinstance(value, int | float) and type(value) is not bool and math.isfinite(value):
        value = Number(value)
    if not isinstance(value, str) or (isinstance(value, Number) and role not in ("answer", "id")):
        raise not_text(name, value)
    if not value.strip():
        raise BadRow(f'field "{name}" is empty', f" (value {shorten(value)})")

    require_unicode(value, name)
    return str(value)
