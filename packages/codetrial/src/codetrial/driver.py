"""The process of the tests: it runs their assertions, and asks the tested code for values.

No line of the tested code runs here. Its names are stand-ins: a call of one is a request to the
code's process (codetrial.candidate), and what comes back is a plain value
(codetrial.plain), or a number for an object that stays there (``Remote``). So comparisons,
``assert``, builtins and the verdict are this process's own.
"""

import ast
import contextlib
import copy
import importlib
import json
import os
import random
import secrets
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any, NoReturn, TypeVar

from codetrial.assertions import (
    SHOWN_CHARACTERS,
    Assertions,
    Events,
    run_statement,
    show,
)
from codetrial.candidate import READY
from codetrial.extract import LIBRARY, code_of, helpers
from codetrial.fences import NO_PARSE
from codetrial.plain import TYPES, PlainDecoder, PlainEncoder
from codetrial.tests_text import Tests, TestsError, read_tests

MESSAGE_BYTES = 16 * 2**20
"""Longest reply of the tested code."""

_PLAIN_METHODS = {
    name
    for kind in (str, bytes, int, float, complex, list, tuple, dict, set, frozenset)
    for name in dir(kind)
    if not name.startswith("__")
}
T = TypeVar("T")


class CodeEndedError(BaseException):
    """The process of the tested code has ended, or writes what is no reply."""


class NotPlainError(BaseException):
    """A test needs to look into an object that is no plain value.

    No Exception: a test's ``except`` must not take it for one of the tested code.
    """


class CodeError(Exception):
    """An exception of the tested code whose class is not built in."""


class Session:
    """Requests to the process of the tested code.

    Args:
        requests, replies: file descriptors.
    """

    def __init__(self, requests: int, replies: int) -> None:
        self._requests = requests
        self._replies = open(replies, "rb")  # noqa: SIM115 (as long as the process)
        self._objects: dict[int, Remote] = {}
        self._values: dict[str, Any] = {}  # of the code's module, as they were
        self.space: dict[str, Any] = {}  # of the tests
        self.has_ended = False
        self.refused = ""  # why the first object was, that is no plain value

    def is_open(self) -> bool:
        """Wait for the process of the code, in which no code has run yet; False if it has ended."""
        return self._replies.readline() == READY

    def ask(self, operation: str, *values: Any, judges: bool = False) -> Any:
        """What an operation gives, with the arguments changed as it changed them.

        Args:
            judges: an object that it gives may be asked for anything (``Remote``).

        Raises:
            Exception: the one that the tested code raised, of the same class if it is built in.
            NotPlainError: a value cannot be sent. CodeEndedError: there is no reply.
        """
        encoder = PlainEncoder(self._refer)
        request = [operation, *map(encoder.encode, values)]
        reply = self._send(json.dumps(request))
        try:
            decoder = PlainDecoder(lambda message: self._find(message, judges), dict(encoder.known))
            for number, *content in reply["arguments"]:
                value = encoder.known[number]
                if content != encoder.content(value):
                    decoder.fill(value, content)
            result = decoder.decode(reply["result"])
            error = _exception(reply, decoder, operation) if "error" in reply else None
        except Exception as wrong:
            self._end(f"it sent no value: {wrong!r}"[:SHOWN_CHARACTERS])
        if operation not in ("define", "find"):
            self._find_values()
        if error is not None:
            raise error
        return result

    def find(self, name: str) -> None:
        """Give the tests what the code's module has by a name. Raises KeyError if it has none."""
        value = self.ask("find", name, judges=name[:1].isupper())
        self.space[name] = value
        if not isinstance(value, Remote):
            self._values[name] = copy.deepcopy(value)

    def _find_values(self) -> None:
        """Give the tests the plain values of the code's module that have changed."""
        for name, before in self._values.items():
            with contextlib.suppress(Exception):  # it was deleted
                value = self.ask("find", name)
                if value != before and not isinstance(value, Remote):
                    self.space[name], self._values[name] = value, copy.deepcopy(value)

    def refusal(self, why: str) -> NotPlainError:
        """The exception to raise; the tests fail whatever they make of it."""
        self.refused = self.refused or why
        return NotPlainError(why)

    def _refer(self, value: Any) -> Any:
        """What stands for an object that is not plain in a request."""
        if isinstance(value, Remote):
            return ["object", value._trial_number, value._trial_kind]
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
        if isinstance(value, FunctionType | BuiltinFunctionType) and module in LIBRARY:
            return ["function", module, name]
        raise self.refusal(f"a test passes an object of class {type(value).__name__}")

    def _send(self, request: str) -> dict[str, Any]:
        try:
            content = request.encode() + b"\n"
            while content:
                content = content[os.write(self._requests, content) :]
            line = self._replies.readline(MESSAGE_BYTES)
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            self._end("its value is too long" if line else "it ended its process")
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            self._end("it sent no value")
        return reply

    def _end(self, why: str) -> NoReturn:
        self.has_ended = True
        raise CodeEndedError(why)

    def _find(self, message: list[Any], judges: bool) -> Any:
        kind, number, name = message
        if kind != "object" or type(number) is not int:
            raise ValueError(kind)
        if number not in self._objects:
            self._objects[number] = Remote(self, number, str(name)[:100], judges=judges)
        return self._objects[number]


