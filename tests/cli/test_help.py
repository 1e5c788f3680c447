"""--help of every verb, its example, and shell completion."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from paint.cli import main
from paint.cli.main import COMMANDS, parse


def help_of(verb: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main([*verb.split(), "--help"]) == 0
    return capsys.readouterr().out


def example_of(verb: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The arguments of the one example in a verb's --help."""
    [line] = re.findall(r"^Example: paint (.*)$", help_of(verb, capsys), re.MULTILINE)
    return shlex.split(line)


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_example_is_valid_command(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    example = example_of(verb, capsys)
    assert parse(example).command is COMMANDS[verb]


CHEAP = "train resume show export runs doctor eval grade plan advise"


@pytest.mark.slow
def test_help_cheap_examples_run_in_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for verb in [*CHEAP.split(), "data validate"]:
        assert main(example_of(verb, capsys)) == 0, verb
    checkpoints = sorted(path.name for path in Path("runs/first/checkpoints").glob("step-*"))
    assert checkpoints == ["step-000002", "step-000004"]
    assert Path("exported/first/model.safetensors").exists()
    assert Path("runs/first/show.html").stat().st_size > 10_000
    assert Path("evals/demo/summary.json").exists()
    assert Path("advice/demo-paint/summary.json").exists()


def test_help_shows_defaults_of_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    def default_of(verb: str, flag: str) -> str:
        text = " ".join(help_of(verb, capsys).replace("│", " ").split())
        found = re.search(rf" {flag} [A-Z]+ .*?\(default: (.*?)\)", text)
        assert found
        return found[1]

    assert default_of("train demo-paint", "--train.steps") == "40"
    assert default_of("train", "--train.steps") == "100"
    assert default_of("compare demo-grpo demo-paint", "--model.path") == "demo"
    assert default_of("compare ablations/mask-placement", "--context.mask-ratio-wrong") == "0.3"
    assert default_of("compare ablations/mask-ratio", "--context.mask-ratio-wrong") == "0.0"
    assert default_of("eval", "--rollout.max-new-tokens") == "38912"


def test_help_and_completion_do_not_import_torch(tmp_path: Path) -> None:
    lines = [["--help"], *([*verb.split(), "--help"] for verb in COMMANDS), ["data", "--help"]]
    lines += [["--tyro-write-completion", "bash", str(tmp_path / "paint.bash")]]
    code = (
        f"import sys; from paint.cli import main; assert not any(map(main, {lines}));"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_completion_offers_verbs_and_flags(tmp_path: Path) -> None:
    script = tmp_path / "paint.bash"
    assert main(["--tyro-write-completion", "bash", str(script)]) == 0

    def offered(line: str) -> list[str]:
        words = line.split(" ")
        quoted = " ".join(map(shlex.quote, words))
        complete = (
            f"source {shlex.quote(str(script))}; COMP_WORDS=({quoted}); "
            f"COMP_CWORD={len(words) - 1}; COMP_LINE={shlex.quote(line)}; COMP_POINT={len(line)}; "
            "f=$(complete -p paint | sed 's/.*-F \\([^ ]*\\).*/\\1/'); "
            'PATH="$(dirname "$PYTHON"):$PATH"; "$f" paint; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        found = subprocess.run(
            ["bash", "-c", complete],
            capture_output=True,
            text=True,
            env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
        )
        return found.stdout.split()

    assert offered("paint res") == ["resume"]
    assert "--train.steps" in offered("paint train demo-paint --train.st")
    assert "--grading.deadline" in offered("paint grade runs/a --grading.de")
