"""The house's own rules: who imports what, recipes that load, words that are documented."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paint.display import LINE, SHOWN
from paint.recipe import find_recipe, read_recipe, shipped_recipes

SOURCE = Path(__file__).parent.parent / "src" / "paint"
DOCS = Path(__file__).parent.parent / "docs"
STANDARD = set(sys.stdlib_module_names)

# What each module may import beside the standard library and other modules of paint.
ALLOWED = {
    "context": set(),
    "latex": set(),
    "errors": set(),
    "options": set(),
    "config": set(),
    "recipe": set(),
    "update": {"torch", "accelerate"},
    "baselines": {"torch", "jaxtyping", "accelerate"},
    "teacher": {"torch", "safetensors"},
    "experiment": {"rich", "numpy", "accelerate", "jaxtyping"},
    "probe": {"accelerate"},
    "ablate": {"rich"},
    "plot": {"matplotlib"},
    "data": set(),
    "answers": {"math_verify", "latex2sympy2_extended", "sympy"},
    "grading": set(),
    "chains": set(),
    "objective": {"torch", "jaxtyping"},
    "fused": {"torch", "jaxtyping"},
    "kernels": {"torch", "triton"},
    "display": {"rich", "torch"},
    "runlog": {"torch"},
    "rows": {"datasets", "pyarrow"},
    "benchmarks": set(),
    "contamination": set(),
    "openthoughts": set(),
    "survey": {"rich", "transformers"},
    "figures": {"numpy", "jaxtyping"},
    "store": set(),
    "summary": {"rich"},
    "evaluate": {"numpy", "torch"},
    "contest": {"accelerate"},
    "validation": {"accelerate"},
    "train": {"torch", "accelerate"},
    "lab": {"rich"},
    "cli": {"tyro"},
    "policy": {"torch", "jaxtyping", "peft", "safetensors", "transformers"},
    "rollout": {"torch", "jaxtyping", "transformers"},
    "canary": {"torch", "jaxtyping"},
    "vllm": {"torch", "accelerate"},
    "fleet": set(),
    "server": {"httpx2", "psutil", "tenacity"},
    "watchdog": set(),
    "pretrain": {"torch", "tokenizers", "transformers"},
    "__init__": set(),
}
# Modules of paint that a pure module may lean on.
PURE = {
    "context": {"latex"},
    "latex": set(),
    "errors": set(),
    "options": {"errors"},
    "objective": {"options"},
    "fused": {"__init__", "objective", "kernels", "options"},
    "kernels": {"options"},
    "config": {"errors", "options"},
    "recipe": {"config", "errors"},
    "chains": set(),
    "data": {"config", "rows"},
    "rows": {"__init__"},
    "benchmarks": {"config", "data", "rows"},
    "contamination": {"benchmarks", "latex"},
    "figures": set(),
    "store": {"__init__", "data"},
    "answers": {"latex"},
    "grading": {"__init__", "answers"},
    "watchdog": set(),
}


def imports(module: str) -> tuple[set[str], set[str]]:
    """What a module imports: packages from outside, and modules of paint."""
    outside, inside = set(), set()
    for node in ast.walk(ast.parse((SOURCE / f"{module}.py").read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "paint":
                modules = {path.stem for path in SOURCE.glob("*.py")}
                names = [f"paint.{a.name}" if a.name in modules else "paint.__init__" for a in node.names]
        for name in names:
            root, _, rest = name.partition(".")
            if root == "paint":
                inside.add(rest)
            elif root not in STANDARD:
                outside.add(root)
    return outside, inside


@pytest.mark.parametrize("module", sorted(path.stem for path in SOURCE.glob("*.py")))
def test_every_module_keeps_to_the_import_rule(module: str) -> None:
    outside, inside = imports(module)
    assert outside <= ALLOWED[module], f"{module} imports {outside - ALLOWED[module]}"
    if module in PURE:
        assert inside <= PURE[module], f"{module} leans on {inside - PURE[module]}"


def test_asking_for_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys, paint.cli; assert paint.cli.main(['--help']) == 0; "
        "assert not {'torch', 'transformers'} & set(sys.modules), 'torch was imported'"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "paint train" in result.stdout


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_recipe_loads_and_says_only_what_differs(name: str) -> None:
    path = find_recipe(name)
    read_recipe(path)
    import tomllib

    from paint.config import Config
    from paint.recipe import to_table

    defaults = to_table(Config())
    for section, values in tomllib.loads(path.read_text()).items():
        for key, value in values.items():
            assert value != defaults[section][key], f"{name}: {section}.{key} repeats the default"


def test_the_defaults_are_the_papers() -> None:
    from paint.config import Config

    config = Config()
    found = {
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
    assert found == {
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
    notation = (DOCS / "notation.md").read_text()
    for name in {*SHOWN, *LINE}:
        base, _, rest = name.partition("_per_second_")
        assert name in notation or (rest and f"{base}_per_second_" in notation), name


def test_links_between_documents_lead_somewhere() -> None:
    root = DOCS.parent
    for document in [*DOCS.glob("*.md"), root / "README.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"
