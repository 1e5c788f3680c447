"""Each example that trains is short, and runs as it is in a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = [p for p in sorted((ROOT / "examples").glob("*.py")) if "paint.train(" in p.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_example_is_short_and_leaves_a_finished_run(example: Path, tmp_path: Path) -> None:
    assert len(example.read_text().splitlines()) < 60
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("runs/*/checkpoints/step-*"))
