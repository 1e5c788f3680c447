"""The probe before training: figures of the stored samples, prompts of training."""

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paint.config.schema import (
    Config,
    ConfigError,
    ContextConfig,
    DataConfig,
    TrainConfig,
)
from paint.data.problems import DataError, Problem, batch_indices
from paint.evaluation.store import StoreError, prompt_digest
from paint.experiments.probe import (
    answer_is_visible,
    first_problems,
    probe,
    teacher,
    validate_probe,
)
from paint.models.policy import Policy
from paint.objective.masking import mask_solution
from processes import until
from runs import changed, rows_of, write_problems

DEMO = changed("demo-paint", {"train": {"seed": 3}})
RATIOS = (0.0, 0.5)
READERS = ["student", "teacher@0", "teacher@0.5"]


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished probe of 24 problems, two samples each, which was begun with fewer of both."""
    folder = tmp_path_factory.mktemp("probe")
    probe(DEMO, folder, problems=5, samples=1, ratios=(0.5,))
    path = folder / "teacher@0.5/problems/completions.jsonl"
    path.with_name("begun.jsonl").write_bytes(path.read_bytes())
    probe(DEMO, folder, problems=24, samples=2, ratios=RATIOS)
    return folder


def lines_of(folder: Path, reader: str, name: str = "completions") -> list[dict[str, Any]]:
    """What is stored of a reader, without regard to the order in which it came."""
    rows = rows_of(folder / reader / "problems" / f"{name}.jsonl")
    return sorted(rows, key=lambda row: (row["problem"], row["sample"]))


def right(folder: Path, reader: str) -> np.ndarray:
    """The stored verdicts, a row a problem."""
    rows = lines_of(folder, reader, "grades")
    return np.array([row["strict"]["correct"] for row in rows]).reshape(-1, 2)


def test_probe_summary_matches_stored_samples(probed: Path) -> None:
    summary = json.loads((probed / "summary.json").read_text())
    assert list(summary["figures"]) == READERS
    for reader in READERS:
        asked = json.loads((probed / reader / "problems/asked.json").read_text())
        assert asked["seed"] == DEMO.train.seed
    table = {
        cells[1]: cells[2:-1]
        for line in (probed / "summary.md").read_text().splitlines()
        if (cells := [cell.strip() for cell in line.split("|")]) and len(cells) > 2
    }
    assert table[""][0] == "Avg@2"
    for reader in READERS:
        samples, correct = lines_of(probed, reader), right(probed, reader)
        assert len(samples) == 48
        figures = summary["figures"][reader]["problems"]
        tokens, cut = (np.mean([row[name] for row in samples]) for name in ("tokens", "truncated"))
        assert figures["avg_at_k"]["mean"] == pytest.approx(correct.mean())
        assert figures["completion_tokens"]["mean"] == pytest.approx(tokens)
        assert table[reader][0].startswith(f"{100 * correct.mean():.1f} [")
        assert table[reader][2:4] == [f"{tokens:,.0f}", f"{100 * cut:.1f}"]
    assert table["student"][1] == table["student"][4] == ""
    for reader, row in zip(READERS[1:], summary["comparisons"], strict=True):
        difference = right(probed, reader).mean() - right(probed, "student").mean()
        assert (row["policy"], row["difference"]["mean"]) == (reader, pytest.approx(difference))
        assert row["difference"]["low"] < row["difference"]["mean"] < row["difference"]["high"]
        assert table[reader][1].startswith(f"{100 * difference:+.1f} [")
        assert table[reader][4] == f"{100 * summary['answer_visible_frac'][reader]:.1f}"


def test_probe_teacher_with_full_solution_beats_student(
    probed: Path,
) -> None:
    summary = json.loads((probed / "summary.json").read_text())
    whole, half = (row["difference"] for row in summary["comparisons"])
    assert whole["low"] > 0.2
    assert whole["mean"] > half["mean"]
    shares = summary["answer_visible_frac"]
    assert shares["teacher@0"] == 1
    assert shares["teacher@0.5"] < 0.5


def test_probe_prompts_match_training(
    probed: Path, policy: Policy, problems: list[Problem]
) -> None:
    first = [problems[i] for i in batch_indices(len(problems), 24, 0, DEMO.train.seed)]

    def half(solution: str) -> str:
        return solution[: len(solution) - len(solution) // 2].rstrip() + " ...(omitted)..."

    wanted = {
        "student": {p.id: policy.student_prompt(p.problem) for p in first},
        "teacher@0": {
            p.id: policy.teacher_prompt(p.problem, p.solution, complete=True) for p in first
        },
        "teacher@0.5": {
            p.id: policy.teacher_prompt(p.problem, half(p.solution), complete=False) for p in first
        },
    }
    for reader, prompts in wanted.items():
        stored = {row["problem"]: row["prompt"] for row in lines_of(probed, reader)}
        assert stored == {name: prompt_digest(prompt) for name, prompt in prompts.items()}


def test_probe_teacher_prompt_uses_configured_wording(
    policy: Policy, problems: list[Problem]
) -> None:
    first, solution = problems[0], problems[0].solution
    for opening, ratio, is_complete in (("part", 0.0, False), ("complete", 0.5, True)):
        config = changed("demo-paint", {"context": {"wording": opening}})
        reader = teacher(policy, config, [first], ratio)
        context = mask_solution(solution, ratio)
        assert reader.prompts[first.id] == policy.teacher_prompt(
            first.problem, context, complete=is_complete
        )
        assert reader.shown == f"solution, {ratio:g} hidden (suffix), announced as {opening}"


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished probe of 12 problems with every control."""
    folder = tmp_path_factory.mktemp("controls")
    shown: tuple[str, ...] = ("solution", "other", "none", "answer", "wrong_answer")
    probe(DEMO, folder, problems=12, samples=2, ratios=RATIOS, shown=shown)
    return folder


