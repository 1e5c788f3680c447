"""The page "Read this code in 30 minutes" names definitions that stand on the lines it says."""

import re
from pathlib import Path

import pytest

from reading_lines import ROW, SOURCE, with_lines

PAGE = (Path(__file__).parents[2] / "docs/dev/reading.md").read_text()
ROWS = ROW.findall(PAGE)


def test_reading_page_has_rows() -> None:
    assert len(ROWS) >= 30
    assert len(ROWS) == len(re.findall(r"^\| `", PAGE, re.MULTILINE))


@pytest.mark.parametrize(("path", "name", "lines"), ROWS)
def test_reading_page_named_definition_is_on_its_lines(path: str, name: str, lines: str) -> None:
    first, last = map(int, lines.split(" to "))
    text = (SOURCE / path).read_text().splitlines()
    head = "\n".join(text[first - 1 : first + 2])
    last_name = name.rpartition(".")[2]
    assert re.search(rf"^\s*((def|class) {last_name}\b|{last_name} = )", head, re.MULTILINE)
    following = [line for line in text[last:] if line.strip()]
    indent = len(text[first - 1]) - len(text[first - 1].lstrip())
    assert not following or len(following[0]) - len(following[0].lstrip()) <= indent


def test_with_lines_moved_definition_changes_its_row() -> None:
    wrong = PAGE.replace("`paint_step` | ", "`paint_step` | 9")
    assert wrong != PAGE
    assert with_lines(wrong) == PAGE
