"""Messages of a host program go to its logging; those of a command to the terminal, once."""

import io
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from paint.config.metric_records import step_values
from paint.core import display as display_module
from paint.core.display import LOGGER, Clock, Display, progress_lines, shown_on_terminal


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program that imports paint, and has set up no logging."""
    monkeypatch.setattr(LOGGER, "handlers", [])
    level = LOGGER.level
    LOGGER.setLevel(logging.NOTSET)
    yield
    LOGGER.setLevel(level)


def work() -> None:
    """Messages, a warning, and progress that would be shown."""
    display = Display()
    display.note("a message")
    display.warn("a \x1b[31mwarning of 100%s")
    with display.running(2, 0):
        display.step({"step": 1, "loss": 0.5, "seconds_left": 3.0}, ["loss 0.5000"])
    with display.counting("rows", 2) as counter:
        counter.add()


WARNED = "a \\x1b[31mwarning of 100%s"


def test_host_program_without_logging_gets_warnings_on_stderr(
    host: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # without pytest's, which would take them
    work()
    Display(enabled=False).warn("of another rank")
    assert capsys.readouterr() == ("", f"{WARNED}\n")
    LOGGER.setLevel("ERROR")
    work()
    assert capsys.readouterr() == ("", "")


def test_command_prints_each_message_once(host: None, capsys: pytest.CaptureFixture[str]) -> None:
    with shown_on_terminal(), shown_on_terminal():
        work()
        Display(enabled=False).note("of another rank")
    lines = capsys.readouterr().out.splitlines()
    # The count that is over at once has no line.
    assert lines == ["a message", WARNED, "step 1/2  loss 0.5000  3 s left"]
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
        for metrics in (METRICS, METRICS | {"reward": 0.25}):
            display.step(metrics, step_values(metrics, in_full=False))
    first, second = caplog.messages
    assert first == "step 1000/1000  KL 123.4567  correct 100%  1234.6 s  99 h 59 min left"
    assert "reward 0.250" in second
    assert "correct" not in second
    assert len(first) <= 80


def test_phase_without_news_says_how_long_it_lasts(
    host: None, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display_module, "SAY_SECONDS", 0.05)
    LOGGER.setLevel("INFO")
    display = Display()
    with display.running(2, 0):
        clock = Clock(display)
        with clock("loss"):
            time.sleep(0.4)  # as one operation of torch
    count = len(caplog.messages)
    assert count >= 2
    assert set(caplog.messages) == {"loss: for 0 s"}
    with display.working("loading the model"):
        time.sleep(0.2)
    assert caplog.messages[count:][0] == "loading the model: 0 s"
    with display.counting("rollouts scored", 7) as counter:
        time.sleep(0.2)
        counter.to(7)
    assert any(line.startswith("rollouts scored: 0/7, none yet") for line in caplog.messages)
    count = len(caplog.messages)
    time.sleep(0.2)
    assert len(caplog.messages) == count  # nothing is at work any more


def test_terminal_has_one_line_of_progress_below_the_messages(
    host: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display_module, "REDRAW_SECONDS", 0.02)
    monkeypatch.setenv("TERM", "xterm")
    with shown_on_terminal():
        display = Display()
        written = io.StringIO()
        display.console.file = written
        monkeypatch.setattr(type(display.console), "is_terminal", True)
        display.console.is_interactive = True  # which rich finds when it makes the console
        with display.running(2, 0):
            display.phase("loss")
            display.note("a [message]")
            time.sleep(0.3)
            with display.counting("rows [of x]", 7) as counter:
                counter.to(3)
                time.sleep(0.3)
    text = written.getvalue()
    for part in ("a [message]", "step 1/2, loss: for 0 s", "rows [of x]: 3/7"):
        assert part in text


def test_first_step_says_its_length_after_a_part_of_its_loss(
    host: None, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("paint.core.display.time.monotonic", lambda: now[0])
    LOGGER.setLevel("INFO")
    display = Display()
    display.trainings = 4
    with display.running(3, 0):
        clock = Clock(display)
        display.phase("rollout", 1000)
        now[0] += 30
        display.writing(100, 100)
        rollout = display.line()
        display.phase("loss")
        now[0] += 10
        clock.portion(0.25)
        clock.portion(0.5)
    assert rollout == (
        "rollout, 200 tokens, 7 tok/s, at most 2 min 00 s left, 7 min 30 s in all steps"
    )
    # 30 s and four times 10 s, of which 40 s are over; three such steps.
    assert caplog.messages == [
        "time, an estimate: about 1 min 10 s a step, 3 min 30 s for 3 steps, by the first; "
        "14 min 00 s for all 4 trainings if they take as long"
    ]
    assert display.left == "about 2 min 50 s left"


def test_call_from_python_prints_progress_on_stderr_after_some_seconds(
    host: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("paint.core.display.time.monotonic", lambda: now[0])
    display = Display()
    with progress_lines():
        display.note("a message")
        for _ in range(16):
            now[0] += 1
            display.progress(f"at {now[0]:.0f}")
    display.progress("afterwards")
    assert capfd.readouterr() == ("", "paint: at 105\npaint: at 115\n")
