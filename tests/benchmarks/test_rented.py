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
from rented import PARTS, ROWS, Arrived, Part, new_figures, pack, run

ROOT = Path(rented.__file__).parents[1]
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


def test_pack_writes_pieces_below_the_size_with_manifest_and_script(calls: Path) -> None:
    manifests = {(call / "manifest.json").read_text() for call in calls.iterdir()}
    assert len(manifests) == 1
    assert all((call / "piece").stat().st_size <= MIB for call in calls.iterdir())
    assert all((call / "rented.py").exists() for call in calls.iterdir())
    groups = json.loads(manifests.pop())["groups"]
    assert [piece["name"] for piece in groups["base"]] == ["call-00/piece"]
    assert len(groups["model"]) == 3


def test_unpack_gives_every_file_back(calls: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    arrived = Arrived(calls, work)
    assert arrived.unpack("model", 9, print) == arrived.unpack("base", 9, print) == []
    for name in ("weights", "config.json"):
        assert (work / "model" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()
    assert (work / "data/mbpp_test.jsonl").read_text() == '{"id": "mbpp_test"}\n'
    assert (work / "code/pyproject.toml").exists()


def test_unpack_names_pieces_that_are_missing_or_damaged(calls: Path, tmp_path: Path) -> None:
    kept = shutil.copytree(calls / "call-02", tmp_path / "kept")
    shutil.rmtree(calls / "call-02")
    arrived = Arrived(calls, tmp_path)
    assert arrived.unpack("model", 9, print) == ["call-02/piece is missing"]
    shutil.copytree(kept, calls / "call-02")
    (calls / "call-02" / "piece").write_bytes(b"half of it")
    assert arrived.unpack("model", 9, print) == ["call-02/piece is damaged"]
    shutil.copy(kept / "piece", calls / "call-02" / "piece")
    assert arrived.unpack("model", 9, print) == []


def test_piece_of_an_earlier_pack_counts_as_damaged(calls: Path, tmp_path: Path) -> None:
    (calls / "call-03" / "manifest.json").write_text("{}")
    (calls / "call-03" / "piece").write_bytes(b"old")
    assert Arrived(calls, tmp_path).unpack("model", 9, print) == ["call-03/piece is damaged"]


def test_command_that_fails_is_said_and_the_parts_may_try(calls: Path, tmp_path: Path) -> None:
    said: list[str] = []
    arrived = Arrived(calls, tmp_path)
    arrived.manifest["commands"]["base"] = "false"
    assert arrived.unpack("base", 9, said.append) == []
    assert "status 1" in said[0]


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


def test_run_ends_before_its_time_and_says_what_had_none(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rented, "FEWEST", 1.0)
    parts = [Part("first", 60, command=HANGS), Part("second", 60, command=WORKS)]
    began = time.monotonic()
    run(calls, tmp_path, None, (rented.SPARE + 2) / 60, parts=parts)
    assert 1.5 < time.monotonic() - began < 6
    assert done(tmp_path)[1:] == [
        *("first: name early", "first: stopped after 2 s"),
        *("second: not run: no time was left", "end"),
    ]


def test_part_whose_piece_is_missing_waits_behind_the_others(calls: Path, tmp_path: Path) -> None:
    work, late = tmp_path / "work", tmp_path / "late"
    shutil.move(calls / "call-01", late)
    brings = script(f"import shutil; shutil.move({str(late)!r}, {str(calls / 'call-01')!r})")
    needs = Part("needs", 30, ("base", "model"), WORKS)
    run(calls, work, None, 2, parts=[needs, Part("works", 30, command=WORKS)])
    assert done(work)[-2:] == ["needs: not run: call-01/piece is missing", "end"]
    run(calls, work, None, 2, parts=[needs, Part("brings", 30, command=brings)])
    assert [line.split(" after ")[0] for line in done(work)[-4:]] == [
        *("brings: done", "needs: name works", "needs: done", "end")
    ]


def test_run_does_what_was_not_tried_and_what_is_named_again(calls: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    parts = [Part("fails", 30, command=FAILS), Part("works", 30, command=WORKS)]
    run(calls, work, None, 2, ["fails"], parts=parts)
    run(calls, work, None, 2, parts=parts)
    run(calls, work, None, 2, parts=parts)
    run(calls, work, None, 2, ["fails"], parts=parts)
    ends = [line.split(":")[0] for line in done(work) if " after " in line]
    assert ends == ["fails", "works", "fails"]
    assert done(work).count("fails: name first") == 1  # told again, and written once


def test_run_waits_for_one_that_works_already(calls: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    holds = (
        "import fcntl, sys, time\nfile = open(sys.argv[1], 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "print(1, flush=True)\ntime.sleep(1)"
    )
    work.mkdir()
    other = subprocess.Popen(
        [sys.executable, "-c", holds, str(work / ".lock")], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "1\n"
    began = time.monotonic()
    run(calls, work, None, 2, parts=[Part("works", 30, command=WORKS)])
    assert time.monotonic() - began > 0.5
    assert other.wait() == 0
    other.stdout.close()


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


def test_arms_are_runs_of_the_example_and_parts_have_work() -> None:
    from qwen.run import names_of

    assert set(rented.ARMS) <= set(names_of("gsm8k"))
    assert [part.name for part in PARTS] == ["decode", "gsm8k", "peers", "long", "seeds"]
    assert {part.name for part in PARTS} == set(rented.WORK)


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
    command += ["--minutes", "12", "--parts", "decode", "gsm8k"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE, timeout=800)
    assert ended.returncode == 0
    lines = done(tmp_path / "out")
    assert any("tokens_per_second" in line for line in lines)
    right = [line for line in lines if "percent" in line]
    assert len(right) == 1 + len(rented.ARMS), lines
    assert [line for line in lines if " after " in line] == [
        line for line in lines if ": done after " in line
    ]
    assert lines[-1] == "end"
    assert ended.stdout.endswith((tmp_path / "out" / "figures.txt").read_text() + "\n")
