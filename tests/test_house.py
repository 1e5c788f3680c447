"""The house's own rules: what a room may lean on, recipes that load, words that are explained."""

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
from paint.display import LINE, SHOWN
from paint.engines.local import invert
from paint.engines.protocol import Completion
from paint.recipe import find_recipe, read_recipe, shipped_recipes, to_table

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "paint"

# From the ground up: a module imports from its own room and from those above it in this table.
# Files that do not lie in a folder are named beside their room.
ROOMS = {
    "ground": [
        "errors",
        "options",
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
    "smollm2": [],
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
    "door": ["__init__", "cli", "gpus", "launch"],
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

    assert max(map(floor, MODULES)) <= 14


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
STANDARD += ["engines.watchdog", "lab.problems", "lab.files", "smollm2.problems"]
OUTSIDE: dict[str, set[str]] = {
    **{module: set() for module in STANDARD},
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
    assert "paint train" in result.stdout


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_recipe_loads_and_says_only_what_differs(name: str) -> None:
    path = find_recipe(name)
    read_recipe(path)
    defaults = to_table(Config())
    for section, values in tomllib.loads(path.read_text()).items():
        for key, value in values.items():
            assert value != defaults[section][key], f"{name}: {section}.{key} repeats the default"


def test_the_defaults_are_the_papers() -> None:
    config = Config()
    defaults = {
        "rank": config.model.lora_rank,
        "alpha": config.model.lora_alpha,
        "targets": len(config.model.lora_targets),
        "sampling temperature": config.rollout.temperature,
        "completion": config.rollout.max_new_tokens,
        "rho": (config.context.wrong, config.context.correct, config.context.placement),
        "interpolation": (config.objective.mix, config.objective.top_fraction),
        "clip": (config.objective.kind, config.objective.clip_mode, config.objective.clip),
        "learning rate": config.train.learning_rate,
        "batch, steps, checkpoints": (
            config.train.batch_size,
            config.train.steps,
            config.train.checkpoint_every,
        ),
    }
    # Paper, section 'Experimental Details'.
    assert defaults == {
        "rank": 64,
        "alpha": 128,
        "targets": 7,
        "sampling temperature": 1.1,
        "completion": 1024,
        "rho": (0.30, 0.40, "suffix"),
        "interpolation": (0.03, 0.03),
        "clip": ("forward_kl", "pointwise", 0.06),
        "learning rate": 5e-6,
        "batch, steps, checkpoints": (32, 100, 20),
    }


def test_every_figure_that_is_shown_is_documented() -> None:
    notation = (ROOT / "docs/notation.md").read_text()
    for name in {*SHOWN, *LINE}:
        base, _, rest = name.partition("_per_second_")
        assert name in notation or (rest and f"{base}_per_second_" in notation), name


def test_the_page_about_the_house_names_every_file_once() -> None:
    tree = (ROOT / "docs/house.md").read_text()
    for module in MODULES:
        name = f"{module.rpartition('.')[2]}.py"
        assert re.search(rf"^ +{re.escape(name)} ", tree, re.MULTILINE), f"docs/house.md: {name}"


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


def test_headings_stand_alone_and_once() -> None:
    for document in DOCUMENTS:
        text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
        headings = re.findall(r"^#{2} .*$", text, re.MULTILINE)
        assert len(headings) == len(set(headings)), document.name
        assert not re.search(r"[^\n]\n#{2,} ", text), document.name


def test_prose_is_wrapped_at_100_columns() -> None:
    for document in DOCUMENTS:
        is_code = False
        for number, line in enumerate(document.read_text().splitlines(), start=1):
            is_code ^= line.lstrip().startswith("```")
            if not is_code and not line.lstrip().startswith("|") and " " in line.strip("- "):
                assert len(line) <= 100, f"{document.name}:{number}"


def test_the_readme_counts_the_lines_of_the_methods_files() -> None:
    files = ["context", "options", "objective", "step", "baselines"]
    lines = sum(len((SOURCE / f"{name}.py").read_text().splitlines()) for name in files)
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"files (context, options, objective, step, baselines) have {lines:,} lines" in readme


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
