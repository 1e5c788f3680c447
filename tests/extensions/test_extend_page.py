"""The examples of docs/how-to/extend.md are the tested files, and work as they are printed."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/extend.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_printed_engine_and_divergence_equal_the_tested_files() -> None:
    for name in ("shout_engine.py", "chi_squared.py", "reward_weighted.py", "lion.py"):
        assert (Path(__file__).parent / name).read_text() in BLOCKS


def test_printed_context_equals_the_tested_file() -> None:
    page = (ROOT / "docs/how-to/own-context.md").read_text()
    assert f"```python\n{(Path(__file__).parent / 'earlier_context.py').read_text()}```" in page


def test_printed_grader_rewards_a_short_text_with_the_answer() -> None:
    [block] = [block for block in BLOCKS if "def grade(" in block]
    names: dict[str, Any] = {}
    exec(block, names)
    row = {"answer": "42"}
    assert names["grade"]("so 42", row).reward == 1
    assert names["grade"]("so 41", row).reward == 0
    assert names["grade"]("42" * 1000, row).reward == 0
