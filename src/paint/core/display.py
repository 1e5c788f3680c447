"""Log and progress of a run: a line per step, and in a terminal a line of progress below them.

Messages go to Python's logging under the name ``paint``. A command shows them and the progress on
the terminal. In a host program that sets up no logging, Python prints warnings on stderr, and
progress follows after some seconds, unless it sets the level of ``logging.getLogger("paint")``.
"""

import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.status import Status
from rich.text import Text

from paint.core.errors import is_output_unread, sanitize_for_terminal

T = TypeVar("T")

LOGGER = logging.getLogger("paint")  # without a handler, so that Python prints its warnings

SAY_SECONDS = 20.0  # seconds between progress lines without a terminal
QUIET_SECONDS = 5.0  # of a call from Python, before its first line on stderr
LINE_SECONDS = 10.0  # between its lines
LEAST_SECONDS = 1.0  # of a count that is over, for a line
REDRAW_SECONDS = 0.25  # between updates of the line of progress on a terminal
LOG_WIDTH = 200  # width of tables without a terminal, in characters


class Terminal(Console):
    """A rich console that prints text verbatim."""

    def __init__(self, file: Any = None, *, width: int | None = None, quiet: bool = False) -> None:
        # With markup, rich would read [model] in a message as a style.
        options: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
        super().__init__(file=file, width=width, quiet=quiet, soft_wrap=True, **options)
        if width is None and not self.is_terminal:
            self.width = LOG_WIDTH

    def render_str(self, text: str, **options: Any) -> Text:
        """Sanitize every text that rich renders, including titles and cells of tables."""
        return super().render_str(sanitize_for_terminal(text), **options)

    def on_broken_pipe(self) -> None:
        """Continue silently after the reader has closed stdout."""
        # rich would end the process with status 1.
        self.quiet = True
        is_output_unread()


class TerminalHandler(logging.Handler):
    """Prints messages on the terminal, above the progress display if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.console = Terminal()

    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else None
        self.console.print(record.getMessage(), style=style)


@contextmanager
def shown_on_terminal() -> Iterator[None]:
    """Show messages of level INFO and the progress on the terminal within the block."""
    if _terminal_handler() is not None:
        yield
        return
    handler, level = TerminalHandler(), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)


def _terminal_handler() -> TerminalHandler | None:
    return next((one for one in LOGGER.handlers if isinstance(one, TerminalHandler)), None)


class ProgressLines:
    """Progress on stderr of a call from Python, of which the host's logging shows nothing."""

    def __init__(self) -> None:
        self.printed = time.monotonic() + QUIET_SECONDS - LINE_SECONDS

    def write(self, text: str) -> None:
        """Print a line, unless the last one, or the beginning, was a moment ago."""
        now = time.monotonic()
        if now - self.printed >= LINE_SECONDS:
            self.printed = now
            print(f"paint: {sanitize_for_terminal(text)}", file=sys.stderr, flush=True)


_lines: ProgressLines | None = None  # of the call under way


@contextmanager
def progress_lines() -> Iterator[None]:
    """Print progress on stderr within the block, unless the host decides on the messages."""
    global _lines
    is_decided = LOGGER.level != logging.NOTSET or LOGGER.isEnabledFor(logging.INFO)
    if _lines is not None or is_decided or sys.stderr is None:
        yield
        return
    _lines = ProgressLines()
    try:
        yield
    finally:
        _lines = None


