"""Messages of a host program go to its logging; those of a command to the terminal, once."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paint.core.display import LOGGER, Display, shown_on_terminal


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program that imports paint, and has set up no logging."""
    monkeypatch.setattr(LOGGER, "handlers", [logging.NullHandler()])
    level = LOGGER.level
    LOGGER.setLevel(logging.NOTSET)
    yield
    LOGGER.setLevel(level)


def work() -> None:
    """Messages, a warning, and progress that would be shown."""
    display = Display()
    display.note("a message")
    display.warn("a warning")
    with display.running(2, 0):
        display.step({"step": 1, "loss": 0.5, "seconds_left": 3.0})
    with display.counting("rows", 2) as counter:
        counter.add()


def test_host_program_without_logging_prints_nothing(
    host: None, capfd: pytest.CaptureFixture[str]
) -> None:
    work()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("level", "first"), [("INFO", "a message"), ("WARNING", "a warning")])
def test_host_program_level_decides_what_its_handler_gets(
    host: None, caplog: pytest.LogCaptureFixture, level: str, first: str
) -> None:
    LOGGER.setLevel(level)
    work()
    assert caplog.messages[0] == first
    assert len(caplog.messages) == (4 if level == "INFO" else 1)
    assert {record.name for record in caplog.records} == {"paint"}


def test_command_prints_each_message_once(host: None, capsys: pytest.CaptureFixture[str]) -> None:
    with shown_on_terminal(), shown_on_terminal():
        work()
        Display(enabled=False).note("of another rank")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["a message", "a warning", "step 1/2  loss 0.5000  3 s left"]
    assert len(lines) == 4
    work()
    assert capsys.readouterr().out == ""


TRAIN = """
import logging, sys
import paint
few = {"steps": 1, "batch_size": 2}
paint.train("demo-paint", output_dir=sys.argv[1], train=few)
logging.basicConfig(stream=sys.stderr, format="%(name)s %(message)s")
logging.getLogger("paint").setLevel("INFO")
paint.train("demo-paint", output_dir=sys.argv[2], train=few)
"""


@pytest.mark.slow
def test_training_from_python_is_silent_until_host_sets_level(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRAIN, str(tmp_path / "first"), str(tmp_path / "second")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert result.stdout == ""
    assert str(tmp_path / "first") not in result.stderr
    assert f"paint done: {tmp_path / 'second'}" in result.stderr
