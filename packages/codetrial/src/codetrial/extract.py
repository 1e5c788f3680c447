"""What a completion's text holds as code, and what its tests ask of it.

Nothing is run here. Texts of a model are read in the processes of the sandbox alone: Python's
parser can be made to crash.
"""

import ast
import builtins
import contextlib
import re
import symtable
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from codetrial.fences import NO_PARSE, blocks_of

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef

LIBRARY = sys.stdlib_module_names

_DEFINITION = re.compile(r"^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^(\w+)[ \t]*=", re.MULTILINE)


class Code(NamedTuple):
    """A program in parts, which are run in their order in one module."""

    parts: tuple[str, ...]
    ends_in_text: bool = False  # what follows the code's last line may be prose


def given_code(problem: str, tests: str) -> str:
    """The code of a problem that a completion is to continue; "" where there is none.

    It is the problem's last block, or the problem itself, that holds a function without a body
    which the tests name.
    """
    asked = set(names_of_code(tests))
    for code in [*reversed([block.code for block in blocks_of(problem)]), problem]:
        with contextlib.suppress(*NO_PARSE):
            if stubs(code) & asked:
                return code
    return ""


def code_of(answer: str, names: Sequence[str], given: str = "") -> Code | None:
    """The code of a completion; None without any.

    It is the last block of Python that defines one of the names, or else the last block; blocks of
    other languages do not count, and a block without a tag counts where none has Python's. Behind
    code of the problem (``given``), a text without blocks is code.
    """
    found = list(blocks_of(answer))
    blocks = [block for block in found if block.tag == "python"]
    blocks = blocks or [block for block in found if not block.tag]
    if not blocks:
        return Code((f"{given}\n{answer}",), ends_in_text=True) if given and not found else None
    defining = [block for block in blocks if _defines(block.code, names)]
    code = (defining or blocks)[-1].code
    if given and code.lstrip("\n")[:1] in (" ", "\t"):  # the function's body alone
        return Code((f"{given}\n{code}",))
    return Code((given, code) if given else (code,))


def _defines(code: str, names: Collection[str]) -> bool:
    """Whether a line of code begins the definition of one of the names."""
    return any(name in names for pair in _DEFINITION.findall(code) for name in pair)


def code_before_text(text: str) -> str:
    """A text up to its first line that is no Python; of the text that is left, all is parsed."""
    lines = text.split("\n")
    while lines:
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            # The error may be found behind the last line: then that one is incomplete.
            lines = lines[: min((error.lineno or 1) - 1, len(lines) - 1)]
        else:
            break
    return "\n".join(lines)


def names_of_code(tests: str, given: str = "") -> list[str]:
    """The names in tests that the tested code is to define.

    They are those that neither the tests nor Python define: ``math.pi`` is Python's own, whatever
    the code calls math. Where there is no other, it is the builtin that the tests call, if it is
    only one: ``assert sum(10, 15) == 6``. Functions of the problem's code that have a body are the
    tests' own.
    """
    tree = ast.parse(tests)
    names = free_names(tests)
    names -= helpers(given) | set(own_modules(tree, names))
    asked = {name for name in names if not hasattr(builtins, name)}
    called = {
        plain_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)
    } & names
    if not asked and len(called) == 1:
        asked = called
    return sorted(asked)


def free_names(code: str) -> set[str]:
    """Names that code reads from its module and does not set there."""
    table = symtable.symtable(code, "<tests>", "exec")
    of_module = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    bound = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    }
    inner = table.get_children()
    while inner:
        scope = inner.pop()
        inner += scope.get_children()
        for symbol in scope.get_symbols():
            if symbol.is_global() and symbol.is_referenced():
                of_module.add(symbol.get_name())
    return of_module - bound


def own_modules(tree: ast.AST, names: set[str]) -> list[str]:
    """Those of the names that are modules of the standard library, and stand before dots alone."""
    bases = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    plainly = {plain_name(node) for node in ast.walk(tree) if id(node) not in bases}
    return [name for name in names if name in LIBRARY and name not in plainly]


def plain_name(node: ast.AST) -> str:
    """The name that an expression is; "" for another expression."""
    return node.id if isinstance(node, ast.Name) else ""


