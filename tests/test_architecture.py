"""Import order, lean imports, shipped recipes, and what documents name."""

import ast
import inspect
import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError

from paint.config.recipe import find_recipe, read_recipe, shipped_recipes, to_table
from paint.config.schema import Config
from paint.inference.engine import Completion, RemoteEngine
from paint.inference.sampling import invert
from paint.objective import anchors
from paint.objective.divergences import Divergence
from paint.resolve.algorithm import ALGORITHMS, Algorithm
from paint.resolve.engines import AUTO, ENGINES
from paint.resolve.optimizer import OptimizerFactory

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "paint"

# The dependency table (docs/dev/architecture.md), from the bottom up. A module imports from its own
# package and from those above it in this table.
LAYERS = [
    ["core"],
    ["config"],
    ["objective"],
    ["grading"],
    ["data"],
    ["resolve"],
    ["models"],
    ["inference"],
    ["evaluation"],
    ["training"],
    ["algorithms"],
    ["lab"],
    ["commands"],
    ["cli", "__init__"],
]
LAYER_OF = {name: index for index, names in enumerate(LAYERS) for name in names}
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts): path
    for path in sorted(SOURCE.rglob("*.py"))
    if path.name != "__init__.py" or path.parent == SOURCE
}


def layer_of(module: str) -> int:
    """The layer of the longest name in the table that holds the module."""
    parts = module.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next(LAYER_OF[name] for name in names if name in LAYER_OF)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def imports(module: str) -> set[str]:
    """The modules of paint that a module imports, wherever in its file, annotations included."""
    imported = set()
    for node in ast.walk(tree_of(MODULES[module])):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.split(".")[0] == "paint":
                parts = name.split(".")[1:]
                module_parts = [parts[:n] for n in (1, 2, 3) if ".".join(parts[:n]) in MODULES]
                imported.add(".".join(module_parts[0]) if module_parts else "__init__")
    return imported - {module}


def test_imports_follow_package_order() -> None:
    for module in MODULES:
        for other in imports(module):
            assert layer_of(other) <= layer_of(module), f"{module} imports {other}"


def test_imports_have_no_cycle() -> None:
    depths: dict[str, int] = {}

    def depth(module: str, above: tuple[str, ...] = ()) -> int:
        assert module not in above, f"a cycle of imports: {' -> '.join([*above, module])}"
        if module not in depths:
            below = (depth(other, (*above, module)) for other in imports(module))
            depths[module] = 1 + max(below, default=0)
        return depths[module]

    for module in MODULES:
        depth(module)


def test_config_is_data_and_imports_core_alone() -> None:
    for module in MODULES:
        if module.startswith("config."):
            others = {other for other in imports(module) if not other.startswith("config.")}
            assert all(other.startswith("core.") for other in others), f"{module} imports {others}"


def test_packages_match_import_table() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders == {name for name in LAYER_OF if "." not in name} - {"__init__"}


def names_of(module: str) -> list[str]:
    """Public names of a module's own classes, type aliases and functions, and its file's name."""
    names = [f"{module.rpartition('.')[2]}.py"]
    for node in tree_of(MODULES[module]).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            # A type alias; constants are in capitals.
            names.extend(
                target.id
                for target in node.targets
                if isinstance(target, ast.Name) and re.fullmatch("[A-Z]+[a-z].*", target.id)
            )
    return [name for name in names if not name.startswith("_")]


# Names that stand for one thing in several modules.
SAME_THING = {
    "main": "the entry point of a program",
    "measure": "the same work on rows, in torch and in Triton",
    "differentiate": "the same work on rows, in torch and in Triton",
}


