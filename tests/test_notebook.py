"""docs/getting-started/notebook.md, executed as printed by a real notebook kernel."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/getting-started/notebook.md"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the notebook's libraries
def test_notebook_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv(
        "PYTHONPATH", str(ROOT / "src") + os.pathsep + os.environ.get("PYTHONPATH", "")
    )
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(block) for block in blocks]
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()

    results = [_result(cell) for cell in notebook.cells]
    assert "<td>" in results[0]["text/html"]  # metrics
    assert results[2]["text/html"].count("<tr") == 6  # tokens: a head and five rows
    assert results[3]["text/html"].startswith("<iframe srcdoc=")
    assert "chi_squared" in results[4]["text/plain"]
    assert "right" in results[5]["text/plain"]  # rewards by a function of the notebook
    assert "Error" not in results[5]["text/plain"]
    assert results[6]["text/html"].count("<tr") == 3  # comparisons of two runs with the base
    for cell in notebook.cells:  # progress is lines, not a table drawn over and over
        assert len(cell.outputs) < 60
    assert (tmp_path / "runs/callback/checkpoints").is_dir()


def _result(cell: Any) -> dict[str, str]:
    """The displayed value of a cell, by type."""
    found = [output.data for output in cell.outputs if output.output_type == "execute_result"]
    return dict(found[0]) if found else {}
