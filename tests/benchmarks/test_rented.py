"""What a rented machine does with pieces that arrive in any order, and with its time."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rented
from models import random_qwen3
from rented import ROWS, Part, new_figures, pack, run

MIB = 2**20


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders of four calls: one of a file of code and the rows, three of a model."""
    data, model = tmp_path / "data", tmp_path / "model"
    data.mkdir()
    model.mkdir()
    for name in ROWS:
        (data / f"{name}.jsonl").write_text(f'{{"id": "{name}"}}\n')
    (model / "weights").write_bytes(random.Random(0).randbytes(int(2.5 * MIB)))
    (model / "config.json").write_text("{}")
    answers = {"ls-files": ["pyproject.toml"], "describe": ["abc-dirty"]}
    monkeypatch.setattr(rented, "git", lambda _, command, *more: answers[command])
    packed = pack(tmp_path / "calls", model, data, tmp_path / "no wheels", piece_mib=1)
    assert [path.name for path in packed] == ["call-00", "call-01", "call-02", "call-03"]
    return tmp_path / "calls"


def script(text: str) -> tuple[str, ...]:
    return sys.executable, "-c", text


def figure(name: str) -> str:
    return f"print('figure', '{{\"name\": \"{name}\"}}', flush=True)\n"


WORKS = script(figure("works"))
FAILS = script(figure("first") + "raise ValueError('it broke')")
KILLED = script(figure("before") + "import os; os.kill(os.getpid(), 9)")
HANGS = script(figure("early") + "import time; time.sleep(60)")
ESCAPES = script(
    "import subprocess\nsubprocess.Popen(['sleep', '4'], start_new_session=True)\n"
    + figure("child")
)


def done(work: Path) -> list[str]:
    """The lines of figures.txt without their seconds."""
    return [line[8:] for line in (work / "figures.txt").read_text().splitlines()]


def test_run_goes_on_after_parts_that_fail_are_killed_or_hang(calls: Path, tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    parts = [
        Part("fails", 30, command=FAILS),
        Part("killed", 30, command=KILLED),
        Part("hangs", 1, command=HANGS),
        Part("escapes", 30, command=ESCAPES),
        Part("works", 30, ("base", "model"), WORKS),
    ]
    began = time.monotonic()
    run(calls, work, out, 2, parts=parts)
    assert time.monotonic() - began < 20
    assert [line.split(" after ")[0] for line in done(work)[1:]] == [
        *("fails: name first", "fails: failed with 1 (ValueError: it broke)"),
        *("killed: name before", "killed: failed with -9 (without a word)"),
        *("hangs: name early", "hangs: stopped"),
        *("escapes: name child", "escapes: done"),
        *("works: name works", "works: done", "end"),
    ]
    for name in ("figures.txt", "details.jsonl"):
        assert (out / name).read_bytes() == (work / name).read_bytes()
    rows = [json.loads(line) for line in (out / "details.jsonl").read_text().splitlines()]
    assert {"part": "hangs", "name": "early"}.items() <= rows[5].items()


def test_new_figures_have_steps_results_and_failures(tmp_path: Path) -> None:
    seed = tmp_path / "gsm8k" / "paint-bounded" / "seed-0"
    seed.mkdir(parents=True)
    rows = [{"step": step, "loss": 0.5, "kl": 0.25, "other": 1} for step in (1, 2, 3)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (seed / "metrics.jsonl").write_text(text + '{"step": 5, "lo')
    result = {"run": "paint-bounded", "seed": 0, "right": [1, 0, 1, 0], "answer_tokens": 3.0}
    results = tmp_path / "gsm8k" / "results.jsonl"
    results.write_text(json.dumps({**result, "seconds": 7.0}) + "\n")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "gsm8k-grpo-0.failed").write_text("Trace\nValueError: no\n")
    run_name = "paint-bounded seed-0"
    right = {"right": 2, "of": 4, "percent": 50.0, "tokens": 3.0, "seconds": 7.0}
    assert dict(new_figures(tmp_path)) == {
        f"{run_name} 1": {"run": run_name, "step": 1, "loss": 0.5, "kl": 0.25},
        f"{run_name} 2": {"run": run_name, "step": 2, "loss": 0.5, "kl": 0.25},
        run_name: {"run": run_name, **right, "_right": "1010"},
        "gsm8k-grpo-0.failed": {"failed": "gsm8k-grpo-0", "error": "ValueError: no"},
    }


@pytest.mark.slow
def test_tiny_model_end_to_end_with_pieces_in_any_order(tmp_path: Path) -> None:
    small = {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "head_size": 16}
    model = random_qwen3(tmp_path / "model", vocabulary=8192, **small)  # type: ignore[arg-type]
    data = tmp_path / "data"
    data.mkdir()
    rows = [
        {"id": str(n), "problem": f"What is {n} + 1?", "solution": f"It is {n + 1}."}
        | {"answer": str(n + 1), "tests": "1"}
        for n in range(10)
    ]
    for name in ROWS:
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = pack(tmp_path / "made", Path(model), data, tmp_path / "no wheels", piece_mib=2)
    assert len(made) > 2
    there = tmp_path / "there"
    random.Random(0).shuffle(made)
    for call in made:
        shutil.copytree(call, there / call.name)
    command = [sys.executable, str(there / "call-00" / "rented.py"), "run", "--rehearse"]
    command += ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    command += ["--minutes", "12", "--parts", "decode-steps", "gsm8k"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE, timeout=800)
    assert ended.returncode == 0
    lines = done(tmp_path / "out")
    assert any("step compiled" in line for line in lines)
    right = [line for line in lines if "percent" in line]
    assert len(right) == 1 + len(rented.ARMS), lines
    assert [line for line in lines if " after " in line] == [
        line for line in lines if ": done after " in line
    ]
    assert lines[-1] == "end"
    assert ended.stdout.endswith((tmp_path / "out" / "figures.txt").read_text() + "\n")
