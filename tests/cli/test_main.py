"""The entry point: exit statuses, streams, locales and interruptions."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import paint
from paint.cli import main
from paint.evaluation import grade

Said = Callable[[], str]

USER_ERRORS = [
    ("resume nowhere", "nowhere holds no run"),
    ("grade x --grading.deadline 0", "grading.deadline must be in [0.01, 86400], got 0"),
    ("eval nowhere/model --benchmarks demo", "nowhere/model"),
    ("resume runs/a --gpus=-1", "gpus must be at least 0"),
    ("train demo-paint --train.st\u202eeps 1", "--train.st\\u202eeps"),
    ("plan demo-paint -- --train.steps=1", '"--" is one value too many'),
    ("trian demo-paint", "did you mean train?"),
    ("advise demo-paint --train.method sft", 'train.method "sft"'),
    ("train nowhere.toml", "nowhere.toml cannot be read: No such file or directory"),
    ("advise nowhere.toml", "nowhere.toml cannot be read"),
    ("bake nowhere.md nowhere.jsonl demo-bake", "nowhere"),
    ("compare nowhere.toml", "nowhere.toml cannot be read"),
    ("config nowhere.toml", "nowhere.toml cannot be read"),
    ("data validate nowhere.jsonl demo-paint", "nowhere.jsonl"),
    ("data validate nowhere.jsonl demo-paint --data.limit 5", "nowhere.jsonl"),
    ("data validate demo demo-paint --data.path other.jsonl", "data.path is given twice"),
    ("demo nowhere", "nowhere"),
    ("export nowhere out", "nowhere"),
    ("grade nowhere", "nowhere"),
    ("held-out-kl nowhere nowhere.jsonl", "nowhere holds no run"),
    ("plan nowhere.toml", "nowhere.toml cannot be read"),
    ("runs nowhere", "nowhere holds no run"),
    ("show nowhere", "nowhere holds neither a run"),
    ("train", "RECIPE"),
    ("train demo-paint ---train.steps 1", "unknown flag ---train.steps"),
    ("train demo-paint --train 1", "--train; it is a section, of settings such as train."),
    ("train demo-paint --train.options.foo 1", "unknown option train.options.foo"),
    ("train demo-grpo --train.options.clp 0.1", "did you mean clip?"),
    ("plan paint --memory x", '--memory must be a number or None, got "x"'),
    ("runs a b", '"b" is one value too many'),
    ("data validat", "did you mean data validate?"),
    ("--frobnicate", "there are advise, bake"),
]


@pytest.mark.parametrize(("line", "message"), USER_ERRORS)
def test_main_user_error_exits_with_2_and_writes_nothing(
    line: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 1
    error = printed.err
    assert message in error
    assert "Traceback" not in error
    assert "\u202e" not in error
    assert not list(tmp_path.iterdir())


def test_main_out_of_memory_exits_with_2_and_advice(
    monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    def ask(*_: object, **__: object) -> None:
        torch.empty(2**62, dtype=torch.uint8)

    monkeypatch.setattr("paint.commands.train.configure", ask)
    assert main(["train", "demo-paint"]) == 2
    error = said()
    assert "there is not enough memory; lower train.micro_batch_tokens" in error
    assert "Traceback" not in error


def test_main_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == main(["-V"]) == 0
    assert capsys.readouterr().out == f"paint {paint.__version__}\n" * 2


def test_main_unexpected_error_exits_with_70_and_prints_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grade, "summarise", lambda *_: 1 // 0)
    assert main(["grade", "empty"]) == 70
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert error.endswith(
        "(ZeroDivisionError, which paint did not expect); please report it with the lines above\n"
    )


TRAIN = ["train", "demo-paint", "--train.steps=2", "--train.batch-size=2", "--log.name=mine"]
TRAIN += ["--rollout.max-new-tokens=4", "--log.folder"]


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paint, env = f"'{sys.executable}' -m paint.cli", os.environ | environment
    bash = ["bash", "-c", f'set -o pipefail; paint() {{ {paint} "$@"; }}; {line}']
    said: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
    return subprocess.run(bash, env=env, **said)


@pytest.mark.slow
def test_train_closed_stdout_continues(tmp_path: Path) -> None:
    for number, listener in enumerate(("| head -1", ">&-")):
        folder = tmp_path / str(number)
        result = shell(f"paint {' '.join(TRAIN)} {folder} {listener}")
        assert result.returncode == 0, result.stderr
        assert (folder / "mine/checkpoints/step-000002").is_dir()
        assert "Traceback" not in result.stderr


def test_cli_interrupted_before_main_prints_nothing(tmp_path: Path) -> None:
    (tmp_path / "filelock.py").write_text("raise KeyboardInterrupt")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    line, env = [sys.executable, "-m", "paint.cli", "--help"], os.environ | {"PYTHONPATH": paths}
    ended = subprocess.run(line, env=env, capture_output=True)
    assert (ended.returncode, ended.stderr) == (130, b"")


def test_command_in_which_foreign_code_calls_exit_has_not_succeeded(
    monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    def leave(*_: Any, **__: Any) -> None:
        sys.exit(0)

    monkeypatch.setattr("paint.cli.parser.Line.call", leave)
    assert main(["runs", "nowhere"]) == 2
    assert f"{Path(__file__).name} line" in said()


def test_main_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(grade, "summarise", interrupt)
    assert main(["grade", "empty"]) == 130


@pytest.mark.slow
def test_main_closed_stdout_ends_silently() -> None:
    for line in ("train demo-paint --help", "data validate demo --model.path demo"):
        result = shell(f"paint {line} | true")
        assert (result.returncode in (0, 141), result.stderr) == (True, ""), line
