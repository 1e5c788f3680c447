"""What the text of a row's tests asks for, and what makes it unfit to judge any code.

Nothing is run here. As texts of a model, tests are read in the processes of the sandbox alone.
"""

import ast
import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from codetrial.assertions import catches, name_of_call, watch
from codetrial.extract import (
    FUNCTIONS,
    complete_tests,
    free_names,
    given_code,
    is_read,
    names_of_code,
    names_used,
    own_modules,
    plain_name,
    required,
)

SHOWN_CHARACTERS = 120

_BUILTINS = frozenset(vars(builtins))

NEEDS_SOLUTION = (
    "which needs the tests beside the code; that is chosen by the row's own solution, so give the "
    "row one that passes its tests"
)


class TestsError(Exception):
    """Tests that can judge no code; the message says why."""


@dataclass(frozen=True, slots=True)
class Tests:
    """The tests of a row, ready to be run.

    Attributes:
        tree: the statements, whose assertions report.
        texts: the assertions.
        names: what the code is to define.
        given: the code of the problem that a completion continues; "" where there is none.
        modules: modules of the standard library that are used without an import.
        catches: whether the tests catch exceptions themselves.
    """

    tree: ast.Module
    texts: list[str]
    names: list[str]
    given: str
    modules: list[str]
    catches: bool


def read_tests(text: str, entry: str, problem: str, *, is_proven: bool) -> Tests:
    """The tests of a row.

    Args:
        entry: name of the function that is tested, or "".
        is_proven: a solution passes them; without one, tests that need the module of the code are
            refused.

    Raises:
        TestsError: they can judge no code. SyntaxError and others of NO_PARSE: they are no Python.
    """
    text = complete_tests(text, entry)
    given = given_code(problem, text)
    names = names_of_code(text, given)
    tree = ast.parse(text)
    modules = own_modules(tree, free_names(text))
    for fault in (_cannot_fail(tree, names), _without_arguments(tree), _not_called(tree)):
        if fault:
            raise TestsError(fault)
    if not is_proven and names:
        need = _needs_module(tree, set(names))
        if need:
            raise TestsError(f"the tests {need}, {NEEDS_SOLUTION}")
    catching = catches(tree)
    texts = watch(tree)
    if not (names and texts):
        lack = "assert nothing" if names else "name nothing that the code could define"
        raise TestsError(f"the tests {lack}")
    return Tests(tree, texts, names, given, modules, catching)


def _cannot_fail(tree: ast.Module, names: Sequence[str]) -> str:
    """The first assertion that holds for any code, as a sentence; "" for none."""
    defined = (*FUNCTIONS, ast.ClassDef)
    own = {node.name for node in ast.walk(tree) if isinstance(node, defined)}
    stored = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    # Of the code's names, those in capitals may be constants.
    functions = {name for name in names if not name.isupper()} | own | _BUILTINS
    functions -= stored | arguments

    truth = _Truth(functions)
    for node in ast.walk(tree):
        asserted = _asserted(node)
        # "assert True" stands in HumanEval's tests, and does no harm beside others.
        is_plain = isinstance(asserted, ast.Constant) and asserted.value is True
        if asserted is not None and not is_plain and truth.is_true(asserted):
            return f"an assertion can never fail: {_line(node)}"
    return ""


class _Truth:
    """Which expressions are true, or false, for any code.

    Args:
        functions: names of functions and classes, which are true.
    """

    def __init__(self, functions: set[str]) -> None:
        self._functions = functions

    def is_true(self, node: ast.expr) -> bool:
        """Whether an expression is true whatever the code does."""
        match node:
            case ast.Constant(value):
                return bool(value)
            case ast.Tuple(items) | ast.List(items) | ast.Set(items):
                return any(not isinstance(item, ast.Starred) for item in items)
            case ast.Dict(keys):
                return any(key is not None for key in keys)
            case ast.JoinedStr() | ast.Lambda() | ast.GeneratorExp():
                return True
            case ast.Name(name):
                return name in self._functions
            case ast.NamedExpr(_, value):
                return self.is_true(value)
            case ast.BoolOp(ast.Or(), values):
                return any(map(self.is_true, values))
            case ast.BoolOp(_, values):
                return all(map(self.is_true, values))
            case ast.UnaryOp(ast.Not(), value):
                return self.is_false(value)
            case ast.UnaryOp(ast.USub() | ast.UAdd(), value):
                return self.is_true(value)
            case ast.IfExp(test, body, other):
                taken = [] if self.is_false(test) else [body]
                taken += [] if self.is_true(test) else [other]
                return all(map(self.is_true, taken))
            case ast.Call(ast.Name("bool"), [value]):
                return self.is_true(value)
            case ast.Call(ast.Name("any"), [ast.List(items) | ast.Tuple(items)]):
                return any(map(self.is_true, items))
            case ast.Call(ast.Name("all"), [ast.List(items) | ast.Tuple(items)]):
                return all(map(self.is_true, items))
            case ast.Call(ast.Name("isinstance"), [_, ast.Name("object")]):
                return True
            case ast.Call(ast.Name("type"), [_]):
                return True
            case ast.Compare(left, [ast.Eq() | ast.Is() | ast.LtE() | ast.GtE()], [right]):
                calls = any(isinstance(inner, ast.Call | ast.Await) for inner in ast.walk(left))
                return not calls and ast.dump(left) == ast.dump(right)
        return False

    def is_false(self, node: ast.expr) -> bool:
        """Whether it is false whatever the code does."""
        match node:
            case ast.Constant(value):
                return not value
            case ast.Tuple(items) | ast.List(items):
                return not items
            case ast.Dict(keys):
                return not keys
            case ast.UnaryOp(ast.Not(), value):
                return self.is_true(value)
            case ast.BoolOp(ast.And(), values):
                return any(map(self.is_false, values))
        return False


