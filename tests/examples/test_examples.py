"""Each example that trains is short, and runs as it is in a folder of its own."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = [p for p in sorted((ROOT / "examples").glob("*.py")) if "paint.train(" in p.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_example_is_short_and_leaves_a_finished_run(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(example.read_text().splitlines()) < 60
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
    assert list(tmp_path.glob("runs/*/checkpoints/step-*"))
