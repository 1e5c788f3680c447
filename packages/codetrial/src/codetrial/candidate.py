"""The process of the tested code: it defines the code, and makes the calls that the tests ask for.

It holds nothing of the tests: a request has a call and its arguments, the reply what the call gave.
The code can do to this process whatever it likes; all that leaves it are bytes, which the other
side reads as plain values (codetrial.plain).

Tests that need the code's module are run here, beside it. Then their verdict is as good as this
process is: code that looks for the tests can change it.
"""

import importlib
import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from codetrial.assertions import SHOWN_CHARACTERS, Assertions, run_statement
from codetrial.extract import code_before_text, helpers
from codetrial.plain import TYPES, PlainDecoder, PlainEncoder
from codetrial.tests_text import Tests, read_tests

NAME = "completion"  # of the code's module: `if __name__ == "__main__"` is not run
READY = b"ready\n"  # what is written before any code is run


def _call(function: Any, arguments: tuple[Any, ...], named: tuple[tuple[str, Any], ...]) -> Any:
    return function(*arguments, **dict(named))


def _set_item(value: Any, key: Any, item: Any) -> None:
    value[key] = item


def _delete_item(value: Any, key: Any) -> None:
    del value[key]


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": _call,
    "get_item": lambda value, key: value[key],
    "set_item": _set_item,
    "delete_item": _delete_item,
    **{
        operation.__name__: operation
        for operation in (
            *(bool, complex, delattr, float, getattr, int, isinstance, issubclass, iter, len),
            *(next, repr, setattr, str),
        )
    },
}
"""What tests may ask for beside the operations of Candidate, by name."""


class Candidate:
    """The code's module, and the objects of it that the tests know by number."""

    def __init__(self) -> None:
        self._module = ModuleType(NAME)
        sys.modules[NAME] = self._module
        self._sources: dict[str, list[str]] = {}
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._tests: Tests | None = None
        self._events: list[tuple[Any, ...]] = []  # of tests that are run here
        self._assertions: Assertions | None = None

    def answer(self, request: Any) -> Any:
        """The reply to a request, both as JSON."""
        operation, *values = request
        decoder = PlainDecoder(self._find)
        reply: dict[str, Any] = {}
        result = None
        try:
            arguments = [decoder.decode(value) for value in values]
            sent = dict(decoder.known)
            result = self._do(operation, arguments)
        except BaseException as error:  # SystemExit, too: the code must not end this loop
            reply = self._describe(error)
            sent = dict(decoder.known)
        encoder = PlainEncoder(self._refer, sent)
        try:
            # The arguments as they are now, since functions may change them.
            reply["arguments"] = [[n, *encoder.content(value)] for n, value in sent.items()]
            reply["result"] = encoder.encode(result)
        except BaseException as error:  # nested too deeply, or beyond the memory
            reply = {**self._describe(error), "arguments": [], "result": None}
        return reply

    def _do(self, operation: str, arguments: list[Any]) -> Any:
        match operation:
            case "define":
                return self._define(*arguments)
            case "find":
                return vars(self._module)[arguments[0]]
            case "stand_beside":
                return self._stand_beside(*arguments)
            case "test":
                return self._test(*arguments)
        return OPERATIONS[operation](*arguments)

    def _define(self, parts: tuple[str, ...], ends_in_text: bool) -> None:
        """Run the parts of the code one after the other in its module."""
        for number, part in enumerate(parts):
            source = code_before_text(part) if ends_in_text else part
            file = f"<{NAME} {number}>"
            self._sources[file] = source.splitlines()
            exec(compile(source, file, "exec", dont_inherit=True), vars(self._module))

    def _stand_beside(self, tests: str, entry: str, problem: str) -> int:
        """Make ready for tests in the code's module; return how many of their names it has."""
        self._tests = read_tests(tests, entry, problem, is_proven=True)
        space = vars(self._module)
        found = sum(name in space for name in self._tests.names)
        own: dict[str, Any] = {}
        given = self._tests.given
        if helpers(given):  # they are the tests' own
            exec(compile(given, "<problem>", "exec", dont_inherit=True), own)
            space |= {name: own[name] for name in helpers(given)}
        for name in self._tests.modules:
            if name not in space:
                space[name] = importlib.import_module(name)
        space["__name__"] = "__main__"
        self._assertions = Assertions(
            lambda *event: self._events.append(event),
            raises=self._tests.catches,
            describe=self._describe_failure,
        )
        return found

    def _test(self, number: int, secret: str) -> tuple[str, list[tuple[Any, ...]]]:
        """Run a statement of the tests; return the secret, and the events since the last one."""
        assert self._tests is not None
        assert self._assertions is not None
        space = vars(self._module)
        space |= self._assertions.functions  # the code may have set the names
        run_statement(self._tests.tree.body[number], space, self._assertions)
        events, self._events = self._events, []
        return secret, events

    def _describe_failure(self, error: BaseException) -> tuple[str, str]:
        return type(error).__name__, f"It raised {self._describe(error)['said']}"

    def _refer(self, value: Any) -> Any:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        kind = "type" if isinstance(value, type) else type(value).__name__
        return ["object", self._numbers[id(value)], kind]

    def _find(self, message: list[Any]) -> Any:
        kind, *place = message
        if kind == "object":
            return self._objects[place[0]]
        if kind == "function":  # a function of the standard library
            return getattr(importlib.import_module(place[0]), place[1])
        raise ValueError(kind)

    def _describe(self, error: BaseException) -> dict[str, Any]:
        """The class of an exception, its arguments, and what it says and where."""
        bases = [kind.__name__ for kind in type(error).__mro__ if TYPES.get(kind.__name__) is kind]
        said = "".join(traceback.format_exception_only(error)).strip()
        if isinstance(error, SyntaxError):
            said = f"{type(error).__name__}: {error.msg} (line {error.lineno}: {error.text or ''})"
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            lines = self._sources.get(frame.filename)
            if lines and frame.lineno:
                line = lines[frame.lineno - 1].strip() if frame.lineno <= len(lines) else ""
                said = f"{said[:SHOWN_CHARACTERS]} (line {frame.lineno}: {line})"
                break
        encoder = PlainEncoder(lambda value: str(type(value)))
        return {
            "error": type(error).__name__,
            "base": bases[0] if bases else "BaseException",
            "values": [encoder.encode(value) for value in error.args],
            "said": said[: 2 * SHOWN_CHARACTERS],
        }


def answer_requests(requests: int, replies: int) -> None:
    """Write READY, and answer a request a line until there is none.

    Args:
        requests, replies: file descriptors.
    """
    random.seed(0)  # the same verdict whenever it is asked for
    candidate = Candidate()
    _write(replies, READY)
    with open(requests, "rb") as lines:
        for line in lines:
            reply = json.dumps(candidate.answer(json.loads(line)))
            # The code may have closed it, or written to it: then the tests fail.
            _write(replies, reply.encode() + b"\n")


def _write(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]
