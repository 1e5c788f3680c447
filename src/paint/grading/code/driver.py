"""The process of the tests: it runs their assertions, and asks the tested code for values.

No line of the tested code runs here. Its names are stand-ins: a call of one is a request to the
code's process (paint.grading.code.candidate), and what comes back is a plain value
(paint.grading.code.plain), or a number for an object that stays there (``Remote``). So comparisons,
``assert``, builtins and the verdict are this process's own.
"""

import ast
import contextlib
import importlib
import json
import os
import random
import reprlib
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any, NoReturn, TypeVar

from paint.grading.code.candidate import READY
from paint.grading.code.extract import (
    LIBRARY,
    code_of,
    complete_tests,
    free_names,
    given_code,
    helpers,
    names_of_code,
    own_modules,
)
from paint.grading.code.plain import TYPES, PlainDecoder, PlainEncoder

MESSAGE_BYTES = 16 * 2**20
"""Longest reply of the tested code."""

SHOWN_CHARACTERS = 300

_PLAIN_METHODS = {
    name
    for kind in (str, bytes, int, float, complex, list, tuple, dict, set, frozenset)
    for name in dir(kind)
    if not name.startswith("__")
}
_MISSING = object()
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
        self.has_ended = False

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
        encoder = PlainEncoder(_refer)
        request = [operation, *map(encoder.encode, values)]
        reply = self._send(json.dumps(request))
        try:
            decoder = PlainDecoder(lambda message: self._find(message, judges), dict(encoder.known))
            for number, *content in reply["arguments"]:
                value = encoder.known[number]
                if content != encoder.content(value):
                    decoder.fill(value, content)
            result = decoder.decode(reply["result"])
            error = _exception(reply, decoder) if "error" in reply else None
        except Exception as wrong:
            self._end(f"it sent no value: {wrong!r}"[:SHOWN_CHARACTERS])
        if error is not None:
            raise error
        return result

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

    __slots__ = ("_paint_judges", "_paint_kind", "_paint_number", "_paint_session")

    def __init__(self, session: Session, number: int, kind: str, *, judges: bool) -> None:
        set_own = object.__setattr__
        set_own(self, "_paint_session", session)
        set_own(self, "_paint_number", number)
        set_own(self, "_paint_kind", kind)
        set_own(self, "_paint_judges", judges)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        # A capital letter names a class; what a class gives is an instance.
        judges = self._paint_judges and self._paint_kind == "type"
        return self._paint_session.ask("call", self, arguments, tuple(named.items()), judges=judges)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _PLAIN_METHODS and not self._paint_judges:
            raise NotPlainError(f"an object of class {self._paint_kind} has the method {name}")
        return self._paint_session.ask("getattr", self, name)

    def __eq__(self, other: object) -> bool:
        raise NotPlainError(f"an object of class {self._paint_kind} is compared")

    def __ne__(self, other: object) -> bool:
        raise NotPlainError(f"an object of class {self._paint_kind} is compared")

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __setattr__(self, name: str, value: Any) -> None:
        self._paint_session.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._paint_session.ask("delattr", self, name)

    def __getitem__(self, key: Any) -> Any:
        return self._paint_session.ask("get_item", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._paint_session.ask("set_item", self, key, value)

    def __delitem__(self, key: Any) -> None:
        self._paint_session.ask("delete_item", self, key)

    def __iter__(self) -> Iterator[Any]:
        # An iterator of the tested code is such an object itself, and has __next__.
        iterator: Iterator[Any] = self._paint_session.ask("iter", self)
        return iterator

    def __next__(self) -> Any:
        return self._paint_session.ask("next", self)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Remote) and self._paint_ask(bool, "isinstance", instance, self)

    def __len__(self) -> int:
        return self._paint_ask(int, "len", self)

    def __bool__(self) -> bool:
        return self._paint_ask(bool, "bool", self)

    def __int__(self) -> int:
        return self._paint_ask(int, "int", self)

    def __float__(self) -> float:
        return self._paint_ask(float, "float", self)

    def __complex__(self) -> complex:
        return self._paint_ask(complex, "complex", self)

    def __str__(self) -> str:
        return self._paint_ask(str, "str", self)

    def __repr__(self) -> str:
        return self._paint_ask(str, "repr", self)

    def _paint_ask(self, kind: type[T], operation: str, *values: Any) -> T:
        result = self._paint_session.ask(operation, *values)
        if type(result) is kind:
            return result
        raise TypeError(f"{operation} gave {_show(result)}")