class Remote:
    """An object of the tested code that is no plain value, such as a function or an instance.

    Tests can call it, pass it on, and ask for its attributes, items, length, text or truth, which
    come back in the same way. They cannot compare it: its own comparison would be its verdict. For
    the same reason a method that plain values have, too (``startswith``, ``count``), is refused
    where a function returned the object. Instances of classes that the tests name (``Stack()``)
    may have any.
    """

    __slots__ = ("_trial_judges", "_trial_kind", "_trial_number", "_trial_session")

    def __init__(self, session: Session, number: int, kind: str, *, judges: bool) -> None:
        set_own = object.__setattr__
        set_own(self, "_trial_session", session)
        set_own(self, "_trial_number", number)
        set_own(self, "_trial_kind", kind)
        set_own(self, "_trial_judges", judges)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        # A capital letter names a class; what a class gives is an instance.
        judges = self._trial_judges and self._trial_kind == "type"
        return self._trial_session.ask("call", self, arguments, tuple(named.items()), judges=judges)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _PLAIN_METHODS and not self._trial_judges:
            raise self._trial_session.refusal(
                f"an object of class {self._trial_kind} has the method {name}"
            )
        return self._trial_session.ask("getattr", self, name)

    def __eq__(self, other: object) -> bool:
        raise self._trial_session.refusal(f"an object of class {self._trial_kind} is compared")

    def __ne__(self, other: object) -> bool:
        raise self._trial_session.refusal(f"an object of class {self._trial_kind} is compared")

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __setattr__(self, name: str, value: Any) -> None:
        self._trial_session.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._trial_session.ask("delattr", self, name)

    def __getitem__(self, key: Any) -> Any:
        return self._trial_session.ask("get_item", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._trial_session.ask("set_item", self, key, value)

    def __delitem__(self, key: Any) -> None:
        self._trial_session.ask("delete_item", self, key)

    def __iter__(self) -> Iterator[Any]:
        # An iterator of the tested code is such an object itself, and has __next__.
        iterator: Iterator[Any] = self._trial_session.ask("iter", self)
        return iterator

    def __next__(self) -> Any:
        return self._trial_session.ask("next", self)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Remote) and self._trial_ask(bool, "isinstance", instance, self)

    def __len__(self) -> int:
        return self._trial_ask(int, "len", self)

    def __bool__(self) -> bool:
        return self._trial_ask(bool, "bool", self)

    def __int__(self) -> int:
        return self._trial_ask(int, "int", self)

    def __float__(self) -> float:
        return self._trial_ask(float, "float", self)

    def __complex__(self) -> complex:
        return self._trial_ask(complex, "complex", self)

    def __str__(self) -> str:
        return self._trial_ask(str, "str", self)

    def __repr__(self) -> str:
        return self._trial_ask(str, "repr", self)

    def _trial_ask(self, kind: type[T], operation: str, *values: Any) -> T:
        result = self._trial_session.ask(operation, *values)
        if type(result) is kind:
            return result
        raise TypeError(f"{operation} gave {show(result)}")


def _exception(reply: dict[str, Any], decoder: PlainDecoder, operation: str) -> Exception:
    """The exception of a reply: of the built-in class, or as a CodeError."""
    kind = TYPES.get(reply["base"], CodeError)
    if issubclass(kind, StopIteration) and operation != "next":
        kind = CodeError  # all(map(...)) would take it for the end of what it reads
    values = [decoder.decode(value) for value in reply["values"]]
    error: Exception
    if kind is Exception or not issubclass(kind, Exception):
        error = CodeError(str(reply["error"]), *values)
    else:
        try:
            error = kind(*values)
        except TypeError:  # a class that needs other arguments
            error = CodeError(str(reply["error"]), *values)
    error.trial_kind, error.trial_said = str(reply["error"]), str(reply["said"])  # type: ignore[attr-defined]
    return error