def stubs(code: str) -> set[str]:
    """Names of functions without a body: a docstring, ``pass`` or ``...`` alone."""
    found = {node.name: node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}
    return {name for name, node in found.items() if all(map(_does_nothing, node.body))}


def helpers(code: str) -> set[str]:
    """Names of functions with a body."""
    found = {node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}
    return found - stubs(code)


def _does_nothing(statement: ast.stmt) -> bool:
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Pass)


def complete_tests(tests: str, entry: str) -> str:
    """Tests with the calls that they lack.

    A ``check`` of the tests is called for the entry point; functions ``test_*`` without required
    arguments, and the methods ``test*`` of unittest's and pytest's classes, are called in their
    order. Calls of unittest's and pytest's ``main`` are left out.
    """
    tree = ast.parse(tests)
    mains = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and _runs_all(node)]
    if mains:
        tests = _without_statements(tests, mains)
        tree = ast.parse(tests)
    used = names_used(tree)
    calls: list[str] = []
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, FUNCTIONS) and node.name not in used:
            is_async = isinstance(node, ast.AsyncFunctionDef)
            if node.name == "check" and entry.isidentifier():
                calls.append(f"check({entry})")
            elif node.name.startswith("test") and not required(node):
                call = f"{node.name}()"
                calls.append(f'__import__("asyncio").run({call})' if is_async else call)
        elif isinstance(node, ast.ClassDef) and node.name not in used:
            calls += _calls_of_class(node, classes)
    return "\n".join([tests, "", *calls, ""]) if calls else tests


def _runs_all(node: ast.AST) -> bool:
    """Whether a statement calls the ``main`` of unittest or pytest."""
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "main"
        and plain_name(call.func.value) in ("unittest", "pytest")
        for call in ast.walk(node)
    )


def _without_statements(text: str, statements: Sequence[ast.stmt]) -> str:
    """A text with ``pass`` in place of some statements."""
    lines = text.encode().split(b"\n")  # columns of the tree are bytes
    for node in reversed(statements):
        assert node.end_lineno is not None
        before = lines[node.lineno - 1][: node.col_offset]
        after = lines[node.end_lineno - 1][node.end_col_offset :]
        lines[node.lineno - 1 : node.end_lineno] = [before + b"pass" + after]
    return b"\n".join(lines).decode()


def _calls_of_class(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> list[str]:
    """Calls of the test methods of a class; [] for one that is no class of tests."""
    line = list(_bases(node, classes))
    methods: dict[str, _Function] = {}
    for base in reversed(line):
        methods |= {item.name: item for item in base.body if isinstance(item, FUNCTIONS)}
    tested = [name for name in methods if name.startswith("test")]
    is_case = any(
        name_of_base.endswith("TestCase")
        for base in line
        for name_of_base in map(_last_name, base.bases)
    )
    if is_case:
        calls = [f"{node.name}({name!r}).debug()" for name in tested]
        return (
            [f"{node.name}.setUpClass()", *calls, f"{node.name}.tearDownClass()"] if calls else []
        )
    if not node.name.startswith("Test"):
        return []
    calls = []
    for name in tested:
        calls.append(f"__case__ = {node.name}()")
        for other in ("setup_method", name, "teardown_method"):
            if other in methods:
                takes_method = other != name and len(required(methods[other])) > 1
                calls.append(f"__case__.{other}({None if takes_method else ''})")
    return calls


def _bases(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    """A class of the tests, and those that it is derived from."""
    yield node
    for base in node.bases:
        inherited = classes.get(plain_name(base))
        if inherited is not None and inherited is not node:
            yield from _bases(inherited, classes)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else plain_name(node)


def required(node: _Function) -> list[str]:
    """Names of the arguments that a function cannot be called without."""
    taken = [*node.args.posonlyargs, *node.args.args]
    taken = taken[: len(taken) - len(node.args.defaults)]
    named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    return [arg.arg for arg in (*taken, *(arg for arg, default in named if default is None))]


def names_used(tree: ast.AST) -> set[str]:
    """The names that are read, and the attributes."""
    found = {node.id for node in ast.walk(tree) if is_read(node)}  # type: ignore[attr-defined]
    return found | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def is_read(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
