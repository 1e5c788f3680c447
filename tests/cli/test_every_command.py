"""What every command does alike: it ends with one line on what is misspelt or missing."""

from pathlib import Path

import pytest

from paint.cli import main
from paint.cli.main import COMMANDS

# The words before the flags, of what is missing.
WORDS = {
    "advise": "nowhere.toml",
    "bake": "nowhere.md nowhere.jsonl demo-bake",
    "compare": "nowhere.toml",
    "config": "nowhere.toml",
    "data validate": "nowhere.jsonl demo-paint",
    "demo": "nowhere",
    "doctor": "nowhere.toml",
    "eval": "nowhere/model",
    "export": "nowhere out",
    "grade": "nowhere",
    "held-out-kl": "nowhere nowhere.jsonl",
    "plan": "nowhere.toml",
    "resume": "nowhere",
    "runs": "nowhere",
    "serve": "nowhere.toml",
    "show": "nowhere",
    "train": "nowhere.toml",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "doctor"])
def test_command_missing_file_ends_in_one_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"{name} {WORDS[name]}".split()) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1, said
    assert "nowhere" in said
