"""What grading by functions took: answers, calls, and why some failed."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

FAILED = "grader_failed_calls/"  # what metrics of failed calls begin with


@dataclass(frozen=True, slots=True)
class Cost:
    answers: int = 0  # completions on which a function did not fail
    calls: int = 0  # repeated ones included
    seconds: float = 0.0  # of all calls added up; they may overlap
    failed: Mapping[str, int] = field(default_factory=dict, hash=False)  # calls, by kind

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.answers + other.answers,
            self.calls + other.calls,
            self.seconds + other.seconds,
            Counter(self.failed) + Counter(other.failed),
        )

    def metrics(self) -> dict[str, float]:
        """Return the cost as metrics (docs/reference/metrics.md); {} where nothing was asked."""
        if not (self.calls or self.answers):
            return {}
        values: dict[str, float] = {
            "grader_answers": self.answers,
            "grader_calls": self.calls,
            "grader_seconds": self.seconds,
        }
        for kind, count in sorted(self.failed.items()):
            values[FAILED + kind.replace(" ", "_")] = count
        return values

    @classmethod
    def of(cls, metrics: Mapping[str, float]) -> "Cost":
        """Return the cost that ``metrics`` gave; zero where there is none."""
        failed = {
            name.removeprefix(FAILED).replace("_", " "): int(count)
            for name, count in metrics.items()
            if name.startswith(FAILED)
        }
        answers, calls = (int(metrics.get(f"grader_{name}", 0)) for name in ("answers", "calls"))
        return cls(answers, calls, metrics.get("grader_seconds", 0.0), failed)

    def describe(self) -> str:
        """Return the cost in a line; "" where no function was asked."""
        if not (self.calls or self.answers):
            return ""
        text = f"the grader gave {self.answers:,} answers by {self.calls:,} calls"
        begin = ", of which failed: "
        for kind, count in Counter(self.failed).most_common():
            text += f"{begin}{count:,} {kind}"
            begin = ", "
        return f"{text}; {self.seconds:,.1f} s in all"