def test_names_stand_for_one_thing() -> None:
    modules: dict[str, list[str]] = {}
    for module in MODULES:
        for name in names_of(module):
            modules.setdefault(name, []).append(module)
    for name, places in modules.items():
        # A command has the name of its implementation; ``report`` and ``status`` are its hooks.
        others = [place for place in places if not place.startswith("commands.")]
        is_hook = name in ("report", "status")
        is_one_command = is_hook or len(places) - len(others) < 2
        if name not in SAME_THING:
            assert len(others) < 2, f"{name}: {places}"
            assert is_one_command, f"{name}: {places}"
    assert {name for name in SAME_THING if len(modules[name]) > 1} == set(SAME_THING)


def test_masking_and_prompts_import_at_most_anchors() -> None:
    assert imports("objective.masking") == {"objective.anchors"}
    assert imports("objective.anchors") == imports("objective.messages") == set()


def compared(code: ast.Module) -> set[Any]:
    """The constants that code compares something with, or matches."""
    found = set()
    for node in ast.walk(code):
        if isinstance(node, ast.Compare | ast.match_case):
            part = node.pattern if isinstance(node, ast.match_case) else node
            found |= {n.value for n in ast.walk(part) if isinstance(n, ast.Constant)}
    return found


def test_source_never_compares_names_of_engines_or_algorithms() -> None:
    """It asks for their properties. Other settings have an "auto", too."""
    for module, path in MODULES.items():
        names = set(ENGINES) - {AUTO} | (
            set() if module == "resolve.algorithm" else set(ALGORITHMS)
        )
        assert not compared(tree_of(path)) & names, module
    code = 'x == "vllm" or x not in ("a", "sft")\nmatch x:\n    case "merged" | "b":\n        1'
    assert compared(ast.parse(code)) == {"vllm", "a", "sft", "merged", "b"}


# Packages beside the standard library that the method, the settings and a lone process may import.
STANDARD = [
    *("core.errors", "core.extensions", "core.settings", "resolve.algorithm"),
    "resolve.check",
    *("config.schema", "config.recipe", "config.run_folder", "core.demo_files"),
    *("objective.messages", "objective.loss_options"),
    "resolve.engines",
]
OUTSIDE: dict[str, set[str]] = {
    **{module: set() for module in STANDARD},
    "objective.masking": {"strictgrade"},  # its normalisation of texts
    "objective.anchors": {"strictgrade"},
    "core.storage": {"filelock"},
    "inference.vllm.watchdog": {"psutil"},
    "objective.divergences": {"torch"},  # for its annotations alone
    "objective.loss": {"torch", "jaxtyping"},
    "objective.fused": {"torch", "jaxtyping"},
    "objective.triton_kernels": {"torch", "triton"},
}


def packages_of(path: Path) -> set[str]:
    """The packages beside the standard library that a file imports, wherever in it."""
    packages = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages.add(node.module.split(".")[0])
    return packages - sys.stdlib_module_names


@pytest.mark.parametrize("module", OUTSIDE)
def test_lean_modules_import_no_third_party_package(module: str) -> None:
    assert packages_of(MODULES[module]) - {"paint"} <= OUTSIDE[module]


