"""Log and progress of a run: a live table in a terminal, one line per step elsewhere.

Messages go to Python's logging under the name ``paint``. A command shows them and the progress on
the terminal (``shown_on_terminal``). In a host program nothing is printed: it sets the level of
``logging.getLogger("paint")`` and a handler of its choice.
"""

import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
)
from rich.table import Table
from rich.text import Text

from paint.core.errors import is_output_unread, sanitize_for_terminal

T = TypeVar("T")

LOGGER = logging.getLogger("paint")
LOGGER.addHandler(logging.NullHandler())  # without a handler, logging prints warnings on stderr

METRICS = {
    "loss": ("loss", "loss {:.4f}"),
    "kl": ("unclipped KL to the target, nats", "KL to target {:.4f}"),
    "first_kl": ("unclipped KL of the first token, nats", ""),
    "clip_frac": ("tokens with a clipped entry", "clipped {:.1%} of tokens"),
    "unclipped_mass": ("P_A, target mass that is not clipped", "unclipped target mass {:.3f}"),
    "overlap": ("overlap", "overlap with solution {:.2f}"),
    "mask_ratio": ("mask ratio", "solution hidden {:.0%}"),
    "reward": ("reward", ""),
    "frac_reward_zero_std": (
        "groups with equal rewards: no gradient",
        "groups of equal reward {:.0%}",
    ),
    "drift": ("KL from the base on fixed prompts, nats", "drift {:.3f}"),
    "base_kl": ("KL to the model before training, nats", ""),
    "student_entropy": ("student entropy, nats", ""),
    "teacher_entropy": ("teacher entropy, nats", ""),
    "selected_frac": ("tokens interpolated", ""),
    "selected_kl": ("unclipped KL there, nats", ""),
    "gradient_norm": ("gradient norm, before clipping", ""),
    "accuracy": ("verified correct (for analysis only)", "answers correct {:.0%}"),
    "grader_calls": ("calls of the grader", "{:.0f} calls of the grader"),
    "grader_seconds": ("seconds of these calls, added up", "which took {:.1f} s in all"),
    "grader_failures": ("completions on which the grader failed", ""),
    "truncated_frac": ("truncated", "truncated {:.0%}"),
    "completion_tokens": ("tokens a completion", "{:.0f} tokens each"),
    "logprob_mismatch_mean": ("engine - trainer log-prob, mean", ""),
    "logprob_mismatch_p99": ("engine - trainer log-prob, 99th percentile", ""),
    "off_policy_kl": ("KL from the behavior policy, nats", ""),
    "tokens_per_second_rollout": ("tokens/s, rollout", "rollout {:,.0f} tokens/s"),
    "tokens_per_second_loss": ("tokens/s, loss and gradient", "loss {:,.0f} tokens/s"),
}
"""Labels of metrics in the live table, and formats in a step's complete line; "" if not in it."""

SHORT_LINE = (
    {"kl": "KL {:.4f}", "loss": "loss {:.4f}"},
    {"reward": "reward {:.3f}", "accuracy": "correct {:.0%}"},
)
"""Formats of a step's short line: of each group the first metric that the step has."""

SAY_SECONDS = 20.0  # seconds between progress lines without a terminal
REDRAW_SECONDS = 0.25  # between updates of the bar on a terminal
LOG_WIDTH = 200  # width of tables without a terminal, in characters


class Terminal(Console):
    """A rich console that prints text verbatim; ``farewell`` goes to stderr if stdout is closed."""

    farewell = ""
    is_unread = False

    def __init__(self, file: Any = None, *, width: int | None = None, quiet: bool = False) -> None:
        options: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
        super().__init__(file=file, width=width, quiet=quiet, soft_wrap=True, **options)
        if width is None and not self.is_terminal:
            self.width = LOG_WIDTH

    def render_str(self, text: str, **options: Any) -> Text:
        """Sanitize every text that rich renders, including titles and cells of tables."""
        return super().render_str(sanitize_for_terminal(text), **options)

    def on_broken_pipe(self) -> None:
        """Continue silently after the reader has closed stdout, as in `paint train ... | head`."""
        self.quiet = True
        self.is_unread = is_output_unread()
        self.closed_stdout_notice()

    def closed_stdout_notice(self) -> None:
        """Print the notice on stderr, if stdout is closed."""
        if self.is_unread and self.farewell:
            with suppress(OSError):
                print(self.farewell, file=sys.stderr)


