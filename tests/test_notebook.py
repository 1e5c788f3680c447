"""The notebooks: docs/getting-started/notebook.md as printed, and those of examples/."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from paint.core.demo_files import HELD_OUT_PROBLEMS, TRAINING_PROBLEMS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/getting-started/notebook.md"
FIRST_LOOK = ROOT / "examples/first-look.ipynb"
ONE_GPU = ROOT / "examples/one-gpu.ipynb"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the notebook's libraries
]


@pytest.fixture(autouse=True)
def kernel_finds_paint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"), prepend=os.pathsep)


def test_notebook_page_runs_as_printed(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(block) for block in blocks]
    results = [result for result in _results(notebook, tmp_path) if result]

    metrics, advice, tokens, page, chi_squared, graded, comparisons = results[:7]
    assert "<td>" in metrics["text/html"]
    # Four problems do not tell.
    assert advice["text/html"].startswith("<ul><li>the teacher is not seen to answer better ")
    assert "</li><li>no advice: " in advice["text/html"]
    assert "solution@0.4" in advice["text/html"]
    assert tokens["text/html"].count("<tr") == 6  # a head and five rows
    assert page["text/html"].startswith("<iframe srcdoc=")
    assert "chi_squared" in chi_squared["text/plain"]
    assert "right" in graded["text/plain"]  # rewards by a function of the notebook
    assert "Error" not in graded["text/plain"]
    assert comparisons["text/html"].count("<tr") == 3  # two runs with the base
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
    assert "Avg@4, in % with 95 % interval" in table["text/html"]
    assert comparisons["text/html"].count("<tr") == 1 + 2
    assert samples["text/html"].count("<tr") == 1 + 5


SMALL = f"""
RECIPE = "demo-paint"
DATA = "{TRAINING_PROBLEMS}"
TRAIN = {{"steps": 2, "batch_size": 8}}
VALIDATION = {{"limit": 4, "samples": 4, "max_new_tokens": 48}}
EVALUATION = {{
    "benchmarks": "{HELD_OUT_PROBLEMS}",
    "limit": 4,
    "samples": 4,
    "rollout": {{"max_new_tokens": 48}},
}}
"""
"""Parameters of the notebook of one GPU for the demo's model on a CPU."""


def test_one_gpu_runs_on_demo_and_is_stored_without_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"])
    notebook = nbformat.read(ONE_GPU, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    cells = {tag: cell for cell in notebook.cells for tag in cell.metadata.get("tags", [])}
    cells["parameters"].source = SMALL
    notebook.cells = [c for c in notebook.cells if "downloads" not in c.metadata.get("tags", [])]
    results = [result for result in _results(notebook, tmp_path) if result]
    said = "".join(o.text for c in notebook.cells for o in c.get("outputs", []) if "text" in o)

    assert "demo-paint: " in said  # paint doctor
    assert "(936 right)" in said  # paint data validate: the demo's 1,000 rows without the last 64
    assert "fits     yes" in said  # paint plan
    validation, differences, metrics, page, table, comparisons = results
    assert validation["text/html"].count("avg_at_k") == 2  # the base and the last checkpoint
    assert differences["text/html"].count("<tr") == 1 + 1
    assert metrics["text/html"].count("<tr") == 2 + 2  # steps, below two lines of names
    assert page["text/html"].startswith("<iframe srcdoc=")
    assert "Avg@4, in % with 95 % interval" in table["text/html"]
    assert "one-gpu-step-000002" in comparisons["text/plain"]
    assert (tmp_path / "exported/one-gpu/adapter_model.safetensors").exists()
    assert "# one-gpu" in said  # its model card


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
            assert not any("IProgress" in o.get("text", "") for o in cell.outputs)
            shown = [o.data for o in cell.outputs if o.output_type == "execute_result"]
            results.append(dict(shown[0]) if shown else {})
    return results
