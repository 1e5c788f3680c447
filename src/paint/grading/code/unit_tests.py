"""The grader ``code``: completions that are programs, graded by the unit tests of their rows.

    row      {"problem": "Write add(a, b).", "tests": ["assert add(1, 2) == 3", ...]}
    reward   1 if all assertions hold, or their share
    reason   "1 of 2 tests passed: wrong value"
    feedback the failed assertions, each with what the code gave or raised

Tests and code run in processes apart from each other and from this one (docs/how-to/grade-code.md).
"""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from paint.core.settings import POSITIVE, Check, setting, within
from paint.grading.code.sandbox import Limits, Outcome, Sandboxes, Way, describe_confinement
from paint.grading.contract import Grade, Grader, Item
from strictgrade.processes import cores
from strictgrade.thoughts import split_thought

QUOTED_TESTS = 3
QUOTED_CHARACTERS = 500  # of a failed test, and of what is said of it
BROKEN_CHARACTERS = 200

_FIELD = [Check("the name of a field", bool)]


class Failure(NamedTuple):
    """A test that failed, or "" for what failed outside of one; its kind; a sentence on it."""

    test: str
    kind: str
    said: str


@dataclass(frozen=True)
class CodeOptions:
    """Options of the grader ``code``."""

    tests_field: str = setting("tests", _FIELD, 'a field of the rows; default: "tests"')
    """Field of a row with its tests: a text of Python, or a list of assertions (ours)."""
    reward: Literal["all", "share"] = "all"
    """Reward: 1 if all tests pass, or the share of tests that pass (ours)."""
    seconds: int = setting(5, within("[1, 3600]"), "seconds; default: 5")
    """Processor seconds of a completion's tests together, and of its code; four times that in all
    (ours)."""
    memory_mb: int = setting(1024, within("[64, 1048576]"), "MiB; default: 1024")
    """MiB of address space of each process (ours)."""
    processes: int = setting(1, POSITIVE, "processes; default: 1")
    """Processes and threads of the tested code at a time; 1: it can start none (ours)."""
    files_mb: int = setting(16, within("[1, 1048576]"), "MiB; default: 16")
    """MiB of the files that the tested code can write (ours)."""


class CodeGrader(Grader):
    """Grades by unit tests; one job at a time for each core."""

    options: CodeOptions

    def __init__(
        self, options: CodeOptions, *, workers: int | None = None, way: Way | None = None
    ) -> None:
        self.options = options
        limits = Limits(
            seconds=options.seconds,
            memory=options.memory_mb * 2**20,
            processes=options.processes,
            file_bytes=options.files_mb * 2**20,
        )
        self._sandboxes = Sandboxes(limits, count=workers or cores(), way=way)

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        grades: dict[int, Grade] = {}
        jobs: dict[int, dict[str, str]] = {}
        for index, item in enumerate(items):
            answer = split_thought(item.text, item.tags).answer
            tests = tests_of(item.row, self.options.tests_field)
            if not tests:
                grades[index] = Grade(0.0, self.lacks(item.row), failed=True)
            elif answer is None:
                grades[index] = Grade(0.0, "unclosed thought")
            else:
                fields = {name: str(item.row.get(name, "")) for name in ("problem", "entry_point")}
                jobs[index] = {"answer": answer, "tests": tests, **fields}
        outcomes = self._sandboxes.run(list(jobs.values()))
        for index, outcome in zip(jobs, outcomes, strict=True):
            grades[index] = self._to_grade(outcome)
        return [grades[index] for index in range(len(items))]

    def describe(self) -> str:
        return describe_confinement()

    def lacks(self, row: Mapping[str, Any]) -> str:
        if tests_of(row, self.options.tests_field):
            return ""
        return (
            f"no tests in the field {self.options.tests_field}, which grading.grader code runs; "
            f"name the field that has them by --grading.options.tests-field"
        )

    def close(self) -> None:
        self._sandboxes.close()

    def _to_grade(self, outcome: Outcome) -> Grade:
        """The grade of a job's events."""
        if not outcome.events:
            return Grade(0.0, "the process of the tests could not be started", failed=True)
        tests: list[str] = []
        states: dict[int, str] = {}
        failures: list[Failure] = []
        found = None
        for kind, *values in outcome.events:
            match kind:
                case "broken":
                    return Grade(0.0, values[0][:BROKEN_CHARACTERS], failed=True)
                case "no code":
                    return Grade(0.0, kind, feedback="Write the code in a ```python block.")
                case "tests":
                    [tests] = values
                case "reached" | "passed":
                    states[values[0]] = kind
                case "failed":
                    number, why, said = values
                    states[number] = kind
                    failures.append(_failure(tests[number], why, said, outcome))
                case "error":
                    why, said = values
                    failures.append(_failure("", why, said, outcome))
                case "end":
                    [found] = values
        if found is None and not failures:  # the process of the tests has ended before
            at = next((tests[n] for n, state in states.items() if state == "reached"), "")
            failures.append(Failure(at, "time limit", "It did not end within its time."))
        if not failures:  # those that were not reached are in a branch that was not taken
            tests = [tests[number] for number, state in states.items() if state == "passed"]
        if not (failures or (found and tests)):
            failures.append(Failure("", "not called", "The tests did not call the code."))
        passed = sum(state == "passed" for state in states.values())
        return self._graded(passed, len(tests), failures)

    def _graded(self, passed: int, total: int, failures: Sequence[Failure]) -> Grade:
        reason = f"{passed} of {total} tests passed"
        if not failures:
            return Grade(1.0, reason)
        share = 0.0
        if self.options.reward == "share" and total:
            share = min(passed, total - 1) / total  # what fails outside of assertions fails, too
        quoted = []
        for test, _, said in failures[:QUOTED_TESTS]:
            head = f"This test failed: {test}"[:QUOTED_CHARACTERS] + "\n" if test else ""
            quoted.append(head + said[:QUOTED_CHARACTERS])
        return Grade(share, f"{reason}: {failures[0].kind}", feedback="\n\n".join(quoted))


def tests_of(row: Mapping[str, Any], field: str) -> str:
    """The tests of a row as one text; "" where it has none."""
    tests = row.get(field)
    if isinstance(tests, list | tuple):
        tests = "\n".join(map(str, tests))
    return tests if isinstance(tests, str) else ""


def _failure(test: str, kind: str, said: str, outcome: Outcome) -> Failure:
    """What failed; where the code's process has ended, with the reason of its end."""
    if kind != "ended":
        return Failure(test, kind, said)
    ended_by = -os.waitstatus_to_exitcode(outcome.code_status)
    if ended_by in (signal.SIGXCPU, signal.SIGKILL):
        return Failure(test, "time limit", "The code did not end within its time.")
    if ended_by == signal.SIGSEGV:
        return Failure(test, "crash", "The code crashed, as a recursion without end does.")
    return Failure(test, kind, said)
