"""How long a training takes: what is told, and what is asked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paint.cli import main
from paint.core import display
from paint.core.display import Display
from paint.core.errors import PaintError
from paint.training import step_time
from paint.training.step_time import LONG, LongWork


def test_long_work_asks_once_for_all_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_time, "agrees", lambda: False)
    shown = Display()
    LongWork(shown, trainings=2)(LONG / 2 - 1)
    LongWork(shown, trainings=2, confirm=True)(LONG)
    work = LongWork(shown, "first", trainings=2)
    with pytest.raises(PaintError, match="before anything was saved"):
        work(LONG / 2)
    work(LONG)  # the second training


def test_train_of_hours_is_asked_about_before_its_first_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step_time, "LONG", 0.0)
    monkeypatch.setattr(step_time, "agrees", lambda: False)
    line = ["train", "demo-paint", "--data.limit", "4", "--train.steps", "1", "--train.batch-size"]
    line += ["2", "--rollout.max-new-tokens", "8", "--log.folder", str(tmp_path), "--log.name"]
    assert main([*line, "a"]) == 2
    assert f"`paint resume {tmp_path / 'a'}` goes on" in capsys.readouterr().err
    assert not (tmp_path / "a/metrics.jsonl").exists()
    assert not list((tmp_path / "a").glob("checkpoints/*"))
    assert main([*line, "b", "--yes"]) == 0
    said = capsys.readouterr().out
    assert said.count("time, an estimate: about ") == 1


@pytest.mark.parametrize(
    ("is_command", "sits", "answer", "agreed"),
    [
        (True, True, "y", True),
        (True, True, "", False),
        (True, False, "n", True),  # nobody is there
        (False, True, "n", True),  # a script of the user's own
    ],
)
def test_agrees_asks_on_the_terminal_of_a_command_alone(
    monkeypatch: pytest.MonkeyPatch, is_command: bool, sits: bool, answer: str, agreed: bool
) -> None:
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: sits, raising=False)
    handler: Callable[[], Any] = (lambda: object()) if is_command else (lambda: None)
    monkeypatch.setattr(display, "_terminal_handler", handler)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert display.agrees() is agreed
