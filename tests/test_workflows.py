"""Workflows and templates of the repository's host, and the Makefile: they run what exists here."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import yaml

from paint.core.versions import __version__
from runs import parse

ROOT = Path(__file__).parents[1]
HOST = ROOT / ".github"


WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (HOST / "workflows").iterdir()}


def jobs(workflow: str) -> dict[str, Any]:
    found: dict[str, Any] = WORKFLOWS[workflow]["jobs"]
    return found


def steps() -> list[dict[str, Any]]:
    """Those of all workflows, and jobs that are another workflow."""
    return [
        step
        for name in WORKFLOWS
        for job in jobs(name).values()
        for step in job.get("steps", [job])
    ]


def test_workflow_runs_make_targets_and_scripts_that_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called, scripts = set(), set()
    for line in "\n".join(step.get("run", "") for step in steps()).splitlines():
        command, *words = line.split() or [""]
        if command == "make":
            called |= {word for word in words if "=" not in word}
        elif command.startswith(".ci/"):
            scripts.add(command)
    assert called == {"setup", "lint", "test", "docs"}
    assert called <= targets
    assert scripts == {".ci/stacks"}
    assert all(os.access(ROOT / script, os.X_OK) for script in scripts)


def test_workflow_actions_are_pinned_by_major_version_or_exist_here() -> None:
    used = [step["uses"] for step in steps() if "uses" in step]
    assert len(used) > 10
    for action in used:
        if action.startswith("./"):
            assert (ROOT / action).exists()
        else:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", action), action


def test_release_publishes_a_tested_wheel_of_a_tag_without_a_stored_key() -> None:
    # YAML reads the key `on` as true.
    assert WORKFLOWS["release.yml"][True] == {"push": {"tags": ["v*"]}}
    release = jobs("release.yml")
    assert release["publish"]["needs"] == "wheel"
    assert release["wheel"] == {"needs": "version", "uses": "./.github/workflows/wheel.yml"}
    assert release["publish"]["permissions"] == {"id-token": "write"}
    [upload] = [step for step in jobs("wheel.yml")["wheel"]["steps"] if "upload" in str(step)]
    download, _ = release["publish"]["steps"]
    assert download["with"] == upload["with"]
    assert "secrets." not in "".join(path.read_text() for path in HOST.glob("workflows/*"))
    [tag] = [step["run"] for step in release["version"]["steps"] if "run" in step]
    for name, status in ((f"v{__version__}", 0), ("v0.0.0", 1)):
        environment = {"GITHUB_REF_NAME": name, "PATH": os.environ["PATH"]}
        done = subprocess.run(["bash", "-c", tag], cwd=ROOT, env=environment, check=False)
        assert done.returncode == status


def test_citation_names_this_version_and_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (__version__, "Apache-2.0")


MAKE_VARIABLES = {"$$(date +%Y%m%d-%H%M%S)": "now", "$$table": "mask-ratio"}


def test_makefile_commands_of_paint_parse() -> None:
    text = (ROOT / "Makefile").read_text()
    for variable, value in MAKE_VARIABLES.items():
        text = text.replace(variable, value)
    lines = re.findall(r"\$\(BIN\)/paint ([^;|\n]+)", text)
    assert len(lines) == 4
    for line in lines:
        parse(shlex.split(line))
