"""The committed reference pages, and the lines in the reading order, are those of the generator."""

import pytest

import generate_reference
from reading_lines import ROW, with_lines


def test_pages_match_generated_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["generate_reference.py", "--check"])
    assert generate_reference.main() == 0, capsys.readouterr().out


def test_with_lines_corrects_a_row() -> None:
    page = generate_reference.READING.read_text()
    assert len(ROW.findall(page)) >= 30
    [row] = [line for line in page.splitlines() if "`paint_step`" in line]
    wrong = row.replace("`paint_step` | ", "`paint_step` | 9")
    assert wrong != row
    assert with_lines(wrong) == row
