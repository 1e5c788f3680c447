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
    """A value of a dict or an object; None where it has none."""
    if isinstance(usage, Mapping):
        return usage.get(name)
    return getattr(usage, name, None)


@contextmanager
def usage_reports() -> Iterator[list[Tokens]]:
    """The tokens that are reported in the block, one pair for each ``report_usage``."""
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
    kept: int = 0  # answers that were given before, to the same question

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.answers + other.answers,
            self.calls + other.calls,
            self.seconds + other.seconds,
            Counter(self.failed) + Counter(other.failed),
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.kept + other.kept,
        )

    def metrics(self) -> dict[str, float]:
        """The cost as metrics (docs/reference/metrics.md); {} where no function was asked."""
        if not (self.calls or self.answers):
            return {}
        values: dict[str, float] = {
            "grader_answers": self.answers,
            "grader_calls": self.calls,
            "grader_seconds": self.seconds,
        }
        if self.kept:
            values["grader_kept_answers"] = self.kept
        for kind, count in sorted(self.failed.items()):
            values[FAILED + kind.replace(" ", "_")] = count
        if self.prompt_tokens or self.completion_tokens:
            values["grader_prompt_tokens"] = self.prompt_tokens
            values["grader_completion_tokens"] = self.completion_tokens
        return values

    @classmethod
    def of(cls, metrics: Mapping[str, float]) -> "Cost":
        """The cost that ``metrics`` gave; zero where there is none."""
        failed = {
            name.removeprefix(FAILED).replace("_", " "): int(count)
            for name, count in metrics.items()
            if name.startswith(FAILED)
        }
        return cls(
            int(metrics.get("grader_answers", 0)),
            int(metrics.get("grader_calls", 0)),
            metrics.get("grader_seconds", 0.0),
            failed,
            int(metrics.get("grader_prompt_tokens", 0)),
            int(metrics.get("grader_completion_tokens", 0)),
            int(metrics.get("grader_kept_answers", 0)),
        )

    def describe(self) -> str:
        """The cost in a line; "" where no function was asked."""
        if not (self.calls or self.answers):
            return ""
        kept = f", of which {self.kept:,} to questions that it had answered," if self.kept else ""
        text = f"the grader gave {self.answers:,} answers{kept} by {self.calls:,} calls"
        if self.failed:
            most = sorted(self.failed.items(), key=lambda item: (-item[1], item[0]))
            text += ", of which failed: " + ", ".join(f"{count:,} {kind}" for kind, count in most)
        if self.prompt_tokens or self.completion_tokens:
            text += f"; {self.prompt_tokens:,} + {self.completion_tokens:,} tokens"
        return f"{text}; {self.seconds:,.1f} s in all"
