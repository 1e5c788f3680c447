"""Plots: names are shown as they are, whatever they hold."""

from pathlib import Path

import pytest

from paint.evaluation.intervals import Interval
from paint.experiments.plots import Panel, save_plot


@pytest.mark.parametrize("name", ["$\\frac$", "$x_1$", "{best} [a] <b> & c", "a\x1b[31mb", "_$^"])
def test_a_name_with_marks_is_drawn_as_text(name: str, tmp_path: Path) -> None:
    panel = Panel(name, [Interval(0.5, 0.4, 0.6)], [[0.5]], zero=True)
    svg, png = save_plot(tmp_path / "plot", name, [name], [panel])
    shown = name.replace("\x1b", "\\x1b").replace("&", "&amp;")
    shown = shown.replace("<", "&lt;").replace(">", "&gt;")
    assert svg.read_text().count(f">{shown}</text>") == 3
    assert png.stat().st_size > 1000
