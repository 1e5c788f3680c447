"""paint data validate."""

from pathlib import Path

import pytest

from paint.cli import main
from runs import write_problems


@pytest.mark.slow
def test_validate_data_prints_counts_and_exits_by_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"problem": "What is 1+2?", "solution": "It is \\boxed{6/2}.", "answer": "3"}
    out = Path(write_problems(tmp_path / "out.jsonl", [row]))
    assert main(["data", "validate", str(out), "--model.path", "demo"]) == 0
    assert "1 rows, 1 good" in capsys.readouterr().out
    own = ["demo-paint", "--prompts.student", "{{ answer }}?"]
    assert main(["data", "validate", str(out), *own]) == 0
    assert "user\n3?<|im_end|>" in capsys.readouterr().out

    out.write_text(out.read_text() * 2)
    assert main(["data", "validate", str(out), "--model.path", "demo"]) == 1
    assert main(["data", "validate", str(tmp_path / "none.jsonl"), "--model.path", "demo"]) == 2