def _asserted(node: ast.AST) -> ast.expr | None:
    """The expression that an assertion takes for true."""
    if isinstance(node, ast.Assert):
        return node.test
    if name_of_call(node) in ("assertTrue", "assert_") and isinstance(node, ast.Call) and node.args:
        return node.args[0]
    return None


def _line(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0][:SHOWN_CHARACTERS]


def _without_arguments(tree: ast.Module) -> str:
    """A test function that nothing calls and that needs arguments, as a sentence; "" for none."""
    used = names_used(tree)
    for node in tree.body:
        if isinstance(node, FUNCTIONS) and node.name.startswith("test"):
            needed = required(node)
            if needed and node.name not in used:
                return (
                    f"the test function {node.name} needs arguments ({', '.join(needed)}), and "
                    f"nothing calls it"
                )
    return ""


def _not_called(tree: ast.Module) -> str:
    """Functions that hold all of the assertions, and that nothing calls; "" where some is run."""
    reached, waiting = set[str](), list[ast.stmt]()
    defined: dict[str, list[ast.stmt]] = {}
    has_assertions = False
    for node in tree.body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            defined.setdefault(node.name, []).append(node)
        else:
            waiting.append(node)
    while waiting:
        node = waiting.pop()
        has_assertions |= any(map(_is_assertion, ast.walk(node)))
        for name in names_used(node) - reached:
            reached.add(name)
            waiting += defined.get(name, [])
    idle = [name for name in defined if name not in reached and _asserts(defined[name])]
    if has_assertions or not idle:
        return ""
    return f"the assertions of the tests stand in what nothing calls: {', '.join(idle)}"


def _asserts(nodes: Iterable[ast.stmt]) -> bool:
    return any(_is_assertion(inner) for node in nodes for inner in ast.walk(node))


def _is_assertion(node: ast.AST) -> bool:
    name = name_of_call(node)
    return isinstance(node, ast.Assert) or name.startswith("assert") or name == "raises"


def _needs_module(tree: ast.Module, names: set[str]) -> str:
    """What tests do that is possible in the process of the code alone; "" for nothing.

    It finds what hardly passes between two processes. What some code passes is not found.
    """
    own, instances = _functions_and_instances(tree, names)
    has_next = any(name_of_call(node) == "next" for node in ast.walk(tree))

    def is_instance(node: ast.expr) -> bool:
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return any(map(is_instance, node.elts))
        return _makes_instance(node, names) or plain_name(node) in instances

    for node in ast.walk(tree):
        for need, does in _NEEDS.items():
            if does(node, names):
                return need
        match node:
            case ast.Call(func, arguments, keywords) if _root(func) in names:
                values = [*arguments, *(keyword.value for keyword in keywords)]
                if any(
                    isinstance(value, ast.Lambda) or plain_name(value) in own for value in values
                ):
                    return "pass a function of their own to the code"
            case ast.Call(func, arguments, []) if any(map(is_instance, arguments)):
                if _dotted(func) in _CALCULATES:
                    return _CALCULATE
            case ast.BinOp(left, _, right) if is_instance(left) or is_instance(right):
                return _CALCULATE
            case ast.UnaryOp(ast.USub() | ast.Invert(), value) if is_instance(value):
                return _CALCULATE
            case ast.AugAssign(target) if is_instance(target):
                return _CALCULATE
            case ast.Set(items) if any(map(is_instance, items)):
                return _COMPARE
            case ast.Compare(left, [ast.Eq() | ast.NotEq()], [right]):
                sides = (left, right)
                is_plain = any(isinstance(side, ast.Tuple | ast.Constant) for side in sides)
                if not is_plain and any(
                    is_instance(side) or _is_member(side, names) for side in sides
                ):
                    return _COMPARE
            case ast.Compare(left, [ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()], [right]):
                if is_instance(left) or is_instance(right):
                    return _COMPARE
            case ast.ExceptHandler(ast.Name("StopIteration")) if not has_next:
                return "catch StopIteration of a function of the code"
    return ""


def _functions_and_instances(tree: ast.Module, names: set[str]) -> tuple[set[str], set[str]]:
    """Names of the tests' own functions and classes, and of instances of the code's classes."""
    own, instances = set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                own.add(name)
            case ast.Assign(targets, value):
                bound = set(map(plain_name, targets)) - {""}
                own |= bound if isinstance(value, ast.Lambda) else set()
                instances |= bound if _makes_instance(value, names) else set()
    return own, instances


