"""Workflows and templates of the repository's host, and the Makefile: they run what exists here."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from paint.cli.main import parse

ROOT = Path(__file__).parents[1]
HOST = ROOT / ".github"


def jobs() -> dict[str, Any]:
    workflow = yaml.safe_load((HOST / "workflows/tests.yml").read_text())
    found: dict[str, Any] = workflow["jobs"]
    return found


def run_lines() -> list[str]:
    steps = [step for job in jobs().values() for step in job["steps"]]
    return [line for step in steps for line in step.get("run", "").splitlines()]


def test_workflow_runs_make_targets_and_scripts_that_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called, scripts = set(), set()
    for line in run_lines():
        command, *words = line.split()
        if command == "make":
            called |= {word for word in words if "=" not in word}
        elif command.startswith(".ci/"):
            scripts.add(command)
    assert called == {"lint", "test", "docs"}
    assert called <= targets
    assert scripts == {".ci/stacks"}
    assert all(os.access(ROOT / script, os.X_OK) for script in scripts)


def test_ci_script_runs_the_quick_tests_by_themselves_and_then_the_rest_of_make_check() -> None:
    makefile, script = (ROOT / "Makefile").read_text(), (ROOT / ".ci/run").read_text()
    made = [line.split()[1:] for line in script.splitlines() if line.startswith("make ")]
    assert made == [
        ["--jobs=3", "setup", "vllm"],
        ["test"],
        ["--jobs=2", "lint", "docs", "test-slow"],
    ]
    check = re.search(r"^check: ([\w -]*\w)", makefile, re.MULTILINE)
    assert check is not None
    assert sorted(check[1].split()) == sorted(["test", "lint", "docs", "test-slow"])


MAKE_VARIABLES = {"$$(date +%Y%m%d-%H%M%S)": "now", "$$table": "mask-ratio"}


def test_makefile_commands_of_paint_parse() -> None:
    text = (ROOT / "Makefile").read_text()
    for variable, value in MAKE_VARIABLES.items():
        text = text.replace(variable, value)
    lines = re.findall(r"\$\(BIN\)/paint ([^;|\n]+)", text)
    assert len(lines) == 5
    for line in lines:
        parse(shlex.split(line))