# The libraries in packages/, and what each may import beside the standard library and itself.
LIBRARIES: dict[str, set[str]] = {
    "chatforms": {"docstring_parser", "jinja2", "strictgrade", "tokenizers", "transformers"},
    "codetrial": set(),
    "paintvariants": {"jaxtyping", "numpy", "paint", "strictgrade", "torch"},
    "strictgrade": {"latex2sympy2_extended", "mpmath", "sympy"},
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_library_imports_the_packages_of_its_table_alone(library: str) -> None:
    source = ROOT / "packages" / library / "src" / library
    packages = set[str]().union(*map(packages_of, source.rglob("*.py")))
    assert packages - {library} == LIBRARIES[library]


def test_paint_imports_no_library_that_imports_it() -> None:
    imported = set[str]().union(*map(packages_of, MODULES.values()))
    assert {name for name, needed in LIBRARIES.items() if "paint" in needed} == {"paintvariants"}
    assert imported & LIBRARIES.keys() == LIBRARIES.keys() - {"paintvariants"}


def test_libraries_match_their_table_and_paint_depends_on_their_versions() -> None:
    folders = {path.parent.name: path for path in (ROOT / "packages").glob("*/pyproject.toml")}
    assert folders.keys() == LIBRARIES.keys()
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needs = wanted["project"]["dependencies"]
    needs += wanted["project"]["optional-dependencies"]["variants"]
    for name, path in folders.items():
        project = tomllib.loads(path.read_text())["project"]
        minor = project["version"].rpartition(".")[0]
        assert project["name"].replace("-", "") == name
        assert any(need.startswith(f"{project['name']}>={minor},<") for need in needs)
        assert wanted["tool"]["uv"]["sources"][project["name"]]["path"] == f"packages/{name}"


# What must be there at once: help, settings, problems and verdicts do not wait for torch.
LIGHT = ["", ".cli", ".config.recipe", ".core.display", ".resolve.plan_report", ".resolve.check"]
LIGHT += [".objective.masking", ".data.benchmarks", ".grading.mathematics"]


def test_light_modules_do_not_import_torch() -> None:
    code = (
        f"import sys, {', '.join(f'paint{name}' for name in LIGHT)}; "
        "from paint import PaintError, anchors, mask_solution, student_messages; "
        "assert not {'torch', 'transformers'} & set(sys.modules), 'torch was imported'"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


LOADING = {"from_pretrained", "from_config", "load_dataset", "load_dataset_builder", "pipeline"}
PYTHON_FILES = [
    path
    for folder in ("src", "packages", "examples", "benchmarks", "tools", "launch")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def loads_that_may_run_code(tree: ast.Module) -> list[int]:
    """The lines that name a loading function but in a call with ``trust_remote_code=False``."""
    guarded = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = {word.arg: word.value for word in node.keywords}
            value = given.get("trust_remote_code")
            if isinstance(value, ast.Constant) and value.value is False:
                guarded.add(node.func)
    found = []
    for node in ast.walk(tree):
        # Without the argument, transformers may ask on the terminal, and "y" runs the code.
        name = getattr(node, "attr", None) or getattr(node, "id", None)
        if name in LOADING and node not in guarded:
            found.append(node.lineno)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("AutoConfig.from_pretrained(x, trust_remote_code=False)", []),
        ("AutoConfig.from_pretrained(x)", [1]),
        ("AutoConfig.from_pretrained(x, trust_remote_code=True)", [1]),
        ("\nload_dataset(x, trust_remote_code=asks)", [2]),
        ("load = AutoTokenizer.from_pretrained\nload(x)", [1]),
        ("m.from_config(\n    AutoConfig.from_pretrained(x), trust_remote_code=False\n)", [2]),
    ],
)
def test_loads_that_may_run_code_finds_each(source: str, lines: list[int]) -> None:
    assert loads_that_may_run_code(ast.parse(source)) == lines


def test_every_load_of_models_and_data_sets_runs_no_remote_code() -> None:
    sources = {path: tree_of(path) for path in PYTHON_FILES}
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text("utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        python = [line for line in "\n".join(code).splitlines() if line[:1] not in ("%", "!")]
        sources[path] = ast.parse("\n".join(python))
    for path, tree in sources.items():
        assert loads_that_may_run_code(tree) == [], path
    texts = [path.read_text("utf-8") for path in PYTHON_FILES]
    assert sum(text.count("trust_remote_code=False") for text in texts) > 10


RECIPES = [*map(find_recipe, shipped_recipes()), *sorted(ROOT.glob("examples/*/recipes/*.toml"))]


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_shipped_recipes_load_and_repeat_no_default(path: Path) -> None:
    read_recipe(path)
    defaults = to_table(Config())
    for section, values in tomllib.loads(path.read_text()).items():
        for key, value in values.items():
            assert value != defaults[section][key], (
                f"{path.name}: {section}.{key} repeats the default"
            )


DOCUMENTS = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("packages/*/*.md")),
]
# The experiment log names commands and files of their day.
CURRENT = [document for document in DOCUMENTS if document.name != "log.md"]


