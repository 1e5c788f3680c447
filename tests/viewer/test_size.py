"""What a page of 32 rows of 1,024 tokens costs: bytes, and seconds until it can be used."""

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from browser import opened
from paint.core import storage
from paint.core.display import Display
from paint.viewer.run import PageSpec
from paint.viewer.show import show_targets
from runs import stored

ROWS, TOKENS = 32, 1024


@pytest.mark.slow
def test_page_of_32_rows_of_1024_tokens_is_small_and_fast(
    browser: Any, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of random tokens, whose likeliest ones differ in every view: pages of texts are smaller."""
    folder = shutil.copytree(run, tmp_path / "large")
    shutil.rmtree(folder / "tokens")
    [row, *_] = stored(folder)
    rng = random.Random(0)
    rows = []
    for _ in range(ROWS):
        ids = [rng.randrange(5, 700) for _ in range(TOKENS)]
        rows.append(row | {"completion_ids": ids, "engine_log_probs": [-1.0] * TOKENS})
    storage.write_jsonl(folder / "rollouts/step-000001.jsonl", rows)

    began = time.perf_counter()
    page = show_targets([folder], Display(enabled=False), PageSpec(steps=[1]))
    made = time.perf_counter() - began
    size = page.stat().st_size
    with opened(browser, page, "view=rollouts&step=1&row=7") as at:
        seconds = float(at.evaluate("document.documentElement.dataset.seconds"))
        assert at.locator("#tokens .t").count() == TOKENS
    with capsys.disabled():
        print(f"{size / 1e6:.1f} MB, written in {made:.0f} s, ready in {seconds:.2f} s")
    assert size < 10e6
    assert seconds < 2
