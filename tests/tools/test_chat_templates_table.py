"""The committed table of chat templates is the one that its generator makes."""

import re
from importlib.metadata import version
from importlib.util import find_spec

import pytest

import chat_templates_table as generator


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("trl"), reason="the templates are read from TRL")
def test_chat_templates_table_matches_generated_one() -> None:
    written = generator.PAGE.read_text(encoding="utf-8")
    versions = re.search(r"TRL (\S+), transformers (\S+)\.", written)
    if not versions or versions.groups() != (version("trl"), version("transformers")):
        pytest.skip(f"the table is of {versions and versions[0]}")
    assert written == generator.page(written)
    assert "differ |" not in written  # every template with tools gives its calls back
