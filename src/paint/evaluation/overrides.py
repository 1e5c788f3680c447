"""Manual verdicts that override the grader's.

    {"problem": "7", "sample": 3, "verdict": "right", "reason": "gold answer lacks its unit"}

A line also has "policy" and "benchmark" (the folder names) if several evaluations contain the
sample: a verdict applies to one text. Every line is applied and counted, or rejected.

Verdicts on all samples of a problem are not supported: correct its gold answer, or add another.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paint.data.problems import Problem
from paint.data.readers import BadRow, DataError, Number, read_rows, shorten
from paint.grading.base import Grade
from paint.grading.math.compare import Reason
from paint.grading.math.grader import MathGrade

REQUIRED = ("problem", "sample", "verdict", "reason")
OPTIONAL = ("policy", "benchmark")

Place = tuple[str, str]
"""Policy and benchmark."""


@dataclass(frozen=True, slots=True)
class ManualLabel:
    """A manual verdict."""

    where: str  # file and line, for messages
    policy: str
    benchmark: str
    problem: str
    sample: int
    correct: bool
    reason: str

    def __str__(self) -> str:
        return f"{'right' if self.correct else 'wrong'} ({self.reason})"


SampleTexts = Mapping[Place, tuple[Sequence[Problem], int]]
"""Problems and k of each evaluation."""

ManualLabels = Mapping[tuple[str, int], ManualLabel]
"""Manual verdicts of one policy on one benchmark, by problem and sample."""


def manual_labels(path: Path | None, evaluations: SampleTexts) -> dict[Place, ManualLabels]:
    """Assign the verdicts of a JSONL or CSV file to the evaluations; none without a file.

    Raises:
        DataError: the file cannot be read; a line is not a verdict; a verdict on a sample that is
            in no evaluation or in several; two verdicts that contradict each other.
    """
    assigned: dict[Place, dict[tuple[str, int], ManualLabel]] = {place: {} for place in evaluations}
    samples = {place: {p.id: k for p in problems} for place, (problems, k) in evaluations.items()}
    if path is None:
        return {**assigned}
    if not path.is_file():
        raise DataError(f"{path} does not exist or is not a file; --overrides names a JSONL file")
    labels = [_parse_label(f"{path} line {line}", fields) for line, fields in read_rows(path)]
    for label in labels:
        earlier = assigned[_place(label, samples)].setdefault((label.problem, label.sample), label)
        if str(earlier) != str(label):
            raise DataError(
                f"{label.where}: {label} on problem {label.problem!r}, sample {label.sample}, and "
                f"{earlier} in {earlier.where}; keep one of them"
            )
    return {**assigned}


def apply_override(grade: Grade, label: ManualLabel) -> Grade:
    """Replace the verdict of a grade; of a mathematics grade, both verdicts."""
    reason: Reason = "right" if label.correct else "wrong"
    if not isinstance(grade, MathGrade):
        return Grade(float(label.correct), reason)
    strict, lenient = (
        replace(verdict, correct=label.correct, reason=reason)
        for verdict in (grade.strict, grade.lenient)
    )
    return MathGrade(strict, lenient)


def _parse_label(where: str, fields: Mapping[str, object] | BadRow) -> ManualLabel:
    if isinstance(fields, BadRow):
        raise DataError(f"{where}: {fields}; fix the line")

    def refuse(name: str, must: str) -> DataError:
        found = shorten(fields[name]) if name in fields else "nothing"
        return DataError(f'{where}: "{name}" must be {must}, got {found}')

    if unknown := sorted(fields.keys() - {*REQUIRED, *OPTIONAL}):
        names = ", ".join((*REQUIRED, *OPTIONAL))
        raise DataError(f'{where}: unknown field "{unknown[0]}"; a line has {names}')

    texts = {}
    for name in (*REQUIRED, *OPTIONAL):
        value = fields.get(name)
        if value in (None, "") and name in OPTIONAL:
            value = ""
        elif not isinstance(value, str) or not value.strip():
            raise refuse(name, "a whole number" if name == "sample" else "text")
        texts[name] = str(value)

    if not (texts["sample"].isascii() and texts["sample"].isdecimal()):
        raise refuse("sample", "the sample's number, from 0")
    if texts["verdict"] not in ("right", "wrong") or isinstance(fields["verdict"], Number):
        raise refuse("verdict", '"right" or "wrong"')
    policy, benchmark, problem = (texts[name] for name in ("policy", "benchmark", "problem"))
    reason = " ".join(texts["reason"].split())
    is_right = texts["verdict"] == "right"
    return ManualLabel(where, policy, benchmark, problem, int(texts["sample"]), is_right, reason)


def _place(verdict: ManualLabel, samples: Mapping[Place, Mapping[str, int]]) -> Place:
    """Find the one evaluation that contains the sample, by the k of each problem."""
    where, problem = verdict.where, f"problem {verdict.problem!r}"
    named = [
        (policy, benchmark)
        for policy, benchmark in samples
        if verdict.policy in ("", policy) and verdict.benchmark in ("", benchmark)
    ]
    if not named:
        raise DataError(
            f"{where}: no evaluation of policy {verdict.policy or 'any'!r} on benchmark "
            f"{verdict.benchmark or 'any'!r}; there are {_names(samples)}"
        )
    having = [place for place in named if verdict.problem in samples[place]]
    if not having:
        raise DataError(f"{where}: no problem has the id {verdict.problem!r} in {_names(named)}")
    places = [place for place in having if verdict.sample < samples[place][verdict.problem]]
    if not places:
        most = max(samples[place][verdict.problem] for place in having) - 1
        raise DataError(f"{where}: {problem} has samples 0 to {most}, got {verdict.sample}")
    if len(places) > 1:
        raise DataError(
            f"{where}: {problem}, sample {verdict.sample} is in {_names(places)}; add "
            f'"policy" and "benchmark" to choose one'
        )
    return places[0]


def _names(places: Iterable[Place]) -> str:
    return ", ".join("/".join(place) for place in places)
