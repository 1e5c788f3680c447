"""Installed distributions that bring recipes: where they are found, and what records may name."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paint.config.recipe import (
    executables_of,
    find_recipe,
    find_recipes,
    shipped_folders,
    shipped_recipes,
)
from paint.config.run_folder import read_metrics
from paint.core import recipe_packages
from paint.core.errors import ConfigError
from runs import changed, train

METHOD = """
from paint.algorithms.variant import Variant


class Sure(Variant):
    def score(self, setup, rollouts):
        loss, values = super().score(setup, rollouts)
        return loss, {**values, "sure": (values["student_entropy"] < 0.1).float()}
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an installed package, of the recipe sure and of two in a folder."""
    site = tmp_path / "site"
    package = site / "sure_methods"
    (package / "recipes/rates").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('nothing imports it to list recipes')")
    (package / "recipes/sure.toml").write_text('[train]\nmethod = "sure_methods.sure:Sure"\n')
    for rate in ("high", "low"):
        (package / f"recipes/rates/{rate}.toml").write_text("[train]\nlearning_rate = 1e-5\n")
    (package / "sure.py").write_text(METHOD)
    metadata = site / "sure_methods-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sure-methods\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[paint.recipes]\nsure = sure_methods.recipes\n")
    monkeypatch.syspath_prepend(site)
    yield package
    for name in [name for name in sys.modules if name.startswith("sure_methods")]:
        del sys.modules[name]


def test_recipes_of_installed_package_are_found_without_importing_it(installed: Path) -> None:
    assert {"sure", "paint", "oasis"} <= set(shipped_recipes())
    assert find_recipe("sure") == installed / "recipes/sure.toml"
    assert "rates" in shipped_folders()
    names = [f"rates/{rate}" for rate in ("high", "low")]
    assert find_recipes("rates") == find_recipes("rates/") == list(map(find_recipe, names))


def test_recipe_of_installed_package_trains(installed: Path, tmp_path: Path) -> None:
    (installed / "__init__.py").write_text("")
    small: dict[str, Any] = {
        "model": {"path": "demo", "lora_rank": 4, "lora_alpha": 8},
        "data": {"path": "demo", "limit": 4},
        "rollout": {"max_new_tokens": 24},
        "train": {"steps": 1, "batch_size": 4, "micro_batch_size": 4},
    }
    train(changed("sure", small), tmp_path / "run")
    [metrics] = read_metrics(tmp_path / "run")
    assert 0 < metrics["sure"] < 1


def test_recipe_name_of_two_packages_is_refused_and_names_both(installed: Path) -> None:
    path = installed / "recipes/opsd.toml"
    path.write_text("")
    with pytest.raises(ConfigError) as error:
        find_recipe("opsd")
    message = "opsd is a recipe of paint and of sure_methods.recipes; name the file of one: "
    assert str(error.value).startswith(message)
    assert str(error.value).endswith(str(path))
    assert find_recipe(str(path)) == path
    assert find_recipe("sure").is_file()


def test_records_may_name_methods_of_installed_packages_alone(installed: Path) -> None:
    table = {"train": {"method": "sure_methods.sure:Sure"}}
    assert executables_of(table) == []
    others = {
        "train": {"method": "sure_methods2:Sure", "optimizer": "sure_methods.sure:Sure"},
        "rollout": {"engine": "sure_methods.sure:Sure"},
        "grading": {"grader": ["sure_methods.sure:Sure"]},
    }
    settings = [code.setting for code in executables_of(others)]
    assert settings == ["train.method", "train.optimizer", "rollout.engine", "grading.grader"]
    # Of a distribution that was removed by hand, a folder of the same name may be a stranger's.
    installed.rename(installed.with_name("elsewhere"))
    recipe_packages._folders_on.cache_clear()
    assert [code.name for code in executables_of(table)] == ["sure_methods.sure:Sure"]


def test_distribution_in_the_working_directory_is_not_installed(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"train": {"method": "sure_methods.sure:Sure"}}
    monkeypatch.chdir(installed.parent)
    for place in (str(installed.parent), ""):  # PYTHONPATH; `python -m` and notebooks
        monkeypatch.setattr(sys, "path", [place, *sys.path[1:]])
        assert [code.name for code in executables_of(table)] == ["sure_methods.sure:Sure"]
        assert "sure" not in shipped_recipes()


def test_unknown_recipe_without_variants_says_what_brings_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError) as error:
        find_recipe("oasys")
    assert "did you mean oasis?" in str(error.value)
    assert "pip install" not in str(error.value)
    monkeypatch.setattr("paint.config.recipe.recipe_folders", dict)
    with pytest.raises(ConfigError, match=re.escape("`pip install 'paint-distill[variants]'`")):
        find_recipe("oasis")


def test_variants_import_no_torch_to_be_listed() -> None:
    code = (
        "import sys; from paint.config.recipe import find_recipe; find_recipe('oasis'); "
        "assert not {'torch', 'paintvariants'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