CONTROLS = ["teacher-other@0", "teacher-other@0.5"]
CONTROLS += ["teacher-none", "teacher-answer", "teacher-wrong_answer"]


def test_probe_controls_hide_as_much_as_the_solution(controlled: Path) -> None:
    summary = json.loads((controlled / "summary.json").read_text())
    assert list(summary["figures"]) == [*READERS, *CONTROLS]
    pairs = [(row["policy"], row["less"]) for row in summary["beside_solution"]]
    both = ["teacher@0", "teacher@0.5"]
    assert pairs == [
        ("teacher-other@0", "teacher@0"),
        ("teacher-other@0.5", "teacher@0.5"),
        *((control, beside) for control in CONTROLS[2:] for beside in both),
    ]
    text = (controlled / "summary.md").read_text()
    for row in summary["beside_solution"]:
        difference = right(controlled, row["policy"]).mean() - right(controlled, row["less"]).mean()
        assert row["difference"]["mean"] == pytest.approx(difference)
        assert f"| {row['policy']} | {row['less']} | {100 * difference:+.1f} [" in text
    shares = summary["answer_visible_frac"]
    assert (shares["teacher-answer"], shares["teacher-none"]) == (1, 0)
    assert shares["teacher-wrong_answer"] == 0


def test_probe_controls_show_what_training_shows(
    controlled: Path, policy: Policy, problems: list[Problem]
) -> None:
    first = {p.id: p for p in first_problems(problems, 12, DEMO.train.seed)}

    def shown(reader: str) -> dict[str, str]:
        kind, _, ratio = reader.removeprefix("teacher-").partition("@")
        hidden, rows = float(ratio) if ratio else None, list(first.values())
        made = teacher(policy, DEMO, rows, hidden, kind, problems)
        stored = {row["problem"]: row["prompt"] for row in lines_of(controlled, reader)}
        assert stored == {name: prompt_digest(made.prompts[name]) for name in first}
        return {name: policy.decode(prompt) for name, prompt in made.prompts.items()}

    for name, text in shown("teacher-none").items():
        assert "Reference Solution" not in text
        assert first[name].problem in text
    for name, text in shown("teacher-answer").items():
        assert f"The answer is $\\boxed{{{first[name].answer}}}$." in text
    for name, text in shown("teacher-wrong_answer").items():
        assert "The answer is $\\boxed{" in text
        assert f"\\boxed{{{first[name].answer}}}" not in text
    others = {p.solution: p.id for p in problems}
    for name, text in shown("teacher-other@0").items():
        reference = text.split("Solution Begin ===\n")[1].split("\n=== Reference")[0]
        assert others[reference] != name
    assert all("...(omitted)..." in text for text in shown("teacher-other@0.5").values())


def test_probe_more_problems_or_samples_extend_stored_ones(probed: Path) -> None:
    folder = probed / "teacher@0.5/problems"
    begun = (folder / "begun.jsonl").read_bytes()
    assert begun.count(b"\n") == 5
    assert (folder / "completions.jsonl").read_bytes().startswith(begun)
    rows = [(row["problem"], row["sample"]) for row in lines_of(probed, "teacher@0.5")]
    assert len(rows) == len(set(rows)) == 48


