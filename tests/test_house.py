"""Import order, lean imports, shipped recipes, and what documents name."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import jaxtyping
import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError

from paint import latex
from paint.config import Config
from paint.engines.local import invert
from paint.engines.protocol import Completion
from paint.recipe import find_recipe, read_recipe, shipped_recipes, to_table

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "paint"

# From the ground up: a module imports from its own room and from those above it in this table.
# Files that do not lie in a folder are named beside their room.
ROOMS = {
    "ground": [
        "plugins",
        "errors",
        "options",
        "engine_registry",
        "plugins",
        "divergences",
        "config",
        "recipe",
        "files",
        "runs",
        "device",
        "display",
        "ranks",
    ],
    "method": ["context", "latex", "objective", "fused", "kernels"],
    "lab": [],
    "planning": ["plan"],
    "grading": [],
    "data": [],
    "model": [],
    "preparation": [],
    "engines": [],
    "evaluation": [],
    "training": ["step", "baselines"],
    "experiments": [],
    "show": [],
    "door": ["__init__", "gpus", "launch"],
    "cli": [],
}
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts): path
    for path in sorted(SOURCE.rglob("*.py"))
    if path.name != "__init__.py" or path.parent == SOURCE
}


def room_of(module: str) -> str:
    folder, _, _ = module.rpartition(".")
    [room] = [folder] if folder else [room for room, names in ROOMS.items() if module in names]
    return room


def imports(module: str) -> set[str]:
    """The modules of paint that a module imports, wherever in its file."""
    imported = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.split(".")[0] == "paint":
                parts = name.split(".")[1:]
                module_parts = [parts[:n] for n in (1, 2) if ".".join(parts[:n]) in MODULES]
                imported.add(".".join(module_parts[0]) if module_parts else "__init__")
    return imported - {module}


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_downwards(module: str) -> None:
    floors = list(ROOMS)
    for other in imports(module):
        assert floors.index(room_of(other)) <= floors.index(room_of(module)), (
            f"{module} imports {other}"
        )


def test_no_module_leans_on_itself_through_others() -> None:
    floors: dict[str, int] = {}

    def floor(module: str, above: tuple[str, ...] = ()) -> int:
        assert module not in above, f"a circle of imports: {' -> '.join([*above, module])}"
        if module not in floors:
            below = (floor(other, (*above, module)) for other in imports(module))
            floors[module] = 1 + max(below, default=0)
        return floors[module]

    for module in MODULES:
        floor(module)


def test_rooms_are_folders_and_folders_are_rooms() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders == {room for room in ROOMS if room not in ("ground", "method", "door")}


def test_the_method_reads_without_the_rest_of_the_house() -> None:
    for module in ROOMS["method"]:
        outside = {room_of(other) for other in imports(module)} - {"method", "ground"}
        assert not outside, f"{module} leans on {outside}"
    assert imports("context") == {"latex"}
    assert imports("latex") == set()


# Packages beside the standard library that the method, the settings and a lone process may import.
STANDARD = ["context", "latex", "errors", "options", "config", "recipe", "runs", "files"]
STANDARD += ["engine_registry", "engines.watchdog", "lab.problems", "lab.files"]
OUTSIDE: dict[str, set[str]] = {
    **{module: set() for module in STANDARD},
    "files": {"filelock"},
    "objective": {"torch", "jaxtyping"},
    "fused": {"torch", "jaxtyping"},
    "kernels": {"torch", "triton"},
}


@pytest.mark.parametrize("module", OUTSIDE)
def test_what_should_be_lean_imports_no_other_package(module: str) -> None:
    packages = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages.add(node.module.split(".")[0])
    assert packages - sys.stdlib_module_names - {"paint"} <= OUTSIDE[module]


# What must be there at once: help, settings, problems and verdicts do not wait for torch.
LIGHT = [
    "paint",
    "paint.cli",
    "paint.recipe",
    "paint.planning.report",
    "paint.context",
    "paint.data.problem_sets",
    "paint.grading.grader",
]


def test_what_must_be_quick_does_not_wait_for_torch() -> None:
    code = (
        f"import sys, {', '.join(LIGHT)}; assert paint.cli.main(['--help']) == 0; "
        "assert not {'torch', 'transformers'} & set(sys.modules), 'torch was imported'"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "train" in result.stdout


RECIPES = [*map(find_recipe, shipped_recipes()), *sorted(ROOT.glob("examples/*/recipes/*.toml"))]


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_every_recipe_loads_and_says_only_what_differs(path: Path) -> None:
    read_recipe(path)
    defaults = to_table(Config())
    for section, values in tomllib.loads(path.read_text()).items():
        for key, value in values.items():
            assert value != defaults[section][key], (
                f"{path.name}: {section}.{key} repeats the default"
            )


DOCUMENTS = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]


def test_links_between_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_files_that_documents_name_are_there() -> None:
    for document in DOCUMENTS:
        if document.name == "log.md":  # names what was there when it was measured
            continue
        for path in re.findall(r"\b(?:tests|benchmarks|src)/[\w/]+\.py\b", document.read_text()):
            assert (ROOT / path).exists(), f"{document.name}: {path}"


def test_options_that_documents_give_are_there_and_take_what_they_are_given() -> None:
    option = re.compile(r"--(\w+)\.([\w-]+)(=?)`?[\s\\]*(\S*)")
    config, seen = Config(), 0
    for document in [*DOCUMENTS, *(ROOT / "launch").iterdir()]:
        for section, name, joined, following in option.findall(document.read_text()):
            if section in ("sizes", "section"):  # of benchmarks, and of any section
                continue
            seen += 1
            field = name.removeprefix("no-").replace("-", "_")
            said = f"{document.name}: --{section}.{name}{joined} {following}"
            assert hasattr(getattr(config, section, None), field), said
            if isinstance(getattr(getattr(config, section), field), bool):
                assert not joined, said
                assert following not in ("True", "False"), said
    assert seen > 50


def test_annotations_are_checked_while_tests_run() -> None:
    with pytest.raises(BeartypeCallHintViolation):  # texts and numbers
        latex.anchors(1)  # type: ignore[arg-type]
    with pytest.raises(BeartypeCallHintViolation):  # what a data class is made of
        Completion(ids="12", log_probs=(), truncated=False)  # type: ignore[arg-type]
    with pytest.raises(TypeCheckError):  # the dimensions of arrays, against each other
        invert(torch.ones(2, 3), torch.ones(3))


def test_the_checks_of_annotations_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    text: Any = "12"
    assert Completion(text, log_probs=(), truncated=False).ids == text
    with pytest.raises(AttributeError, match="'int' object"):  # what users see
        latex.anchors(cast(Any, 1))
