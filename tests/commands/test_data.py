"""paint data openthoughts and paint data validate."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import paint
from paint.cli import main
from paint.data.openthoughts import make_training_data
from runs import write_problems


@pytest.mark.slow
def test_openthoughts_sample_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"problem": "What is 1+2?", "deepseek_reasoning": "hm", "domain": "math"}
    row |= {"deepseek_solution": "It is \\boxed{6/2}.", "ground_truth_solution": "\\boxed{3}"}
    source = write_problems(tmp_path / "source.jsonl", [row, row | {"domain": "code"}])
    out = tmp_path / "out.jsonl"
    flags = ["--source", source, "--benchmarks", "demo", "--workers", "1"]
    assert main(["data", "openthoughts", str(out), *flags]) == 0
    assert "2 rows, 1 kept, 1 drawn" in capsys.readouterr().out
    assert json.loads(out.read_text())["answer"] == "3"
    again = tmp_path / "again.jsonl"
    settings: dict[str, Any] = {"source": str(source), "workers": 1}
    made = paint.prepare_openthoughts(again, benchmarks=["demo"], **settings)
    assert (made.rows, made.kept) == (2, 1)
    assert again.read_bytes() == out.read_bytes()
    assert main(["data", "validate", str(out), "--model.path", "demo"]) == 0
    assert "1 rows, 1 good" in capsys.readouterr().out
    own = ["demo-paint", "--prompts.student", "{{ answer }}?"]
    assert main(["data", "validate", str(out), *own]) == 0
    assert "user\n3?<|im_end|>" in capsys.readouterr().out

    out.write_text(out.read_text() * 2)
    assert main(["data", "validate", str(out), "--model.path", "demo"]) == 1
    assert main(["data", "validate", str(tmp_path / "none.jsonl"), "--model.path", "demo"]) == 2


def test_data_flags_have_defaults_of_functions() -> None:
    made = inspect.signature(make_training_data).parameters
    for name, parameter in inspect.signature(paint.prepare_openthoughts).parameters.items():
        if name not in ("out", "benchmarks"):
            assert parameter.default == made[name].default, name