def _describe_failure(error: BaseException) -> tuple[str, str]:
    """The kind of an exception in few words, and a sentence on it."""
    if isinstance(error, NotPlainError):
        return "no plain value", f"Only plain values are compared, and {error}."
    if isinstance(error, CodeEndedError):
        return "ended", f"The code cannot be asked any more: {error}."
    kind = getattr(error, "trial_kind", type(error).__name__)
    said = getattr(error, "trial_said", f"{type(error).__name__}: {error}")
    return kind, f"It raised {said}"[: 3 * SHOWN_CHARACTERS]


def run_tests(job: dict[str, Any], session: Session, report: Events) -> None:
    """Define the code, run the tests, and report each assertion.

    Args:
        job: ``answer``, which holds the code; ``tests``; ``problem``, which may hold code, too;
            ``entry_point``, the name of the function that is tested, or ""; ``place`` of the tests:
            "apart" from the code, "beside" it, or "unproven", which is apart where no solution of
            the row has shown that they can be.
    """
    random.seed(0)
    place = job.get("place", "apart")
    try:
        tests = read_tests(
            job["tests"],
            job["entry_point"],
            job["problem"],
            is_proven=place != "unproven",
        )
    except TestsError as error:
        report.send("broken", str(error))
        return
    except NO_PARSE as error:
        report.send("broken", f"the tests cannot be read: {type(error).__name__}: {error}")
        return
    code = code_of(job["answer"], tests.names, tests.given)
    if code is None:
        report.send("no code")
        return
    report.send("tests", tests.texts)
    if not session.is_open():
        report.send("broken", "the process of the code could not be started")
        return
    try:
        session.ask("define", *code)
        if place == "beside":
            beside = job["tests"], job["entry_point"], job["problem"]
            found = session.ask("stand_beside", *beside)
            _run_beside(tests, session, report)
        else:
            found = _run_apart(tests, session, report)
    except (Exception, CodeEndedError) as error:
        report.send("error", *_describe_failure(error))
        return
    report.send("end", found)


def _run_apart(tests: Tests, session: Session, report: Events) -> int:
    """Run tests in this process; return how many of their names the code defines."""
    assertions = Assertions(report.send, raises=tests.catches, describe=_describe_failure)
    space = session.space
    space |= {"__name__": "__main__", **assertions.functions}
    if helpers(tests.given):
        exec(compile(tests.given, "<problem>", "exec", dont_inherit=True), space)
    for name in tests.modules:
        space[name] = importlib.import_module(name)
    found = 0
    for name in tests.names:
        space.pop(name, None)  # a stub of the problem
        with contextlib.suppress(Exception):  # the tests meet a NameError
            session.find(name)
            found += 1
    for statement in tests.tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            why = _import(statement, space)
            if why:
                report.send("broken", f"the tests cannot be run: {why}")
                return found
        elif not session.has_ended:
            run_statement(statement, space, assertions)
    if session.has_ended:  # whatever the tests caught
        report.send("error", "ended", "The code ended its process.")
    elif session.refused and not assertions.has_failed:
        report.send("error", *_describe_failure(NotPlainError(session.refused)))
    return found


def _import(statement: ast.stmt, space: dict[str, Any]) -> str:
    """Run an import of the tests, in which the code has no part; return why it fails, or ""."""
    try:
        exec(compile(ast.Module([statement], []), "<tests>", "exec", dont_inherit=True), space)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


_EVENTS = {"reached": 1, "passed": 1, "failed": 3, "error": 2}
"""Events of tests beside the code, and how many values each has."""


def _run_beside(tests: Tests, session: Session, report: Events) -> None:
    """Let the process of the code run the tests, a statement at a time, and pass on what it says.

    Each reply must have the secret of its request: so it was written after the statement.
    """
    states: dict[int, str] = {}
    for number in range(len(tests.tree.body)):
        secret = secrets.token_hex(16)
        reply = session.ask("test", number, secret)
        if not isinstance(reply, tuple) or len(reply) != 2 or reply[0] != secret:
            raise CodeEndedError("it sent no verdict")
        for kind, *values in reply[1]:
            if len(values) != _EVENTS[kind]:
                raise CodeEndedError("it sent no verdict")
            if kind == "error":
                report.send(kind, *map(str, values))
            elif values[0] in range(len(tests.texts)):
                states[values[0]] = kind
                report.send(kind, values[0], *map(str, values[1:]))
    for number, state in states.items():
        if state == "reached":  # its end was caught, or hidden
            report.send("failed", number, "wrong value", "It did not hold.")


def main(job: int, report: int, requests: int, replies: int) -> None:
    """Run a job, and report on it.

    Args:
        job, report, requests, replies: file descriptors.
    """
    events = Events(report)
    events.begin()
    with open(job, "rb") as file:
        run_tests(json.load(file), Session(requests, replies), events)
