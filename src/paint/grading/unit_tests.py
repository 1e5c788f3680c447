"""The grader ``code``: completions that are programs, graded by the unit tests of their rows.

    row      {"problem": "Write add(a, b).", "tests": ["assert add(1, 2) == 3", ...]}
    reward   1 if all assertions hold, or their share
    reason   "1 of 2 tests passed: wrong value"
    feedback the failed assertions, each with what the code gave or raised

Tests and code run in processes apart from each other and from this one (docs/how-to/grade-code.md).
"""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from codetrial.sandbox import (
    Limits,
    Outcome,
    Sandboxes,
    Way,
    describe_confinement,
    find_reach,
    find_way,
)
from paint.core.settings import POSITIVE, Check, setting, within
from paint.core.storage import digest
from paint.grading.contract import Grade, Grader, Item, RowCheck
from paint.grading.processes import worker_errors
from strictgrade.processes import cores
from strictgrade.thoughts import split_thought

QUOTED_TESTS = 3
QUOTED_CHARACTERS = 500  # of a failed test, and of what is said of it
BROKEN_CHARACTERS = 300
LATE = "The code did not end within its time."

NOTES = {
    "beside": (
        "is judged beside its code, since its tests need the code's module; there code can forge "
        "its verdict (docs/how-to/grade-code.md#beside)"
    )
}
"""What a user should know of rows by the place of their tests."""

Job = dict[str, str]

_FIELD = [Check("the name of a field", bool)]


class Failure(NamedTuple):
    """A test that failed, or "" for what failed outside of one; its kind; a sentence on it."""

    test: str
    kind: str
    said: str


class Trial(NamedTuple):
    """What a row's own solution says of its tests.

    ``place`` is "apart" from the code or "beside" it, where the solution passes, or "unproven"
    without a solution; ``fault`` is why the row can judge no completion.
    """

    place: str
    fault: str = ""


