"""Line ranges of the definitions that docs/dev/reading.md names.

A row of its tables is: | `path` | `name` | first to last | what it is |. The ranges are written by
generate_reference.py.
"""

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "paint"
ROW = re.compile(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \| (\d+ to \d+) \|", re.MULTILINE)


def with_lines(page: str) -> str:
    """The page with the current line ranges."""

    def row(match: re.Match[str]) -> str:
        path, name, _ = match.groups()
        first, last = lines_of(path, name)
        return f"| `{path}` | `{name}` | {first} to {last} |"

    return ROW.sub(row, page)


def lines_of(path: str, name: str) -> tuple[int, int]:
    """First and last line of a definition, such as "accumulate" or "Teacher.view"."""
    node: ast.AST = ast.parse((SOURCE / path).read_text(encoding="utf-8"))
    for part in name.split("."):
        node = next(inner for inner in ast.iter_child_nodes(node) if _name_of(inner) == part)
    decorators = getattr(node, "decorator_list", [])
    first = min(inner.lineno for inner in (*decorators, node))
    return first, node.end_lineno  # type: ignore[attr-defined]


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    return getattr(node, "name", "")
