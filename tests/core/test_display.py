"""Messages of a host program go to its logging; those of a command to the terminal, once."""

import logging
from collections.abc import Iterator
from typing import Any

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


METRICS = {
    "step": 1000,
    "loss": -0.1234,
    "kl": 123.4567,
    "accuracy": 1.0,
    "completion_tokens": 40.0,
    "seconds_rollout": 1200.0,
    "seconds_loss": 34.56,
    "seconds_left": 359_940.0,
}


def test_step_line_has_four_values_in_80_columns(host: None, caplog: Any) -> None:
    LOGGER.setLevel("INFO")
    display = Display()
    with display.running(1000, 0):
        display.step(METRICS)
        display.step(METRICS | {"reward": 0.25})
    first, second = caplog.messages
    assert first == "step 1000/1000  KL 123.4567  correct 100%  1234.6 s  99 h 59 min left"
    assert "reward 0.250" in second
    assert "correct" not in second
    assert len(first) <= 80


def test_step_line_has_all_metrics_at_level_debug(host: None, caplog: Any) -> None:
    LOGGER.setLevel("DEBUG")
    display = Display()
    with display.running(1000, 0):
        display.step(METRICS)
    [line] = caplog.messages
    for value in ("loss -0.1234", "KL to target 123.4567", "answers correct 100%", "40 tokens"):
        assert value in line


def test_counter_of_unknown_or_low_total_never_counts_beyond_it(host: None) -> None:
    display = Display()
    with display.counting("rows", 0) as counter:
        counter.to(40)
        assert counter.line() == "rows: 40, 0 s"
    with display.counting("rows", 3) as counter:
        counter.to(5)
        assert counter.line() == "rows: 5/5, 0 s"
