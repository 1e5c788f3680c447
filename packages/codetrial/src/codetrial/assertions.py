"""Assertions that report what becomes of them, in whichever process the tests are run."""

import ast
import json
import os
import reprlib
from collections.abc import Callable
from typing import Any

SHOWN_CHARACTERS = 300

_MISSING = object()


class _Shown(reprlib.Repr):
    """Short texts of values. Objects of the tested code are not asked for theirs."""

    def repr_Remote(self, value: Any, _: int) -> str:
        return f"<an object of class {value._trial_kind}>"


_SHOWN = _Shown()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 100
_SHOWN.maxlist = _SHOWN.maxtuple = _SHOWN.maxdict = _SHOWN.maxset = 10


def show(value: Any) -> str:
    """A short text of a value."""
    return _SHOWN.repr(value)[:SHOWN_CHARACTERS]


def watch(tree: ast.Module) -> list[str]:
    """Make the assertions of tests report, by their numbers; return their texts.

    ``assert left == right`` becomes

        __reach__(0)
        try:
            assert __note__(left) == right
        except Exception as error:
            __fail__(0, error)
        else:
            __pass__(0)

    so that those after a failed one are run, too. Where tests catch exceptions themselves,
    ``__fail__`` raises it again. Calls such as ``self.assertEqual(a, b)``, and blocks such as
    ``with pytest.raises(ValueError):``, are assertions, too.
    """
    watched = _Watched(tree)
    watched.visit(tree)
    ast.fix_missing_locations(tree)
    return watched.texts


class _Watched(ast.NodeTransformer):
    def __init__(self, tree: ast.Module) -> None:
        self.texts: list[str] = []
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        self._own = {node.name for node in ast.walk(tree) if isinstance(node, functions)}

    def visit_Assert(self, node: ast.Assert) -> Any:
        if isinstance(node.test, ast.Constant) and node.test.value:
            return node  # it says nothing of the code
        text = ast.unparse(ast.Assert(node.test))
        if isinstance(node.test, ast.Compare):
            node.test.left = _called("__note__", node.test.left)
        elif isinstance(node.test, ast.Call):
            node.test = _called("__note__", node.test)
        return self._watched(node, text)

    def visit_Expr(self, node: ast.Expr) -> Any:
        self.generic_visit(node)
        name = name_of_call(node.value)
        if name.startswith("assert") and name not in self._own:
            return self._watched(node, ast.unparse(node))
        return node

    def visit_With(self, node: ast.With) -> Any:
        text = ast.unparse(node)
        self.generic_visit(node)
        names = [name_of_call(item.context_expr) for item in node.items]
        if any(name == "raises" or name.startswith("assert") for name in names):
            return self._watched(node, text)
        return node

    def _watched(self, node: ast.stmt, text: str) -> list[ast.stmt]:
        number = len(self.texts)
        self.texts.append(text)
        index = ast.Constant(number)
        handler = ast.ExceptHandler(
            ast.Name("Exception", ast.Load()),
            "__error__",
            [ast.Expr(_called("__fail__", index, ast.Name("__error__", ast.Load())))],
        )
        passed: list[ast.stmt] = [ast.Expr(_called("__pass__", index))]
        tried = ast.Try([node], [handler], passed, [])
        return [ast.Expr(_called("__reach__", index)), tried]


def name_of_call(node: ast.AST) -> str:
    """The last name of the function that an expression calls: ``raises`` of ``pytest.raises()``."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _called(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def catches(tree: ast.Module) -> bool:
    """Whether tests catch exceptions themselves."""
    return any(isinstance(node, ast.Try | ast.TryStar | ast.With) for node in ast.walk(tree))


class Events:
    """What the grader reads of the tests: an event a line, as JSON.

    Args:
        file: a descriptor that the tested code's process does not have.
    """

    def __init__(self, file: int) -> None:
        self._file = file

    def begin(self) -> None:
        """Write that the process is there, before it reads anything of the job."""
        self._write(b"\n")

    def send(self, *event: Any) -> None:
        """Write one event."""
        self._write(json.dumps(event).encode() + b"\n")

    def _write(self, content: bytes) -> None:
        while content:
            content = content[os.write(self._file, content) :]


class Assertions:
    """What the rewritten assertions call.

    Args:
        send: takes an event, such as ``Events.send``.
        raises: an assertion that fails raises, as the tests catch exceptions.
        describe: kind of an exception, and a sentence on it.
    """

    def __init__(
        self,
        send: Callable[..., None],
        *,
        raises: bool,
        describe: Callable[[BaseException], tuple[str, str]],
    ) -> None:
        self.send = send
        self.describe = describe
        self._raises = raises
        self._seen: dict[int, str] = {}
        self._noted = _MISSING
        self.last = -1  # the assertion that was reached last
        self.has_failed = False

    @property
    def is_open(self) -> bool:
        """Whether the last assertion that was reached neither passed nor failed."""
        return self._seen.get(self.last) == "reached"

    @property
    def functions(self) -> dict[str, Any]:
        """The names that rewritten assertions call."""
        return {
            "__reach__": self.reach,
            "__note__": self.note,
            "__pass__": self.succeed,
            "__fail__": self.fail,
        }

    def reach(self, number: int) -> None:
        self._noted = _MISSING
        self.last = number
        if number not in self._seen:
            self._seen[number] = "reached"
            self.send("reached", number)

    def note(self, value: Any) -> Any:
        self._noted = value
        return value

    def succeed(self, number: int) -> None:
        if self._seen[number] == "reached":
            self._seen[number] = "passed"
            self.send("passed", number)

    def fail(self, number: int, error: Exception) -> None:
        if self._raises:
            self.last = number
            raise error
        self.record(number, error)

    def record(self, number: int, error: BaseException) -> None:
        """Report that an assertion failed, the first time that it does."""
        self.has_failed = True
        if self._seen.get(number) == "failed":
            return
        self._seen[number] = "failed"
        kind, said = self.describe(error)
        if type(error) is AssertionError and not hasattr(error, "trial_said"):
            kind = "wrong value"
            is_noted = self._noted is not _MISSING
            said = f"The code gave {show(self._noted)}." if is_noted else f"It is false. {error}"
            said = said[:SHOWN_CHARACTERS].strip()
        self.send("failed", number, kind, said)


def run_statement(statement: ast.stmt, space: dict[str, Any], assertions: Assertions) -> None:
    """Run a statement of the tests, and report the exception that leaves it."""
    module = ast.Module([statement], [])
    try:
        exec(compile(module, "<tests>", "exec", dont_inherit=True), space)
    except BaseException as error:
        if assertions.is_open:
            assertions.record(assertions.last, error)
        else:
            assertions.has_failed = True
            assertions.send("error", *assertions.describe(error))
