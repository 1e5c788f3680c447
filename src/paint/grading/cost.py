"""What grading by functions took: answers, calls and why some failed, and tokens."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

Tokens = tuple[int, int]
"""Tokens of the prompts and of the completions of an endpoint."""

TOKEN_NAMES = (
    ("prompt_tokens", "completion_tokens"),  # OpenAI, vLLM
    ("input_tokens", "output_tokens"),  # Anthropic, and OpenAI's responses
    ("prompt_token_count", "candidates_token_count"),  # Google
)
"""What endpoints call the two numbers of ``Tokens``."""

FAILED = "grader_failed_calls/"  # what metrics of failed calls begin with

METRICS = [
    (f"grader_{name}", name)
    for name in ("answers", "calls", "seconds", "prompt_tokens", "completion_tokens")
]
"""Names of metrics and fields of a cost."""

_reported: ContextVar[list[Tokens] | None] = ContextVar("reported", default=None)


def report_usage(usage: Any) -> None:
    """Count the tokens of a call to an endpoint; a grader calls it with what the reply says.

    Each reply counts, also one that the grader then refuses. Outside of a grader it does nothing.

    Args:
        usage: an object or a dict with prompt_tokens and completion_tokens (OpenAI, vLLM),
            input_tokens and output_tokens (Anthropic), or prompt_token_count and
            candidates_token_count (Google). None, of an endpoint that says nothing, counts nothing.

    Raises:
        TypeError: it has none of these.
    """
    reported = _reported.get()
    if usage is None:
        return
    for prompt, completion in TOKEN_NAMES:
        if _field(usage, prompt) is not None:
            if reported is not None:
                tokens = int(_field(usage, prompt)), int(_field(usage, completion) or 0)
                reported.append(tokens)
            return
    raise TypeError(
        f"report_usage takes the usage of a reply, with {' or '.join(a for a, _ in TOKEN_NAMES)}, "
        f"not {type(usage).__name__}"
    )


def _field(usage: Any, name: str) -> Any:
    if isinstance(usage, Mapping):
        return usage.get(name)
    return getattr(usage, name, None)


@contextmanager
def usage_reports() -> Iterator[list[Tokens]]:
    """Collect the tokens that are reported in the block, a pair for each ``report_usage``."""
    reports: list[Tokens] = []
    token = _reported.set(reports)
    try:
        yield reports
    finally:
        _reported.reset(token)


@dataclass(frozen=True, slots=True)
class Cost:
    """What grading by functions took."""

    answers: int = 0  # completions on which a function did not fail
    calls: int = 0  # repeated ones included
    seconds: float = 0.0  # of all calls added up; they may overlap
    failed: Mapping[str, int] = field(default_factory=dict, hash=False)  # calls, by kind
    prompt_tokens: int = 0  # as functions report them
    completion_tokens: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.answers + other.answers,
            self.calls + other.calls,
            self.seconds + other.seconds,
            Counter(self.failed) + Counter(other.failed),
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )

    def metrics(self) -> dict[str, float]:
        """Return the cost as metrics (docs/reference/metrics.md); {} where nothing was asked."""
        if not (self.calls or self.answers):
            return {}
        values: dict[str, float] = {name: getattr(self, key) for name, key in METRICS[:3]}
        for kind, count in sorted(self.failed.items()):
            values[FAILED + kind.replace(" ", "_")] = count
        if self.prompt_tokens or self.completion_tokens:
            values |= {name: getattr(self, key) for name, key in METRICS[3:]}
        return values

    @classmethod
    def of(cls, metrics: Mapping[str, float]) -> "Cost":
        """Return the cost that ``metrics`` gave; zero where there is none."""
        failed = {
            name.removeprefix(FAILED).replace("_", " "): int(count)
            for name, count in metrics.items()
            if name.startswith(FAILED)
        }
        values: dict[str, Any] = {key: int(metrics.get(name, 0)) for name, key in METRICS}
        return cls(**{**values, "seconds": metrics.get("grader_seconds", 0.0), "failed": failed})

    def describe(self) -> str:
        """Return the cost in a line; "" where no function was asked."""
        if not (self.calls or self.answers):
            return ""
        text = f"the grader gave {self.answers:,} answers by {self.calls:,} calls"
        if self.failed:
            most = sorted(self.failed.items(), key=lambda item: (-item[1], item[0]))
            text += ", of which failed: " + ", ".join(f"{count:,} {kind}" for kind, count in most)
        if self.prompt_tokens or self.completion_tokens:
            text += f"; {self.prompt_tokens:,} + {self.completion_tokens:,} tokens"
        return f"{text}; {self.seconds:,.1f} s in all"