def test_documentation_links_resolve() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_documentation_file_paths_exist() -> None:
    for document in CURRENT:
        paths = re.findall(
            r"(?<!\w/)\b(?:tests|benchmarks|src|tools)/[\w/]+\.py\b", document.read_text()
        )
        for path in paths:
            places = (ROOT, document.parent)  # of a library's README, its own folder
            assert any((place / path).exists() for place in places), f"{document.name}: {path}"


def test_documentation_pages_that_source_names_exist() -> None:
    folders = ("src", "packages", "tests", "benchmarks", "examples", "launch")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    sources = [p for p in files if p.suffix in (".py", ".toml", ".js", ".sbatch", ".yaml")]
    seen = 0
    for source in sources:
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", source.read_text(encoding="utf-8")):
            seen += 1
            assert (ROOT / page).exists(), f"{source.relative_to(ROOT)}: {page}"
    assert seen > 30


def test_architecture_page_lists_every_module() -> None:
    page = (ROOT / "docs/dev/architecture.md").read_text()
    tree = page.partition("```\n")[2].partition("```")[0]
    commands = {name for name in MODULES if name.startswith("commands.")}  # docs/reference/cli.md
    of_libraries = {path.stem for path in (ROOT / "packages").glob("*/src/*/[a-z]*.py")}
    for module in (MODULES.keys() - commands) | of_libraries:
        assert re.search(rf"\b{module.rpartition('.')[2]}\.py\b", tree), module


@pytest.mark.parametrize("contract", [Algorithm, RemoteEngine, Divergence, OptimizerFactory])
def test_architecture_page_names_every_attribute_of_a_contract(contract: type) -> None:
    page = (ROOT / "docs/dev/architecture.md").read_text()
    row = page.partition(f"\n| {contract.__name__.removeprefix('Remote')} |")[2].partition("\n")[0]
    names: set[str] = set()
    for part in contract.__mro__[:-1]:
        names |= {*vars(part), *inspect.get_annotations(part)}
    written = {name for name in names if not name.startswith("_")} - {"evaluate"}
    assert written <= set(re.findall(r"`(\w+)`", row))


def test_documentation_options_exist_and_parse() -> None:
    option = re.compile(r"--(\w+)\.([\w-]+)(=?)`?[\s\\]*(\S*)")
    config, seen = Config(), 0
    for document in [*CURRENT, *(ROOT / "launch").iterdir()]:
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


def test_security_page_names_a_test_that_exists_for_each_promise() -> None:
    rows = re.findall(
        r"^\| (\*\*.*?) \| (.*) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 10
    for promise, held_by in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", held_by)
        assert named, f"no test holds: {promise}"
        for file, test in named:
            assert f"def {test or 'test_'}" in (ROOT / file).read_text(), f"{file}::{test}"


def test_type_annotations_are_checked_in_tests() -> None:
    with pytest.raises(BeartypeCallHintViolation):  # texts and numbers
        anchors.anchors(1)  # type: ignore[arg-type]
    with pytest.raises(BeartypeCallHintViolation):  # what a data class is made of
        Completion(ids="12", log_probs=(), truncated=False)  # type: ignore[arg-type]
    with pytest.raises(TypeCheckError):  # the dimensions of arrays, against each other
        invert(torch.ones(2, 3), torch.ones(3))


@pytest.mark.usefixtures("unchecked")
def test_type_annotation_checks_can_be_disabled() -> None:
    text: Any = "12"
    assert Completion(text, log_probs=(), truncated=False).ids == text
    with pytest.raises(AttributeError, match="'int' object"):  # what users see
        anchors.anchors(cast(Any, 1))
