"""The examples of docs/how-to/extend.md are the tested files, and work as they are printed."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from extensions.length_grader import LengthOptions, grade
from paint.core.demo_files import MODEL
from runs import changed, stored, train

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/extend.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


PRINTED = (
    *("shout_engine", "length_grader", "alpha", "reward_weighted", "lion"),
    *("check_answer", "calculator", "words", "sure"),
)


@pytest.mark.parametrize("name", PRINTED)
def test_printed_extension_equals_the_tested_file_of_under_30_lines_of_code(name: str) -> None:
    text = (Path(__file__).parent / f"{name}.py").read_text()
    assert text in BLOCKS
    assert lines_of_code(text) < 30


def lines_of_code(text: str) -> int:
    """Lines but for blank ones, docstrings and imports."""
    tree = ast.parse(text)
    left_out = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr | ast.Import | ast.ImportFrom):
            continue
        if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Constant):
            left_out |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(bool(line.strip()) and number not in left_out for number, line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    "conversation",
    [
        {"environment": "extensions.check_answer:CheckAnswer", "options": {"tries": 3}},
        {"tools": ("extensions.calculator:calculate",)},
    ],
)
def test_printed_environment_and_tool_train(conversation: dict[str, Any], tmp_path: Path) -> None:
    small = {"train": {"steps": 1, "batch_size": 6}, "rollout": {"max_new_tokens": 100}}
    train(changed("demo-paint", small, {"conversation": conversation}), tmp_path)
    rows = stored(tmp_path)
    turns = [len(row["conversation"]["turns"]) for row in rows]
    assert set(turns) <= {1, 2, 3}
    if "environment" in conversation:
        assert max(turns) > 1
        for row, count in zip(rows, turns, strict=True):
            assert row["truncated"] or row["reward"] == 1 or count == 3
    else:
        assert all("calculate" in prompt_of(row) for row in rows)


def prompt_of(row: dict[str, Any]) -> str:
    """The text of a rollout's first prompt."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    return str(tokenizer.decode(row["prompt_ids"]))


def test_printed_context_equals_the_tested_file() -> None:
    page = (ROOT / "docs/how-to/own-context.md").read_text()
    assert f"```python\n{(Path(__file__).parent / 'earlier_context.py').read_text()}```" in page


def test_printed_grader_rewards_a_short_text_with_the_answer() -> None:
    row, options = {"answer": "42"}, LengthOptions(longest=10)
    assert grade("so 42", row, options).reward == 1
    assert grade("so 41", row, options).reward == 0
    assert grade("42" * 1000, row, options).reward == 0
