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
import textwrap
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

LIBRARY = sys.stdlib_module_names

_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<tag>[^\s`]*)[^`]*")
_TAGS = ("python", "py", "python3")
_DEFINITION = re.compile(r"^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^(\w+)[ \t]*=", re.MULTILINE)
_NO_PARSE = (SyntaxError, ValueError, RecursionError, MemoryError)


class Block(NamedTuple):
    """A fenced block of Markdown."""

    tag: str  # the language
    code: str


def blocks_of(text: str) -> Iterator[Block]:
    """The fenced blocks of a text; one that is not closed is none."""
    opening: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.splitlines():
        if opening is None:
            opening, lines = _FENCE.fullmatch(line), []
            continue
        end = line.strip()
        if end.startswith(opening["fence"]) and not end.strip(opening["fence"][0]):
            code = "\n".join(lines) + "\n"
            if opening["indent"]:  # a block in a list
                code = textwrap.dedent(code)
            yield Block(opening["tag"].lower(), code)
            opening = None
        else:
            lines.append(line)


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
        with contextlib.suppress(*_NO_PARSE):
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
    blocks = [block for block in found if block.tag in _TAGS]
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
    called = {_name_of(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)} & names
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
    plainly = {_name_of(node) for node in ast.walk(tree) if id(node) not in bases}
    return [name for name in names if name in LIBRARY and name not in plainly]


def _name_of(node: ast.AST) -> str:
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
    """Tests that define ``check`` and do not call it, with a call of it for the entry point."""
    tree = ast.parse(tests)
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    called = {_name_of(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    if entry.isidentifier() and "check" in defined - called:
        return f"{tests}\n\ncheck({entry})\n"
    return tests
