"""Problems of a run: validation of their rows, and the batches of each step.

`read_problems` reads the rows of a file or of a hub data set (paint.data.readers). Rows with
missing, invalid or repeated content are refused, or skipped and counted.

`batch_indices` returns the problems of an optimizer step. It is a pure function of seed and step,
so a resumed run sees the same data.

A problem is a text, or a chat whose last assistant turn is the solution; with `data.turns` "all" a
chat is a problem for each of its replies. Texts reach the prompts exactly as written. Prompt
lengths need the model's tokenizer and are checked where prompts are built
(paint.training.prompt_filter).
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeGuard

from paint.config.schema import DataConfig
from paint.core.storage import digest
from paint.data.formats import convert_rows, describe_formats
from paint.data.readers import (
    BadRow,
    Number,
    Row,
    describe_separator,
    kind_of,
    read_rows,
    shorten,
)
from paint.data.readers import DataError as DataError
from paint.demo.files import problems_path
from paint.grading.contract import Item
from paint.grading.thoughts import ThoughtTags

ROLES = ("id", "problem", "solution", "answer")
LABELS = ("level", "subject")
"""Columns by which an evaluation groups problems, each in a separate table."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A training example: x, y* and the gold answer, as text (paper: section 'Background').

    Attributes:
        problem: its text; of a chat, its last user turn.
        solution, answer: "" where the row has none.
        also: further accepted answers.
        labels: level and subject as (name, value), if the data have them.
        row: row number in the source, from 1; 0 if unknown.
        turns: of a chat, role and text of its turns up to that of the user.
        fields: all fields of the row by name.
    """

    problem: str
    solution: str
    answer: str
    id: str
    also: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    row: int = field(default=0, compare=False)
    turns: tuple[tuple[str, str], ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def answers(self) -> tuple[str, ...]:
        """All accepted answers; () if the row has none."""
        if self.answer:
            return (self.answer, *self.also)
        return ()


@dataclass(frozen=True, slots=True)
class ValidRows:
    """Problems of the valid rows in file order, and the number of skipped rows by reason.

    ``notes`` say how the source was read, where that was found out.
    """

    problems: list[Problem]
    skipped: dict[str, int]
    notes: tuple[str, ...] = ()


NEEDS_BOTH = {"solution": "", "answer": ""}
"""Both fields that a problem may lack, without what needs them."""

USUAL_COLUMNS = {
    "problem": ("question", "query", "prompt", "input", "problem_statement"),
    "solution": ("response", "output", "completion", "reference", "rationale", "reasoning"),
    "answer": ("gold", "label", "target", "final_answer", "ground_truth", "expected_answer"),
    "id": ("uuid", "key", "index"),
}
"""Other names that columns often have, by role; a message proposes them."""

DATA_FIELD = "set --data.{role}-field to the one that holds the {role}"
OTHER_COLUMNS = (
    "name a file with other columns as FILE:problem,answer or FILE:problem,answer,id, "
    "by its own columns"
)
"""Hints in messages about a missing column: of training data, and of an evaluation set."""


def read_problems(
    data: DataConfig,
    *,
    needs: Mapping[str, str] = NEEDS_BOTH,
    solutions: bool = True,
) -> ValidRows:
    """Read the problems of `data.path`: a JSONL, CSV or Parquet file, a hub data set, or "demo".

    A valid row has problem, solution and answer as text that is not blank (an answer or an id may
    be a number, several accepted answers are a list, and a problem may be a chat). It repeats
    neither the problem (white space aside) nor the id of an earlier valid row. Without an id
    column, its id is the row number. With `data.limit`, reading stops at that many valid rows.

    Without `solutions` the source is an evaluation set: a solution that is missing, null or blank
    becomes "", a problem may occur twice (published sets are evaluated unchanged), and a list of
    accepted answers may also be in a column `answers`.

    Args:
        data: the source, its columns, and the action on a bad row.
        needs: the fields that every problem needs, and for messages what needs them
            (`Config.needed_fields`). Solution and answer are "" where they are not needed, and
            missing, null or blank.
        solutions: False for an evaluation set.

    Raises:
        DataError: the source cannot be read or has no valid row, or, with on_bad_row "error", a row
            is bad.
    """
    source = problems_path(data.path)
    problems: list[Problem] = []
    skipped: dict[str, int] = {}
    formats: Counter[str] = Counter()
    rows = convert_rows(read_rows(source), data, formats)
    for row, problem in validate_rows(rows, data, needs=needs, solutions=solutions):
        if isinstance(problem, Problem):
            problems.append(problem)
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
    notes = [describe_separator(source), *describe_formats(formats)]
    return ValidRows(problems, skipped, tuple(note for note in notes if note))


def validate_rows(
    rows: Iterable[Row],
    data: DataConfig,
    *,
    needs: Mapping[str, str] = NEEDS_BOTH,
    solutions: bool = True,
) -> Iterator[tuple[int, Problem | BadRow]]:
    """Yield the number of each row with its problem or its error.

    Validation and arguments are those of `read_problems`.
    """
    if not solutions:
        needs = {name: why for name, why in needs.items() if name != "solution"}
    first_rows: dict[tuple[str, str], int] = {}
    split = ((row, part) for row, fields in rows for part in _split_turns(fields, row, data))
    for row, fields in split:
        try:
            if isinstance(fields, BadRow):
                raise fields
            problem = _problem(fields, row, data, needs, solutions)
            keys = [("id", problem.id)]
            if solutions:
                text = " ".join(text for _, text in problem.turns) or problem.problem
                keys.insert(0, ("problem", " ".join(text.split())))
            for role, text in keys:
                if (role, text) in first_rows:
                    detail = f", row {first_rows[role, text]} (value {shorten(text)})"
                    raise BadRow(f"same {role} as an earlier row", detail)
        except BadRow as bad:
            yield row, bad
            continue

        first_rows |= dict.fromkeys(keys, row)
        yield row, problem


def problems_digest(problems: Sequence[Problem]) -> str:
    """Digest of the problems and their order: 16 hexadecimal digits."""
    parts: list[str] = []
    for p in problems:
        parts.extend((p.id, p.problem, p.solution, *p.answers))
    others = [{k: v for k, v in p.fields.items() if k not in ROLES} for p in problems]
    parts += [json.dumps(fields, sort_keys=True, default=str) for fields in others if fields]
    return digest(*parts)[:16]


def to_row(problem: Problem) -> dict[str, Any]:
    """Convert a problem to the row that an evaluation stores: all that ``row_of`` needs."""
    answer = list(problem.answers) if problem.also else problem.answer
    row = {"id": problem.id, "problem": problem.problem, "answer": answer, **dict(problem.labels)}
    if problem.solution:
        row["solution"] = problem.solution
    if problem.fields:
        # A Parquet file has dates and other values that JSON has not.
        row["fields"] = json.loads(json.dumps(dict(problem.fields), default=str))
    return row


def from_row(row: dict[str, Any]) -> Problem:
    """Convert a stored row to a problem. Raises KeyError, TypeError or ValueError."""
    answers = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
    answer, *also = dict.fromkeys(map(str, answers))
    return Problem(
        str(row["problem"]),
        str(row.get("solution", "")),
        answer,
        str(row["id"]),
        tuple(also),
        labels=tuple((name, str(row[name])) for name in LABELS if name in row),
        fields=dict(row.get("fields", {})),
    )


def row_of(problem: Problem) -> dict[str, Any]:
    """The fields of a problem, as graders and context functions get them."""
    return {
        **problem.fields,
        "id": problem.id,
        "problem": problem.problem,
        "solution": problem.solution,
        "answer": problem.answer,
        "answers": list(problem.answers),
        **dict(problem.labels),
    }


def item_of(
    problem: Problem, text: str, *, truncated: bool, tags: Sequence[ThoughtTags] = ()
) -> Item:
    """Build the grader item of a completion, with the problem's fields as its row.

    ``tags`` are those of the model's thoughts.
    """
    return Item(text, problem.answers, truncated, row_of(problem), tags)


def batch_indices(count: int, batch_size: int, step: int, seed: int) -> list[int]:
    """Return the indices, in [0, count), of the `batch_size` problems of step `step` (from 0).

    Epochs are concatenated seeded permutations of all problems. Each problem occurs once in an
    epoch. A step may span epochs, and several of them if the batch is larger than the data. The
    result depends only on the arguments, on every Python version.

    Source: Algorithm 'complete adaptive privileged re-scoring recipe', 'Sample a minibatch'.

    Raises:
        ValueError: count or batch_size below 1, or step below 0.
    """
    if count < 1 or batch_size < 1 or step < 0:
        limits = "count and batch_size must be at least 1 and step at least 0"
        raise ValueError(f"{limits}, got count {count}, batch_size {batch_size}, step {step}")

    first, end = step * batch_size, (step + 1) * batch_size
    epochs = range(first // count, (end - 1) // count + 1)
    sequence: list[int] = []
    for epoch in epochs:
        # random() is the same in every Python version, shuffle() is not.
        rng = random.Random(f"{seed}/{epoch}")
        keys = [rng.random() for _ in range(count)]
        sequence += sorted(range(count), key=keys.__getitem__)
    skip = first - epochs[0] * count
    return sequence[skip : skip + batch_size]


def _split_turns(
    fields: dict[str, object] | BadRow, row: int, data: DataConfig
) -> list[dict[str, object] | BadRow]:
    """The row once for each reply of its chat, up to that reply, if `data.turns` asks for all.

    Several are named id-1, id-2, ... Solution and answer of the row belong to the last one.
    """
    if data.turns == "last" or isinstance(fields, BadRow):
        return [fields]
    place = _chat_field(fields, data)
    messages = fields.get(place)
    if not is_chat(messages):
        return [fields]
    roles = []
    for message in messages:
        roles.append(message.get("role"))
    pairs = enumerate(pairwise(roles), start=2)
    ends = []
    for end, pair in pairs:
        if pair == ("user", "assistant"):
            ends.append(end)
    if len(messages) not in ends:
        ends.append(len(messages))
    if len(ends) == 1:
        return [fields]

    name = _column(fields, data.id_field) or "id"
    roles_of_last = (data.solution_field, data.answer_field, "answers")
    of_last = {_column(fields, column) for column in roles_of_last}
    earlier = {}
    for column, value in fields.items():
        if column not in of_last:
            earlier[column] = value
    return [
        {
            **(fields if end == ends[-1] else earlier),
            name: f"{fields.get(name, row)}-{turn}",
            place: messages[:end],
        }
        for turn, end in enumerate(ends, start=1)
    ]


def _chat_field(fields: Mapping[str, object], data: DataConfig) -> str:
    return _column(fields, data.problem_field) or _column(fields, "messages") or ""


def _problem(
    fields: dict[str, object],
    row: int,
    data: DataConfig,
    needs: Mapping[str, str],
    solutions: bool,
) -> Problem:
    column_hint = DATA_FIELD if solutions else OTHER_COLUMNS

    def hint(role: str) -> str:
        if needs.get(role):
            return f"{needs[role]} needs it; {column_hint}"
        return column_hint

    def is_left_out(role: str, name: str) -> bool:
        value = fields.get(_column(fields, name) or "")
        is_blank = value is None or (isinstance(value, str) and not value.strip())
        return role not in needs and is_blank

    place = _chat_field(fields, data)
    turns: tuple[tuple[str, str], ...] = ()
    solution = ""
    if is_chat(fields.get(place)):
        turns, solution = _chat(fields, place)
    if solutions:
        _require_columns(fields, data, needs, has_solution=bool(solution))
    if turns:
        problem = turns[-1][1]
    elif place and _column(fields, data.problem_field) is None:
        detail = f" but {kind_of(fields[place])} (value {shorten(fields[place])})"
        raise BadRow(f'field "{place}" is no list of messages', detail)
    else:
        problem = _text(fields, data.problem_field, "problem", column_hint)
    if not solution and not is_left_out("solution", data.solution_field):
        reference = _column(fields, data.solution_field)
        if reference and is_chat(fields[reference]):
            solution = _chat(fields, reference, ends_in="assistant")[1]
        else:
            solution = _text(fields, data.solution_field, "solution", hint("solution"))

    for column in needs.keys() - NEEDS_BOTH.keys():  # of contexts
        fields = fields | {column: _text(fields, column, column, f"{needs[column]} needs it")}
    answer, also = "", []
    if not is_left_out("answer", data.answer_field):
        has_more = not solutions and data.answer_field == "answer"
        answer, *also = _answers(fields, data.answer_field, has_more, hint("answer"))
    # The default id column may be missing, one that was configured by name may not.
    is_numbered = data.id_field == "id" and _column(fields, "id") is None
    name = str(row) if is_numbered else _text(fields, data.id_field, "id", column_hint)
    labels = _labels(fields)
    return Problem(problem, solution, answer, name, tuple(also), labels, row, turns, fields)


def _require_columns(
    fields: Mapping[str, object],
    data: DataConfig,
    needs: Mapping[str, str],
    *,
    has_solution: bool,
) -> None:
    """Raise BadRow, with the flags that name them, if several columns are missing."""
    columns = {"problem": data.problem_field}
    if "solution" in needs and not has_solution:
        columns["solution"] = data.solution_field
    if "answer" in needs:
        columns["answer"] = data.answer_field
    if data.id_field != "id":
        columns["id"] = data.id_field
    if _chat_field(fields, data):
        del columns["problem"]

    missing = {role: name for role, name in columns.items() if _column(fields, name) is None}
    if len(missing) < 2:
        return  # the message on a single one is that of ``_text``
    flags = []
    for role in missing:
        usual = []
        for name in USUAL_COLUMNS[role]:
            usual.append(_column(fields, name))
        proposed = next((name for name in usual if name is not None), "COLUMN")
        flags.append(f"--data.{role}-field {proposed if ' ' not in proposed else repr(proposed)}")
    names = ", ".join(f'"{name}"' for name in missing.values())
    reasons = [f"{needs[role]} needs {role}; " for role in missing if needs.get(role)]
    raise BadRow(
        f"fields {names} are missing",
        f" ({_columns_of(fields)}); {''.join(reasons)}name the columns: {' '.join(flags)}",
    )


def _columns_of(fields: Mapping[str, object]) -> str:
    columns = []
    for column in fields:
        columns.append(column if len(column) <= 60 else shorten(column))
    return f"fields of the row: {', '.join(columns) or 'none'}"


def is_chat(value: object) -> TypeGuard[list[dict[str, Any]]]:
    """True for a list of chat messages, as TRL takes them."""
    return isinstance(value, list) and bool(value) and all(isinstance(m, dict) for m in value)


def read_chat(messages: Sequence[Mapping[str, Any]], name: str) -> list[tuple[str, str]]:
    """Role and text of the chat messages in field `name`. Raises BadRow if one is no text."""
    turns = []
    for number, message in enumerate(messages, start=1):
        role, content = message.get("role"), message.get("content")
        # Null and an empty list, as of tool_calls, say nothing.
        given = []
        for key, value in message.items():
            if value is not None and value != []:
                given.append(key)
        if not (isinstance(role, str) and isinstance(content, str) and len(given) == 2):
            detail = f": message {number} is {shorten(message)}; it must be a role and a content"
            raise BadRow(f'field "{name}" is no chat', f"{detail}, both text")
        _require_unicode(content, name)
        turns.append((role, content))
    return turns


def _chat(
    fields: dict[str, object], name: str, ends_in: str = "user"
) -> tuple[tuple[tuple[str, str], ...], str]:
    """The turns of a chat up to the last user's, and the assistant's reply to it ("" for none)."""
    messages = fields[name]
    turns = read_chat(messages if is_chat(messages) else [], name)
    reply = turns.pop()[1] if turns and turns[-1][0] == "assistant" else ""
    last = turns[-1][0] if turns else "none"
    if (ends_in == "user" and last != "user") or (ends_in == "assistant" and not reply.strip()):
        roles = [role for role, _ in turns]
        where = "that ends in" if ends_in in roles else "with"
        detail = f" (roles: {', '.join(roles) or 'none'})"
        if ends_in == "user" and last not in ("none", "system"):
            detail += f"; turns of the {last} are not read, so end it with that of the user"
        raise BadRow(f'field "{name}" is no chat {where} a turn of the {ends_in}', detail)
    return tuple(turns), reply


def _answers(
    fields: dict[str, object], field_name: str, has_more: bool, column_hint: str
) -> list[str]:
    """Accepted answers of a row without duplicates; with `has_more`, also from a column `answers`.

    Raises BadRow if one is invalid.
    """
    name = _column(fields, field_name) or field_name
    several = _column(fields, "answers") if has_more else None
    if several and isinstance(fields[several], list):
        if name in fields:
            detail = f" (value {shorten(fields[several])}); keep one of them, or rename it"
            raise BadRow(f'fields "{name}" and "{several}" both hold answers', detail)
        name = several

    value = fields.get(name)
    if not isinstance(value, list):
        return [_text(fields, name, "answer", column_hint)]
    if not value:
        raise BadRow(f'field "{name}" is empty', f" (value {shorten(value)})")
    texts = [Number(one) if type(one) in (int, float) else one for one in value]  # of Parquet
    return list(dict.fromkeys(_text({name: text}, name, "answer", column_hint) for text in texts))


def _labels(fields: dict[str, object]) -> tuple[tuple[str, str], ...]:
    columns = {}
    for name in LABELS:
        columns[name] = fields.get(_column(fields, name) or "")
    return tuple(
        (name, " ".join(value.split()))
        for name, value in columns.items()
        if isinstance(value, str) and value.strip()
    )


def _column(fields: Mapping[str, object], name: str) -> str | None:
    """The column of that name, or else the only one that differs only in case."""
    if name in fields:
        return name
    near = []
    for column in fields:
        if column.casefold() == name.casefold():
            near.append(column)
    if len(near) == 1:
        return near[0]
    return None


def _text(fields: dict[str, object], field_name: str, role: str, column_hint: str) -> str:
    """The unchanged text of a column. Raises BadRow if there is none."""
    name = _column(fields, field_name)
    if name is None:
        detail = f" ({_columns_of(fields)}); {column_hint.format(role=role)}"
        raise BadRow(f'field "{field_name}" is missing', detail)

    value = fields[name]
    if not isinstance(value, str) or (isinstance(value, Number) and role not in ("answer", "id")):
        detail = f" but {kind_of(value)} (value {shorten(value)})"
        raise BadRow(f'field "{name}" is not text', detail)
    if not value.strip():
        raise BadRow(f'field "{name}" is empty', f" (value {shorten(value)})")

    _require_unicode(value, name)
    return str(value)


def _require_unicode(text: str, name: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        detail = f": half a surrogate pair at character {error.start + 1}"
        raise BadRow(f'field "{name}" is not valid Unicode', detail) from None
