"""Axes of the pages' charts, by the functions of charts.js in node."""

import json
import shutil
import subprocess
from importlib.resources import files
from typing import Any

import pytest

ASSETS = files("paint.lab.viewer") / "assets"

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def evaluated(expression: str) -> Any:
    """The value of an expression of the pages' scripts."""
    base = (ASSETS / "base.js").read_text()
    start, end = base.index("function fixed("), base.index("// The address holds")
    script = base[start:end] + (ASSETS / "charts.js").read_text()
    line = ["node", "-e", f"{script};console.log(JSON.stringify({expression}))"]
    return json.loads(subprocess.run(line, capture_output=True, check=True, text=True).stdout)


def test_extent_of_shares_stays_within_zero_and_one() -> None:
    assert evaluated("extent([0, 0], { share: true })") == [0, 0.5]
    assert evaluated("extent([1, 1], { share: true })") == [0.9, 1]
    assert evaluated("extent([0.2, 0.4], { share: true })") == [0.2, 0.4]
    assert evaluated("extent([0, 0])") == [-0.5, 0.5]


def test_ticks_of_steps_are_integers() -> None:
    for low, high in ((1, 2), (1, 4), (0, 7), (1, 30), (5, 5), (1, 1000)):
        found = evaluated(f"ticks({low}, {high}, 6, {{ whole: true }})")
        assert found
        assert all(isinstance(tick, int) for tick in found)
        assert len(found) <= 8


def test_tick_labels_differ_where_ticks_do() -> None:
    for form in ("percent", "points", "number"):
        labels = evaluated(f"ticks(0.98, 0.99).map(tickLabel({form}))")
        assert len(set(labels)) == len(labels) > 2
    assert evaluated("tickLabel(percent)(0.985)") == "98.5 %"
    assert evaluated("tickLabel(points)(-0.005)") == "\u22120.5"
