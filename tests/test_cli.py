"""The command line: what a person types wrong gets one clear message, never a traceback."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import paint
from paint.cli import VERBS, main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], 'unknown verb "trian"'),
        (["train", "lab-pain"], "did you mean lab-paint"),
        (["train", "nowhere.toml"], "nowhere.toml does not exist"),
        (["train"], "no recipe given"),
        (["resume", "nowhere"], "nowhere holds no run"),
        (["train", "lab-paint", "--data.path", "nowhere.jsonl"], "nowhere.jsonl"),
        (["train", "lab-paint", "--model.path", "nowhere/model"], "nowhere/model"),
        (["train", "lab-paint", "--rollout.max-new-tokens", "2000"], "leaves no room for a prompt"),
    ],
)
def test_a_mistake_is_one_clear_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if arguments[0] == "train" and len(arguments) > 2:
        arguments = [*arguments, "--log.folder", str(tmp_path)]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_help_explains_every_option_with_its_place_in_the_paper(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["train", "lab-paint", "--help"])

    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for part in (
        "--objective.clip",
        "paper: Eq. clipped_fkl; Experimental Details, 0.06",
        "--train.batch-size",
        "(default: 0.3)",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--objective.mixx", "0.1"], "--objective.mix"),
        (["--objective.mix", "1.5"], "objective.mix must be in [0, 1], got 1.5"),
        (["--train.steps", "ten"], "train.steps"),
    ],
)
def test_a_wrong_flag_is_named_with_what_is_right(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["train", "lab-paint", *flags])
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["grade", "x", "--deadline", "0"], "argument --deadline: must be in [0.01, 86400], got 0"),
        (
            ["data", "openthoughts", "x.jsonl", "--share", "2"],
            "argument --share: must be in [0, 1], got 2",
        ),
        (
            ["data", "openthoughts", "x.jsonl", "--sample", "0"],
            "argument --sample: must be at least 1, got 0",
        ),
        (
            ["data", "openthoughts", "x.jsonl", "--sample", "ten"],
            "argument --sample: invalid int value: 'ten'",
        ),
        (["data", "check", "x.jsonl"], "--model.path"),
        (["lab", "--problems", "201"], "argument --problems: must be in [1, 200], got 201"),
        (["eval", "lab", "--samples", "0"], "samples must be at least 1, got 0"),
        (["eval", "lab", "--benchmark", "lab"], "--benchmarks"),
    ],
)
def test_a_number_out_of_range_is_refused_with_the_range(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_data_verbs_do_what_they_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "problem": "What is 1+2?",
        "deepseek_reasoning": "hm",
        "deepseek_solution": "It is \\boxed{6/2}.",
    }
    row |= {"ground_truth_solution": "\\boxed{3}", "domain": "math", "source": "mine"}
    source = tmp_path / "source.jsonl"
    source.write_text(json.dumps(row) + "\n" + json.dumps(row | {"domain": "code"}) + "\n")
    out = tmp_path / "out.jsonl"
    flags = ["--source", str(source), "--benchmarks", "lab", "--workers", "1"]
    assert main(["data", "openthoughts", str(out), *flags]) == 0
    assert "2 rows, 1 kept, 1 drawn" in capsys.readouterr().out
    assert json.loads(out.read_text())["answer"] == "3"
    assert main(["data", "check", str(out), "--model.path", "lab"]) == 0
    assert "1 rows, 1 good" in capsys.readouterr().out

    out.with_suffix(".report.json").unlink()  # the file is changed on purpose
    out.write_text(out.read_text() * 2)
    assert main(["data", "check", str(out), "--model.path", "lab"]) == 1
    assert main(["data", "check", str(tmp_path / "nowhere.jsonl"), "--model.path", "lab"]) == 2


def test_a_recipe_with_an_unknown_key_says_where_and_what_was_meant(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[objective]\ntop_fractoin = 0.05\n")
    line = [sys.executable, "-m", "paint.cli", "train", str(recipe)]
    result = subprocess.run(line, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == (
        f"paint train: {recipe}: unknown key objective.top_fractoin; "
        f"did you mean objective.top_fraction?\n"
    )


@pytest.mark.parametrize("verb", [["probe"], ["ablate", "mask-ratio"]])
def test_what_starts_from_a_recipe_takes_its_settings_as_flags(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*verb, "lab-paint", "--rollout.nonsense", "1", "--folder", str(tmp_path / "x")])
    assert "rollout.nonsense" in capsys.readouterr().err
    # The recipe's own method is distillation: what is refused is what the flag says.
    assert main([*verb, "lab-paint", "--train.method", "sft", "--folder", str(tmp_path / "x")]) == 2
    assert "sft" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("flags", [["--train.seed", "7"], ["--log.name", "x"]])
def test_settings_that_an_ablation_would_ignore_are_refused(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ablate", "mask-ratio", "lab-paint", *flags, "--folder", str(tmp_path / "x")]) == 2
    assert "--folder, --seed and --seeds say which" in capsys.readouterr().err


def test_the_lab_takes_recipes_of_its_own_model_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "opsd-qwen3-1.7b", "--folder", str(tmp_path / "x")]) == 2
    assert "opsd-qwen3-1.7b trains 'Qwen/Qwen3-1.7B'" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"paint {paint.__version__}\n"


def test_an_error_that_nobody_expected_is_one_message_and_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "empty").mkdir()
    monkeypatch.setitem(VERBS, "grade", lambda _: 1 // 0)
    assert main(["grade", "empty"]) == 70
    error = capsys.readouterr().err
    [report] = tmp_path.glob("paint-error-*")
    assert error.startswith("paint grade: integer division or modulo by zero (ZeroDivisionError")
    assert str(report) in error
    assert error.count("\n") == 1
    assert "ZeroDivisionError" in report.read_text()


TRAIN = ["train", "lab-paint", "--train.steps=2", "--train.batch-size=2", "--log.name=mine"]
TRAIN += ["--rollout.max-new-tokens=4", "--log.folder"]


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paint = f"'{sys.executable}' -m paint.cli"
    return subprocess.run(
        ["bash", "-c", f'set -o pipefail; paint() {{ {paint} "$@"; }}; {line}'],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        encoding="utf-8",
        errors="replace",
    )


@pytest.mark.slow
def test_training_goes_on_when_nobody_reads_what_it_says(tmp_path: Path) -> None:
    for number, listener in enumerate(("| true", "| head -1", ">&-")):
        folder = tmp_path / str(number)
        result = shell(f"paint {' '.join(TRAIN)} {folder} {listener}")
        assert result.returncode == 0, result.stderr
        assert (folder / "mine/checkpoints/step-000002").is_dir()
        assert ("nobody reads the output" in result.stderr) == ("|" in listener)
        assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_other_verbs_end_quietly_when_nobody_reads_what_they_say() -> None:
    for line in ("--help", "train lab-paint --help", "data check lab --model.path lab"):
        result = shell(f"paint {line} | true")
        assert (result.returncode in (0, 141), result.stderr) == (True, ""), line


@pytest.mark.slow
def test_every_letter_is_said_in_every_locale(tmp_path: Path) -> None:
    problem = {"problem": "1+2 \u2018 ω é", "solution": "\\boxed{3}", "answer": "3"}
    (tmp_path / "x.jsonl").write_text(json.dumps(problem, ensure_ascii=False) + "\n", "utf-8")
    (tmp_path / "é.toml").write_text(f'[data]\npath = "{tmp_path}/x.jsonl"\n# ω\n', "utf-8")
    locales = [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"PYTHONIOENCODING": "latin-1"},
    ]
    for number, locale in enumerate(locales):
        folder = tmp_path / str(number)
        line = " ".join([*TRAIN, str(folder), "--train.steps=1", f"--data.path={tmp_path}/x.jsonl"])
        result = shell(f"paint {line}", **locale)
        assert result.returncode == 0, result.stderr
        assert "1+2" in result.stdout
        result = shell(f"paint probe '{tmp_path}/é.toml'", **locale)
        assert result.returncode == 2
        assert "model.path is not set" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.3, 0.8, 1.5, 2.5])
def test_an_interruption_while_modules_are_imported_is_one_line(seconds: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "paint.cli", "data", "check", "lab", "--model.path", "nowhere"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert "Traceback" not in error
    # Where a library was executing text, Python ends by the signal; 2 where it was quicker.
    assert process.returncode in (130, -signal.SIGINT, 2)


@pytest.mark.parametrize(
    ("own", "spins"),
    [({}, "10000"), ({"OMP_WAIT_POLICY": "active"}, "30000000000"), ({"GOMP_SPINCOUNT": "9"}, "9")],
)
def test_threads_that_wait_spin_briefly_unless_the_user_says_how_long(
    own: dict[str, str], spins: str, tmp_path: Path
) -> None:
    """What OpenMP itself says as it is loaded with torch, by a training that soon ends."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("OMP_", "GOMP_", "KMP_"))}
    line = [sys.executable, "-m", "paint.cli", "train", "lab-paint", "--log.folder", str(tmp_path)]
    ended = subprocess.run(
        [*line, "--data.path", "nowhere.jsonl"],
        env={**kept, "OMP_DISPLAY_ENV": "verbose", "OMP_NUM_THREADS": "1", **own},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 2
    assert f"GOMP_SPINCOUNT = '{spins}'" in ended.stderr
