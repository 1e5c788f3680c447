"""Workflows and templates of the repository's host, and the Makefile: they run what exists here."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
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


MAKE_VARIABLES = {"$$(date +%Y%m%d-%H%M%S)": "now", "$$table": "mask-ratio"}


def test_makefile_commands_of_paint_parse() -> None:
    text = (ROOT / "Makefile").read_text()
    for variable, value in MAKE_VARIABLES.items():
        text = text.replace(variable, value)
    lines = re.findall(r"\$\(BIN\)/paint ([^;|\n]+)", text)
    assert len(lines) == 5
    for line in lines:
        parse(shlex.split(line))


def test_workflow_covers_supported_python_versions_and_both_stacks() -> None:
    classifiers = (ROOT / "pyproject.toml").read_text()
    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', classifiers)
    assert jobs()["quick"]["strategy"]["matrix"]["python"] == supported
    stacks = jobs()["stacks"]["strategy"]["matrix"]["stack"]
    assert f"${{*:-{' '.join(stacks)}}}" in (ROOT / ".ci/stacks").read_text()


@pytest.mark.parametrize("kind", ["bug", "feature", "question"])
def test_issue_template_is_a_form_with_a_required_answer(kind: str) -> None:
    form = yaml.safe_load((HOST / f"ISSUE_TEMPLATE/{kind}.yml").read_text())
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert any(field.get("validations", {}).get("required") for field in fields)
    assert all(field["attributes"]["label"] for field in fields)
    names = [field["id"] for field in fields]
    assert len(set(names)) == len(names)