def _refer(value: Any) -> Any:
    """What stands for an object that is not plain in a request."""
    if isinstance(value, Remote):
        return ["object", value._paint_number, value._paint_kind]
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if isinstance(value, FunctionType | BuiltinFunctionType) and module in LIBRARY:
        return ["function", module, name]
    raise NotPlainError(f"a test passes an object of class {type(value).__name__}")


def _exception(reply: dict[str, Any], decoder: PlainDecoder) -> Exception:
    """The exception of a reply: of the built-in class, or as a CodeError."""
    kind = TYPES.get(reply["base"], CodeError)
    values = [decoder.decode(value) for value in reply["values"]]
    error: Exception
    if kind is Exception or not issubclass(kind, Exception):
        error = CodeError(str(reply["error"]), *values)
    else:
        try:
            error = kind(*values)
        except TypeError:  # a class that needs other arguments
            error = CodeError(str(reply["error"]), *values)
    error.paint_kind, error.paint_said = str(reply["error"]), str(reply["said"])  # type: ignore[attr-defined]
    return error


class _Shown(reprlib.Repr):
    """Short texts of values. Objects of the tested code are not asked for theirs."""

    def repr_Remote(self, value: Remote, _: int) -> str:
        return f"<an object of class {value._paint_kind}>"


_SHOWN = _Shown()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 100
_SHOWN.maxlist = _SHOWN.maxtuple = _SHOWN.maxdict = _SHOWN.maxset = 10


def _show(value: Any) -> str:
    return _SHOWN.repr(value)[:SHOWN_CHARACTERS]