class Display:
    """Progress of one run on one rank; silent if disabled, as on all ranks but the first."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.console: Console = Terminal(quiet=True)
        handler = _terminal_handler()
        if enabled and handler is not None:
            # Messages and progress share a console: a message must not cut the line of progress.
            self.console = handler.console
        self.steps = self.first = self.done = 0
        self.began = self.phase_began = time.monotonic()
        self.phase_name, self.left = "writing", ""
        self.tokens = self.most_tokens = 0  # that the phase has written, and may; 0 is unknown
        self.share = 0.0  # of the phase that is done, where it is known
        self.step_began: float | None = None  # of the first step, until its length was said
        self.is_first_step = True
        self.trainings = 1  # that take as long as this one
        self.count: Counter | None = None
        self.is_shown = False  # whether a thread shows the progress
        self.status: Status | None = None  # its line in a terminal

    def note(self, text: str) -> None:
        self.log(logging.INFO, text)

    def progress(self, text: str) -> None:
        self.log(logging.INFO, text)
        if self.enabled and _lines is not None:
            _lines.write(text)

    def warn(self, text: str) -> None:
        self.log(logging.WARNING, text)

    def log(self, level: int, text: str) -> None:
        """Log a message; nothing where the display is disabled."""
        if self.enabled:
            # A host's handlers print it as it is. "%s", as a text may have percent signs. The
            # record names the caller of note or warn.
            LOGGER.log(level, "%s", sanitize_for_terminal(text), stacklevel=3)

    def notes(self, lines: Iterable[str]) -> None:
        """Print lines that stay on the screen; empty ones are left out."""
        for line in filter(None, lines):
            self.note(line)

    def warnings(self, lines: Iterable[str]) -> None:
        for line in filter(None, lines):
            self.warn(line)

    @contextmanager
    def _lasting(self) -> Iterator[None]:
        """Show the progress within the block: in a terminal as a line that changes."""
        if not self.enabled or self.is_shown:
            yield
            return
        ended = threading.Event()
        # A single long operation of torch reports nothing, and lets this thread run.
        thread = threading.Thread(target=self._show, args=(ended,), daemon=True)
        self.is_shown = True
        if self.console.is_terminal and not self.console.quiet:
            self.status = self.console.status("", spinner="line")
            self.status.start()
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            if self.status is not None:
                self.status.stop()
            self.is_shown, self.status = False, None

    def _show(self, ended: threading.Event) -> None:
        printed = time.monotonic()
        pause = REDRAW_SECONDS if self.status is not None else min(SAY_SECONDS, 1.0)
        while not ended.wait(pause):
            if self.status is not None:
                self.status.update(Text(sanitize_for_terminal(self.line())))
            elif time.monotonic() - printed >= SAY_SECONDS:
                printed = time.monotonic()
                self.progress(self.line())

    def line(self) -> str:
        """Return how far the work is: of a count, or of the phase of a step."""
        if self.count is not None:
            return self.count.line()
        parts = [self._phase_line()]
        if self.status is not None and self.steps:
            parts = [f"step {self.done + 1}/{self.steps}", self.left, *parts]
        return ", ".join(filter(None, parts))

    def _phase_line(self) -> str:
        seconds = time.monotonic() - self.phase_began
        if self.tokens:
            speed = self.tokens / max(seconds, 1e-9)
            line = f"{self.phase_name}, {self.tokens:,} tokens, {speed:,.0f} tok/s"
            if self.most_tokens > self.tokens:
                left = (self.most_tokens - self.tokens) / speed
                line += f", at most {format_duration(left)} left"
                if self.is_first_step and self.steps > self.first + 1:
                    most = self.most_tokens / speed * (self.steps - self.first)
                    line += f", {format_duration(most)} in all steps"
            return line
        if not self.share:
            return f"{self.phase_name}: for {format_duration(seconds)}"
        left = seconds / self.share * (1 - self.share)
        return f"{self.phase_name}: {self.share:.0%}, {format_duration(left)} left"

    def running(self, steps: int, done: int) -> AbstractContextManager[None]:
        self.steps, self.first, self.done, self.began = steps, done, done, time.monotonic()
        return self._lasting()

    @contextmanager
    def counting(self, title: str, total: int, done: int = 0) -> Iterator["Counter"]:
        """Show progress, speed and time left of a count."""
        outer = self.count
        self.count = counter = Counter(self, title, total, done)
        try:
            with self._lasting():
                yield counter
        finally:
            self.count = outer
        is_worth_a_line = time.monotonic() - counter.began >= LEAST_SECONDS
        if counter.done > counter.first and is_worth_a_line:
            self.progress(counter.line())

    def working(self, title: str) -> AbstractContextManager["Counter"]:
        """Show that something without a count is under way; nothing where it is soon over."""
        return self.counting(title, 0)

    def track(self, title: str, items: Sequence[T]) -> Iterator[T]:
        with self.counting(title, len(items)) as counter:
            for item in items:
                yield item
                counter.add()

    def phase(self, name: str, most_tokens: int = 0) -> None:
        """Begin a phase of the step, which may write so many tokens."""
        self.phase_name, self.phase_began = name, time.monotonic()
        self.most_tokens, self.tokens, self.share = most_tokens, 0, 0.0

    def portion(self, share: float, *, says_step: bool = False) -> None:
        """Take which share of the phase is done, in (0, 1].

        With ``says_step``, say the length of a first step, of which it is the last long phase.
        """
        self.share = share
        if says_step and self.step_began is not None:
            self._say_step(self.step_began)

    def _say_step(self, began: float) -> None:
        now, self.step_began = time.monotonic(), None
        step = (self.phase_began - began) + (now - self.phase_began) / self.share
        steps = self.steps - self.first
        self.left = f"about {format_duration(max(step * steps - (now - began), 0.0))} left"
        each = f"{step:.1f} s" if step < 20 else format_duration(step)
        text = (
            f"time, an estimate: about {each} a step, {format_duration(step * steps)} for "
            f"{steps:,} steps, by the first"
        )
        if self.trainings > 1:
            total = format_duration(step * steps * self.trainings)
            text += f"; {total} for all {self.trainings} trainings if they take as long"
        self.estimate(text)

    def estimate(self, text: str) -> None:
        self.progress(text)

    def writing(self, finished: int, under_way: int) -> None:
        """Take the tokens of finished and of unfinished completions; called at every token."""
        if self.count is not None:
            self.count.under_way = under_way
        else:
            self.tokens = finished + under_way

    def step(self, metrics: Mapping[str, float], values: Iterable[str]) -> None:
        """Show a finished step in a line of these values, which are texts."""
        self.done = int(metrics["step"])
        if self.step_began is not None:  # a step without micro-batches
            self.share = 1.0
            self._say_step(self.step_began)
        self.is_first_step = False
        self.left = f"{format_duration(metrics['seconds_left'])} left"
        self.progress("  ".join([f"step {self.done}/{self.steps}", *values, self.left]))

    def seconds_left(self, done: int) -> float:
        return (time.monotonic() - self.began) / max(done - self.first, 1) * (self.steps - done)


class Counter:
    """Progress of a count; a total of 0 is unknown, and one that is too low grows with it."""

    def __init__(self, display: Display, title: str, total: int, done: int) -> None:
        self.display, self.title, self.total = display, title, total
        self.first = self.done = done
        self.tokens = self.under_way = 0
        self.began = time.monotonic()

    def add(self, tokens: int = 0) -> None:
        self.tokens += tokens
        self.to(self.done + 1)

    def to(self, done: int) -> None:
        self.done = done
        if self.total:
            self.total = max(self.total, done)

    def status(self) -> str:
        seconds = time.monotonic() - self.began
        tokens, rate = self.tokens + self.under_way, ""
        if tokens:
            rate = f"{tokens / max(seconds, 1e-9):,.0f} tok/s, "
        if self.done >= self.total:
            return f"{rate}{format_duration(seconds)}"
        if self.done == self.first:
            return f"{rate}none yet after {format_duration(seconds)}"
        left = seconds / (self.done - self.first) * (self.total - self.done)
        return f"{rate}{format_duration(left)} left"

    def line(self) -> str:
        if not self.total and not self.done:
            return f"{self.title}: {format_duration(time.monotonic() - self.began)}"
        count = f"{self.done:,}"
        if self.total:
            count += f"/{self.total:,}"
        return f"{self.title}: {count}, {self.status()}"


class Clock:
    """Seconds by phase of one step, on this rank; repeated phases add up."""

    def __init__(self, display: Display) -> None:
        self.display = display
        self.seconds: dict[str, float] = {}
        self.tokens: dict[str, int] = {}  # of all ranks in a phase, if not those of the step
        if display.is_first_step:  # its length is said once, before it is over
            display.step_began = time.monotonic()

    @contextmanager
    def __call__(self, phase: str, most_tokens: int = 0) -> Iterator[None]:
        self.display.phase(phase, most_tokens)
        from paint.core.device import wait_for_device  # imports torch, and `paint runs` need not

        began = time.perf_counter()
        yield
        # A GPU still works when the call has returned.
        wait_for_device()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began

    def portion(self, share: float) -> None:
        """Show which share of the step's last long phase is done, in (0, 1]."""
        self.display.portion(share, says_step=True)

    def rates(self, tokens: int) -> dict[str, float]:
        """Return seconds by phase, and completion tokens per second of rollout and of loss."""
        rates = {f"seconds_{phase}": seconds for phase, seconds in self.seconds.items()}
        for phase in ("rollout", "loss"):
            if phase in self.seconds:
                written = self.tokens.get(phase, tokens)
                rates[f"tokens_per_second_{phase}"] = written / self.seconds[phase]
        return rates


def format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {rest:02d} s"
    return f"{rest} s"
