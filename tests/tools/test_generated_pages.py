"""The committed pages are those that their generators make."""

import re
from importlib.metadata import version
from importlib.util import find_spec

import pytest
from transformers import __version__

import chat_templates_table
import generate_reference
import models_table


def test_pages_match_generated_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["generate_reference.py", "--check"])
    assert generate_reference.main() == 0, capsys.readouterr().out


@pytest.mark.slow
def test_models_page_matches_generated_one() -> None:
    written = models_table.PAGE.read_text(encoding="utf-8")
    found = re.findall(r"transformers ([\d.]+\d)", written)
    if found != [__version__]:
        pytest.skip(f"the page is of transformers {found}")
    assert written == models_table.page()


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("trl"), reason="the templates are read from TRL")
def test_chat_templates_table_matches_generated_one() -> None:
    written = chat_templates_table.PAGE.read_text(encoding="utf-8")
    versions = re.search(r"TRL (\S+), transformers (\S+)\.", written)
    if not versions or versions.groups() != (version("trl"), __version__):
        pytest.skip(f"the table is of {versions and versions[0]}")
    assert written == chat_templates_table.page(written)
    assert "differ |" not in written  # every template with tools gives its calls back
