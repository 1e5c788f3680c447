"""The committed reference pages, and the lines in the reading order, are those of the generator."""

import pytest

import generate_reference


def test_pages_match_generated_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["generate_reference.py", "--check"])
    assert generate_reference.main() == 0, capsys.readouterr().out
