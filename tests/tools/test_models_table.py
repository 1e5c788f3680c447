"""The committed page of models is the one that its generator makes."""

import re

import pytest
from transformers import __version__

import models_table


@pytest.mark.slow
def test_models_page_matches_generated_one() -> None:
    written = models_table.PAGE.read_text(encoding="utf-8")
    version = re.findall(r"transformers ([\d.]+\d)", written)
    if version != [__version__]:
        pytest.skip(f"the page is of transformers {version}")
    assert written == models_table.page()