class _Watched(ast.NodeTransformer):
    """Makes assertions report, by their numbers.

    ``assert left == right`` becomes

        __reach__(0)
        try:
            assert __note__(left) == right
        except Exception as error:
            __fail__(0, error)
        else:
            __pass__(0)

    so that those after a failed one are run, too. Where tests catch exceptions themselves,
    ``__fail__`` raises it again.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []

    def visit_Assert(self, node: ast.Assert) -> Any:
        if isinstance(node.test, ast.Constant) and node.test.value:
            return node  # it says nothing of the code
        number = len(self.texts)
        self.texts.append(ast.unparse(ast.Assert(node.test)))
        if isinstance(node.test, ast.Compare):
            node.test.left = _called("__note__", node.test.left)
        elif isinstance(node.test, ast.Call):
            node.test = _called("__note__", node.test)
        index = ast.Constant(number)
        handler = ast.ExceptHandler(
            ast.Name("Exception", ast.Load()),
            "__error__",
            [ast.Expr(_called("__fail__", index, ast.Name("__error__", ast.Load())))],
        )
        passed: list[ast.stmt] = [ast.Expr(_called("__pass__", index))]
        tried = ast.Try([node], [handler], passed, [])
        return [ast.Expr(_called("__reach__", index)), tried]


def _called(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


class Events:
    """What the grader reads of the tests: an event a line, as JSON.

    Args:
        file: a descriptor that the tested code's process does not have.
    """

    def __init__(self, file: int) -> None:
        self._file = file

    def send(self, *event: Any) -> None:
        """Write one event."""
        content = json.dumps(event).encode() + b"\n"
        while content:
            content = content[os.write(self._file, content) :]


class Assertions:
    """What the rewritten assertions call."""

    def __init__(self, report: Events, *, raises: bool) -> None:
        self._report = report
        self._raises = raises
        self._seen: dict[int, str] = {}
        self._noted = _MISSING
        self.last = -1  # the assertion that was reached last

    @property
    def is_open(self) -> bool:
        """Whether the last assertion that was reached neither passed nor failed."""
        return self._seen.get(self.last) == "reached"

    def reach(self, number: int) -> None:
        self._noted = _MISSING
        self.last = number
        if number not in self._seen:
            self._seen[number] = "reached"
            self._report.send("reached", number)

    def note(self, value: Any) -> Any:
        self._noted = value
        return value

    def succeed(self, number: int) -> None:
        if self._seen[number] == "reached":
            self._seen[number] = "passed"
            self._report.send("passed", number)

    def fail(self, number: int, error: Exception) -> None:
        if self._raises:
            self.last = number
            raise error
        self.record(number, error)

    def record(self, number: int, error: BaseException) -> None:
        """Report that an assertion failed, the first time that it does."""
        if self._seen.get(number) == "failed":
            return
        self._seen[number] = "failed"
        kind, said = describe_failure(error)
        if type(error) is AssertionError and not hasattr(error, "paint_said"):
            kind = "wrong value"
            is_noted = self._noted is not _MISSING
            said = f"The code gave {_show(self._noted)}." if is_noted else "It is false."
        self._report.send("failed", number, kind, said)


def describe_failure(error: BaseException) -> tuple[str, str]:
    """The kind of an exception in few words, and a sentence on it."""
    if isinstance(error, NotPlainError):
        return "no plain value", f"Only plain values are compared, and {error}."
    if isinstance(error, CodeEndedError):
        return "ended", f"The code cannot be asked any more: {error}."
    kind = getattr(error, "paint_kind", type(error).__name__)
    said = getattr(error, "paint_said", f"{type(error).__name__}: {error}")
    return kind, f"It raised {said}"[: 3 * SHOWN_CHARACTERS]


def run_tests(job: dict[str, Any], session: Session, report: Events) -> None:
    """Define the code, run the tests, and report each assertion.

    Args:
        job: ``answer``, which holds the code; ``tests``; ``problem``, which may hold code, too;
            ``entry_point``, the name of the function that is tested, or "".
    """
    random.seed(0)
    try:
        tests = complete_tests(job["tests"], job["entry_point"])
        given = given_code(job["problem"], tests)
        names = names_of_code(tests, given)
        tree, watched = ast.parse(tests), _Watched()
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        report.send("broken", f"the tests cannot be read: {type(error).__name__}: {error}")
        return
    catches = any(isinstance(node, ast.Try | ast.With) for node in ast.walk(tree))
    modules = own_modules(tree, free_names(tests))
    tree = ast.fix_missing_locations(watched.visit(tree))
    if not (names and watched.texts):
        lack = "assert nothing" if names else "name nothing that the code could define"
        report.send("broken", f"the tests {lack}")
        return
    code = code_of(job["answer"], names, given)
    if code is None:
        report.send("no code")
        return
    assertions = Assertions(report, raises=catches)
    report.send("tests", watched.texts)
    space: dict[str, Any] = {
        "__name__": "tests",
        "__reach__": assertions.reach,
        "__note__": assertions.note,
        "__pass__": assertions.succeed,
        "__fail__": assertions.fail,
    }
    if helpers(given):
        exec(compile(given, "<problem>", "exec", dont_inherit=True), space)
    for name in modules:
        space[name] = importlib.import_module(name)

    if not session.is_open():
        report.send("broken", "the process of the code could not be started")
        return
    found = 0
    try:
        session.ask("define", *code)
        for name in names:
            space.pop(name, None)  # a stub of the problem
            with contextlib.suppress(Exception):  # the tests meet a NameError
                space[name] = session.ask("find", name, judges=name[:1].isupper())
                found += 1
    except (Exception, CodeEndedError) as error:
        report.send("error", *describe_failure(error))
        return
    for statement in tree.body:
        if not session.has_ended:
            _run(statement, space, assertions, report)
    if session.has_ended:  # whatever the tests caught
        report.send("error", "ended", "The code ended its process.")
    report.send("end", found)


def _run(
    statement: ast.stmt, space: dict[str, Any], assertions: Assertions, report: Events
) -> None:
    """Run a statement of the tests, and report the exception that leaves it."""
    module = ast.Module([statement], [])
    try:
        exec(compile(module, "<tests>", "exec", dont_inherit=True), space)
    except BaseException as error:
        if assertions.is_open:
            assertions.record(assertions.last, error)
        else:
            report.send("error", *describe_failure(error))


def main(job: int, report: int, requests: int, replies: int) -> None:
    """Run a job, and report on it.

    Args:
        job, report, requests, replies: file descriptors.
    """
    with open(job, "rb") as file:
        run_tests(json.load(file), Session(requests, replies), Events(report))