@pytest.mark.slow
def test_probe_repeated_reuses_results_and_other_setting_is_refused(
    probed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (probed / "summary.json").read_text()
    probe(DEMO, probed, problems=24, samples=2, ratios=RATIOS)
    out = capsys.readouterr().out
    assert "tok/s" not in out
    assert "Training moves the student towards the teacher" in out
    assert (probed / "summary.json").read_text() == before
    cooler = dataclasses.replace(DEMO, rollout=dataclasses.replace(DEMO.rollout, temperature=0.7))
    with pytest.raises(StoreError, match=r"temperature: 1.1 -> 0.7"):
        probe(cooler, probed, problems=24, samples=2, ratios=RATIOS)
    elsewhere = dataclasses.replace(DEMO, context=ContextConfig(placement="prefix"))
    with pytest.raises(StoreError, match=r"0.5 hidden \(suffix\)' -> .* hidden \(prefix\)"):
        probe(elsewhere, probed, problems=24, samples=2, ratios=(0.5,))


@pytest.mark.slow
def test_probe_killed_and_resumed_gives_same_summary(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paint.cli", "advise", "demo-paint", "--answers"]
    command += ["--ratios", "0", "0.5", "--context", "solution"]
    command += ["--problems", "16", "--samples", "2", "--train.seed", "3"]
    command += ["--folder", str(tmp_path / "killed")]
    stored = tmp_path / "killed/answers/teacher@0/problems/completions.jsonl"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until(lambda: stored.exists() and stored.read_bytes().count(b"\n") >= 10, 120)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 10 <= len(stored.read_bytes().splitlines()) < 32
    assert not (tmp_path / "killed/answers/summary.json").exists()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    probe(DEMO, tmp_path / "undisturbed", problems=16, samples=2, ratios=RATIOS)
    killed = tmp_path / "killed/answers"
    for reader in READERS:
        assert lines_of(killed, reader) == lines_of(tmp_path / "undisturbed", reader)
    for name in ("summary.json", "summary.md"):
        one, other = (tmp_path / folder / name for folder in ("killed/answers", "undisturbed"))
        assert one.read_text() == other.read_text()


def test_probe_problems_without_answers_are_refused_with_hint(tmp_path: Path) -> None:
    row = {"problem": "What is 3+4?", "solution": "It is $\\boxed{7}$.", "final": "7"}
    data = {"path": write_problems(tmp_path / "problems.jsonl", [row])}
    config = changed("demo-paint", {"data": data, "rollout": {"max_new_tokens": 32}})
    with pytest.raises(DataError, match=r'jsonl row 1: field "answer" .*--data.answer-field'):
        probe(config, tmp_path / "probe", problems=100, samples=2, ratios=(0.25,))
    assert not (tmp_path / "probe").exists()
    # The way out is one; of fewer problems than asked for, all are taken.
    data_config = dataclasses.replace(config.data, answer_field="final")
    named = dataclasses.replace(config, data=data_config)
    graded = probe(named, tmp_path / "probe", problems=100, samples=2, ratios=(0.25,))
    shapes = {name: samples.correct.shape for name, samples in graded.items()}
    assert shapes == {"student": (1, 2), "teacher@0.25": (1, 2)}


def test_probe_random_mask_is_stable_across_problem_counts(
    policy: Policy, problems: list[Problem]
) -> None:
    config = dataclasses.replace(DEMO, context=ContextConfig(placement="random"))
    one, again = (
        teacher(policy, config, first_problems(problems, count, 0), 0.5) for count in (40, 20)
    )
    assert all(one.prompts[name] == prompt for name, prompt in again.prompts.items())
    texts = [policy.decode(prompt) for prompt in one.prompts.values()]
    starts = {
        text.split("Reference Solution Begin ===\n")[1].index("...(omitted)...") for text in texts
    }
    assert len(starts) > 10  # not one place for all


def test_answer_is_visible_in_any_spelling_as_whole_number() -> None:
    def seen(answer: str, context: str, boxed: bool = True) -> bool:
        solution = rf"So it is $\boxed{{{answer}}}$." if boxed else "So it is."
        return answer_is_visible(
            Problem("?", solution, answer if not boxed else "99", "1"), context
        )

    assert seen("12", "we get $x = 12$ ...(omitted)...")
    assert not seen("12", "we get $x = 312$, or 12.5 ...(omitted)...")
    assert seen(r"\dfrac{1}{2}", "a half, that is 1/2 ...(omitted)...")
    assert not seen(r"\dfrac{1}{2}", "a half ...(omitted)...")
    assert not seen("12", "...(omitted)...")
    assert seen("12", "x = 12", boxed=False)
    assert not seen("12", "x = 99")  # what the solution boxes, where it boxes something


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"data": DataConfig()}, {}, "data.path is not set"),
        ({}, {"problems": 0}, "problems must be at least 1, got 0"),
        ({}, {"samples": 0}, "samples must be at least 1, got 0"),
        ({}, {"ratios": (0.3, 1.0)}, r"in \[0, 1\), at least one, got \[0.3, 1.0\]"),
        ({}, {"ratios": (0.3, 0.3)}, "distinct mask ratios"),
        ({}, {"ratios": ()}, r"at least one, got \[\]"),
        ({"train": TrainConfig(method="sft")}, {}, 'train.method "sft" has no teacher; pass'),
        (
            {"context": ContextConfig(source=("answer",))},
            {},
            "context.source is answer; pass .* --context solution answer",
        ),
        ({}, {"shown": ()}, r"context must name context sources, each once, got \[\]"),
        ({}, {"shown": ("none", "none")}, r"got \['none', 'none'\]"),
        ({}, {"shown": ("rollout",)}, "context rollout needs the rollouts of a training"),
    ],
)
def test_probe_invalid_settings_are_refused(
    changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    config: Config = dataclasses.replace(DEMO, **changes)
    with pytest.raises(ConfigError, match=message):
        validate_probe(config, **{"problems": 100, "samples": 4, "ratios": (0.3,), **options})