_COMPARE = "compare instances of the code's classes"
_CALCULATE = "calculate with instances of the code's classes"
_CALCULATES = frozenset(
    (
        *("abs", "hash", "max", "min", "pow", "reversed", "round", "sorted", "sum"),
        *("copy.copy", "copy.deepcopy", "pickle.dumps", "dataclasses.asdict", "asdict", "deepcopy"),
    )
)
_CHANGES = frozenset(
    (
        *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popleft"),
        *("popitem", "remove", "reverse", "setdefault", "sort", "update"),
    )
)
_ASYNC = frozenset(("asyncio", "anyio", "trio"))
_STREAMS = frozenset(
    (
        *("redirect_stdout", "redirect_stderr", "capsys", "capfd"),
        *("sys.stdin", "sys.stdout", "sys.stderr", "sys.argv"),
    )
)
_PATCHES = frozenset(
    (
        *("monkeypatch", "patch", "mock", "Mock", "MagicMock", "random.seed", "sys.modules"),
        *("builtins.input", "builtins.print", "builtins.open"),
    )
)
_FILES = frozenset(
    (
        *("open", "Path", "pathlib", "tempfile", "shutil", "tmp_path"),
        *(f"os.path.{name}" for name in ("exists", "isfile", "isdir", "getsize")),
        *(f"os.{name}" for name in ("environ", "getcwd", "chdir", "mkdir", "makedirs", "remove")),
        *(f"os.{name}" for name in ("unlink", "listdir", "getenv", "putenv", "rename", "rmdir")),
    )
)


def _dotted(node: ast.AST) -> str:
    """The dotted name that an expression is; "" for another expression."""
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return before and f"{before}.{node.attr}"
    return plain_name(node)


def _is_member(node: ast.expr, names: set[str]) -> bool:
    """Whether an expression is a constant of a class of the code, as a member of an Enum is."""
    is_constant = isinstance(node, ast.Attribute) and node.attr.isupper()
    return is_constant and plain_name(node.value) in names and _is_class(node.value)  # type: ignore[attr-defined]


def _changes(node: ast.AST, names: set[str]) -> bool:
    match node:
        case ast.Call(ast.Attribute(ast.Name(name), method)):
            return name in names and not name[:1].isupper() and method in _CHANGES
        case ast.Subscript(ast.Name(name), _, ast.Store() | ast.Del()):
            return name in names
    return False


def _inspects(node: ast.AST, names: set[str]) -> bool:
    match node:
        case ast.Attribute(value, name):
            return name.startswith("__") and _dotted(value).partition(".")[0] in names
        case ast.Call(func, arguments):
            inspects = _dotted(func).startswith("inspect.") or plain_name(func) == "issubclass"
            return inspects and any(_root(argument) in names for argument in arguments)
    return False


def _makes_instance(node: ast.expr, names: set[str]) -> bool:
    """Whether an expression is a call of a class of the code."""
    return isinstance(node, ast.Call) and plain_name(node.func) in names and _is_class(node.func)


def _is_class(node: ast.expr) -> bool:
    return plain_name(node)[:1].isupper()


def _root(node: ast.AST) -> str:
    """The name that an expression of dots, calls and items begins with."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return plain_name(node)


def _names(node: ast.AST | None) -> set[str]:
    return names_used(node) if node is not None else set()


def _catches_own(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.ExceptHandler):
        return bool(_names(node.type) & names)
    is_raises = name_of_call(node) in ("raises", "assertRaises", "assertRaisesRegex", "suppress")
    return is_raises and any(_names(arg) & names for arg in node.args[:1])  # type: ignore[attr-defined]


def _derives(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.ClassDef):
        return any(_names(part) & names for part in (*node.bases, *node.decorator_list))
    return isinstance(node, FUNCTIONS) and any(_names(n) & names for n in node.decorator_list)


def _enters(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.withitem) and _root(node.context_expr) in names


def _uses(words: frozenset[str]) -> Callable[[ast.AST, set[str]], bool]:
    def does(node: ast.AST, names: set[str]) -> bool:
        if isinstance(node, ast.Attribute):
            return _dotted(node) in words or node.attr in words & _STREAMS
        return is_read(node) and plain_name(node) in words - names

    return does


def _awaits(node: ast.AST, names: set[str]) -> bool:
    waits = isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)
    return waits or _uses(_ASYNC)(node, names)


_NEEDS: dict[str, Callable[[ast.AST, set[str]], bool]] = {
    "catch an exception of the code's own": _catches_own,
    "change a value of the code's module": _changes,
    "look into functions or classes of the code": _inspects,
    "derive from the code's classes, or use its decorators": _derives,
    "enter a context of the code": _enters,
    "wait for functions of the code": _awaits,
    "read or write what is printed and typed": _uses(_STREAMS),
    "use files or the environment": _uses(_FILES),
    "replace what the code uses": _uses(_PATCHES),
}