class TerminalHandler(logging.Handler):
    """Prints messages on the terminal, above the progress display if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.console = Terminal()

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message alone."""
        self.console.print(sanitize_for_terminal(record.getMessage()), markup=False)


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
    for handler in LOGGER.handlers:
        if isinstance(handler, TerminalHandler):
            return handler
    return None


class Display:
    """Progress of one run on one rank; silent if disabled, as on all ranks but the first."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        handler = _terminal_handler()
        if enabled and handler is not None:
            # Messages and progress share a console: a message must not cut the live table.
            self.console: Console = handler.console
        else:
            self.console = Terminal(quiet=True)
        self.live: Live | None = None
        self.bar = Progress(*_columns(), console=self.console)
        self.task = TaskID(0)
        self.metrics: Mapping[str, float] = {}
        self.steps = self.first = 0
        self.began = self.phase_began = self.printed = time.monotonic()
        self.phase_name = ""
        self.count: Counter | None = None

    def note(self, text: str) -> None:
        """Log a message for the user."""
        self.log(logging.INFO, text)

    def warn(self, text: str) -> None:
        """Log a message about what is likely wrong."""
        self.log(logging.WARNING, text)

    def log(self, level: int, text: str) -> None:
        """Log a message; nothing where the display is disabled."""
        if self.enabled:
            LOGGER.log(level, "%s", text, stacklevel=3)

    def notes(self, lines: Iterable[str]) -> None:
        """Print lines that stay on the screen."""
        for line in lines:
            self.note(line)

    @contextmanager
    def running(self, steps: int, done: int) -> Iterator[None]:
        """Show progress from step ``done`` to ``steps``."""
        self.steps, self.first, self.began = steps, done, time.monotonic()
        if isinstance(self.console, Terminal):
            ended = "stdout is closed, so no more output follows; training continues"
            self.console.farewell = ended
            self.console.closed_stdout_notice()  # also where the pipe broke before the first step
        if not self.console.is_terminal or self.console.quiet:
            yield
            return

        self.task = self.bar.add_task("step", total=steps, completed=done, status="")
        with Live(self._picture(), console=self.console, refresh_per_second=4) as self.live:
            yield

    @contextmanager
    def counting(self, title: str, total: int, done: int = 0) -> Iterator["Counter"]:
        """Show progress, speed and time left of a count; without a terminal, every SAY_SECONDS."""
        self.count = counter = Counter(self, title, total, done)
        if self.console.is_terminal and not self.console.quiet and self.live is None:
            with Progress(*_columns(), console=self.console, transient=True) as counter.bar:
                label = sanitize_for_terminal(title)
                # rich shows a total of None as "?".
                counter.task = counter.bar.add_task(
                    label, total=total or None, completed=done, status=""
                )
                yield counter
        else:
            over = threading.Event()
            speaker = threading.Thread(target=counter.say_until, args=(over,), daemon=True)
            speaker.start()
            try:
                yield counter
            finally:
                over.set()
                speaker.join()

        self.count = None
        if counter.done > counter.first:
            self.note(counter.line())

    def track(self, title: str, items: Sequence[T]) -> Iterator[T]:
        """Iterate over items, and count them."""
        with self.counting(title, len(items)) as counter:
            for item in items:
                yield item
                counter.add()

    def phase(self, name: str) -> None:
        """Show the current phase of the step."""
        self.phase_name, self.phase_began = name, time.monotonic()
        self._show(name)

    def writing(self, finished: int, under_way: int) -> None:
        """Show the tokens of finished and of unfinished completions; called at every token."""
        now = time.monotonic()
        if self.count is not None:
            self.count.under_way = under_way
        pause = SAY_SECONDS
        if self.console.is_terminal:
            pause = REDRAW_SECONDS
        if now - self.printed < pause:
            return

        self.printed = now
        tokens = finished + under_way
        speed = tokens / max(now - self.phase_began, 1e-9)
        status = f"{self.phase_name or 'writing'}, {tokens:,} tokens, {speed:,.0f} tok/s"
        if self.count is not None:
            self.count.to(self.count.done)
        elif self.live is not None:
            self._show(status)
        else:
            self.note(status)

    def step(self, metrics: Mapping[str, float]) -> None:
        """Show the metrics of a finished step: in a line, or in the table of a terminal.

        The line has four values and fits in 80 columns; at level DEBUG it has all.
        """
        self.metrics = metrics
        number = int(metrics["step"])
        if self.live is not None:
            self.bar.update(self.task, completed=number)
            self.live.update(self._picture())
            return
        is_complete = LOGGER.isEnabledFor(logging.DEBUG)
        values = _complete_values(metrics) if is_complete else _short_values(metrics)
        left = format_duration(metrics["seconds_left"])
        parts = [f"step {number}/{self.steps}", *values, f"{left} left"]
        self.note("  ".join(parts))

    def seconds_left(self, done: int) -> float:
        """Estimate the remaining seconds from the steps so far."""
        return (time.monotonic() - self.began) / max(done - self.first, 1) * (self.steps - done)

    def _show(self, status: str) -> None:
        """Show a status next to the progress bar, if there is one."""
        if self.live is None:
            return
        if self.metrics:
            status = f"{format_duration(self.metrics['seconds_left'])} left, {status}"
        self.bar.update(self.task, status=status)
        self.live.update(self._picture())

    def _picture(self) -> Group:
        table = Table(box=None, show_header=False)
        table.add_column(justify="right")
        table.add_column()

        for name, (words, _) in METRICS.items():
            if name in self.metrics:
                table.add_row(f"{self.metrics[name]:,.4g}", words)
        return Group(table, self.bar)


class Counter:
    """Progress of a count: ``add`` counts one more, ``to`` sets the count.

    A total of 0 is unknown, and one that was estimated too low grows with the count.
    """

    def __init__(self, display: Display, title: str, total: int, done: int) -> None:
        self.display, self.title, self.total = display, title, total
        self.first = self.done = done
        self.tokens = self.under_way = 0
        self.began = time.monotonic()
        self.bar: Progress | None = None
        self.task = TaskID(0)

    def add(self, tokens: int = 0) -> None:
        """Count one more item and its tokens."""
        self.tokens += tokens
        self.to(self.done + 1)

    def to(self, done: int) -> None:
        """Set the count."""
        self.done = done
        if self.total:
            self.total = max(self.total, done)
        if self.bar is not None:
            self.bar.update(self.task, completed=done, status=self.status())
        elif self.display.live is not None:
            self.display._show(self.line())

    def say_until(self, over: threading.Event) -> None:
        """Print the progress every SAY_SECONDS until ``over`` is set."""
        while not over.wait(SAY_SECONDS):
            if self.display.live is None:
                self.display.note(self.line())

    def status(self) -> str:
        """Format the speed and the estimated time left."""
        seconds = time.monotonic() - self.began
        tokens = self.tokens + self.under_way
        rate, written = "", "nothing"
        if tokens:
            rate = f"{tokens / max(seconds, 1e-9):,.0f} tok/s, "
            written = f"{tokens:,} tokens"
        if self.done >= self.total:
            return f"{rate}{format_duration(seconds)}"
        if self.done == self.first:
            return f"{rate}{written} yet after {format_duration(seconds)}"
        left = seconds / (self.done - self.first) * (self.total - self.done)
        return f"{rate}{format_duration(left)} left"

    def line(self) -> str:
        """Format title, count and status in one line."""
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

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self.display.phase(phase)
        from paint.core.device import wait_for_device  # imports torch, and `paint runs` need not

        began = time.perf_counter()
        yield
        wait_for_device()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began

    def rates(self, tokens: int) -> dict[str, float]:
        """Seconds by phase, and all ranks' completion tokens per second of rollout and of loss.

        ``tokens`` are those of the step.
        """
        rates = {f"seconds_{phase}": seconds for phase, seconds in self.seconds.items()}
        on_tokens = []
        for phase in ("rollout", "loss"):
            if phase in self.seconds:
                on_tokens.append(phase)
        return rates | {
            f"tokens_per_second_{phase}": self.tokens.get(phase, tokens) / self.seconds[phase]
            for phase in on_tokens
        }


def _complete_values(metrics: Mapping[str, float]) -> list[str]:
    """All metrics that have a format, in words."""
    values = []
    for name, (_, form) in METRICS.items():
        if form and name in metrics:
            values.append(form.format(metrics[name]))
    return values


def _short_values(metrics: Mapping[str, float]) -> list[str]:
    """What is learned, what is right, and the seconds of the step."""
    values = []
    for group in SHORT_LINE:
        for name, form in group.items():
            if name in metrics:
                values.append(form.format(metrics[name]))
                break
    phases = [name for name in metrics if name.startswith("seconds_") and name != "seconds_left"]
    if phases:
        seconds = sum(metrics[name] for name in phases)
        values.append(f"{seconds:.1f} s")
    return values


def _columns() -> list[ProgressColumn]:
    return [
        TextColumn("{task.description}", markup=False),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[status]}", markup=False),
    ]


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {rest:02d} s"
    return f"{rest} s"