_TRIALS: dict[str, Trial] = {}
"""Of each row by its digest, for all graders of this process."""


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

    unanswered = ("no code", "unclosed thought")
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
        self._no_tests = (
            f"no tests in the field {options.tests_field}, which grading.grader code runs; name "
            f"the field that has them by --grading.options.tests-field"
        )
        self._way = way
        self._sandboxes = Sandboxes(limits, count=workers or cores(), way=way)

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        grades: dict[int, Grade] = {}
        jobs: dict[int, Job] = {}
        for index, item in enumerate(items):
            answer = split_thought(item.text, item.tags).answer
            job = self._job(item.row)
            if not job["tests"]:
                grades[index] = Grade(0.0, self._no_tests, failed=True)
            elif answer is None:
                grades[index] = Grade(0.0, "unclosed thought")
            else:
                jobs[index] = {**job, "answer": answer}
        trials = self._try_rows([items[index].row for index in jobs])
        for index, trial in zip(list(jobs), trials, strict=True):
            if trial.fault:
                grades[index] = Grade(0.0, trial.fault, failed=True)
                del jobs[index]
            else:
                jobs[index]["place"] = trial.place
        outcomes = self._run(list(jobs.values()))
        for index, outcome in zip(jobs, outcomes, strict=True):
            grades[index] = self._to_grade(outcome)
        return [grades[index] for index in range(len(items))]

    def check_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[RowCheck]:
        return [RowCheck(trial.fault, NOTES.get(trial.place, "")) for trial in self._try_rows(rows)]

    def _job(self, row: Mapping[str, Any]) -> Job:
        tests = row.get(self.options.tests_field)
        if isinstance(tests, list | tuple):
            tests = "\n".join(map(str, tests))
        fields = {name: str(row.get(name, "")) for name in ("problem", "entry_point")}
        return {"tests": tests if isinstance(tests, str) else "", **fields}

    def _try_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[Trial]:
        """Where the tests of each row are run, as its own solution shows; each row is tried once.

        The tests are run apart from the solution. Where it fails there, they are run beside it.
        """
        keys: list[str] = []
        trials: dict[str, Trial] = {}
        left: dict[str, list[Job]] = {}  # ways to try it, by the row's digest
        for row in rows:
            job, solution = self._job(row), row.get("solution")
            key = digest(json.dumps([asdict(self.options), self._way, job, str(solution)]))
            keys.append(key)
            if key in _TRIALS:
                trials[key] = _TRIALS[key]
            elif not job["tests"]:
                trials[key] = Trial("unproven", self._no_tests)
            else:
                left[key] = _ways_to_try(job, solution if isinstance(solution, str) else "")
        while left:
            outcomes = self._run([jobs[0] for jobs in left.values()])
            for key, outcome in zip(list(left), outcomes, strict=True):
                found = self._to_grade(outcome)
                trial = _trial_of(found, left[key].pop(0))
                if trial is None:
                    continue
                trials[key] = trial
                if outcome.has_begun:  # what the machine did is no finding about the row
                    _TRIALS[key] = trial
                del left[key]
        return [trials[key] for key in keys]

    def _run(self, jobs: Sequence[Job]) -> list[Outcome]:
        with worker_errors():
            return self._sandboxes.run(jobs)

    def warning(self) -> str:
        with worker_errors():
            return describe_confinement() if find_reach(find_way()) else ""

    def close(self) -> None:
        self._sandboxes.close()

    def _to_grade(self, outcome: Outcome) -> Grade:
        if not outcome.has_begun:
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
                    failures.append(self._failure(tests[number], why, said, outcome))
                case "error":
                    why, said = values
                    failures.append(self._failure("", why, said, outcome))
                case "end":
                    [found] = values
        if found is None and not failures:  # the process of the tests has ended before
            at = next((tests[n] for n, state in states.items() if state == "reached"), "")
            kind, said = _ended_by(outcome.tests_status, self.options.memory_mb)
            failures.append(Failure(at, kind or "time limit", said or LATE))
        if not failures:  # those that were not reached are in a branch that was not taken
            tests = [tests[number] for number, state in states.items() if state == "passed"]
        if not (failures or (found and tests)):
            failures.append(Failure("", "not called", "The tests did not call the code."))
        passed = sum(state == "passed" for state in states.values())
        return self._graded(passed, len(tests), failures)

    def _failure(self, test: str, kind: str, said: str, outcome: Outcome) -> Failure:
        if kind == "ended":
            ended_by, why = _ended_by(outcome.code_status, self.options.memory_mb)
            return Failure(test, ended_by or kind, why or said)
        return Failure(test, kind, said)

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


def _ended_by(status: int, memory_mb: int) -> tuple[str, str]:
    """What ended a process, in few words and as a sentence; "" if it is not known."""
    match -os.waitstatus_to_exitcode(status):
        case signal.SIGXCPU | signal.SIGKILL:
            return "time limit", LATE
        case signal.SIGSEGV:
            return "crash", "The code crashed, as a recursion without end does."
        case signal.SIGABRT:
            return "crash", (
                f"The code was aborted, as libraries do where they get no memory: the limit is "
                f"{memory_mb} MiB."
            )
    return "", ""


def _ways_to_try(job: Job, solution: str) -> list[Job]:
    unproven = {**job, "answer": "", "place": "unproven"}
    answer = split_thought(solution).answer or ""
    if not answer.strip():
        return [unproven]
    if "```" not in answer and "~~~" not in answer:  # code without a fence, or no code
        answer = f"```python\n{answer}\n```"
        job = {**job, "is_bare": "yes"}
    return [*({**job, "answer": answer, "place": place} for place in ("apart", "beside")), unproven]


def _trial_of(found: Grade, job: Job) -> Trial | None:
    """What a grade of a solution says of its row; None where another way is to be tried."""
    if found.reward == 1:
        return Trial(job["place"])
    if found.failed:
        return Trial("unproven", found.reason)
    kind = found.reason.rpartition(": ")[2]
    is_text = kind == "no code" or ("is_bare" in job and kind in _NO_SYNTAX)
    if job["place"] == "apart" or (job["place"] == "beside" and is_text):
        return None
    if job["place"] == "beside":
        return Trial("unproven", f"its own solution fails its tests: {found.reason}")
    return Trial("unproven")


_NO_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
