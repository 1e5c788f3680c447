"""The notebooks: docs/getting-started/notebook.md as printed, and examples/first-look.ipynb."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/getting-started/notebook.md"
FIRST_LOOK = ROOT / "examples/first-look.ipynb"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the notebook's libraries
]


@pytest.fixture(autouse=True)
def kernel_finds_paint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PYTHONPATH", str(ROOT / "src") + os.pathsep + os.environ.get("PYTHONPATH", "")
    )


def test_notebook_page_runs_as_printed(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(block) for block in blocks]
    results = _results(notebook, tmp_path)

    assert "<td>" in results[0]["text/html"]  # metrics
    assert results[2]["text/html"].count("<tr") == 6  # tokens: a head and five rows
    assert results[3]["text/html"].startswith("<iframe srcdoc=")
    assert "chi_squared" in results[4]["text/plain"]
    assert "right" in results[5]["text/plain"]  # rewards by a function of the notebook
    assert "Error" not in results[5]["text/plain"]
    assert results[6]["text/html"].count("<tr") == 3  # comparisons of two runs with the base
    assert (tmp_path / "runs/callback/checkpoints").is_dir()


def test_first_look_runs_and_is_stored_without_outputs(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(FIRST_LOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    results = [result for result in _results(notebook, tmp_path) if result]

    metrics, tokens, page, table, comparisons, samples = results
    assert metrics["text/html"].count("<tr") == 2 + 8  # steps, below two lines of names
    assert tokens["text/html"].count("<tr") == 1 + 8
    assert page["text/html"].startswith("<iframe srcdoc=")
    assert table["text/html"].count("avg_at_k") == 3  # the base and two checkpoints
    assert comparisons["text/html"].count("<tr") == 1 + 2
    assert samples["text/html"].count("<tr") == 1 + 5


def _results(notebook: Any, folder: Path) -> list[dict[str, str]]:
    """The displayed value of each code cell, by type, after all have run in the folder."""
    nbclient = pytest.importorskip("nbclient")
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(folder)}}
    ).execute()
    results = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert len(cell.outputs) < 60  # progress is lines, not a table drawn over and over
            shown = [o.data for o in cell.outputs if o.output_type == "execute_result"]
            results.append(dict(shown[0]) if shown else {})
    return results
