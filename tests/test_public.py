"""The package itself: its functions by name, and the systems that it runs on."""

import pydoc
import re
import subprocess
import sys
import tomllib
from inspect import signature, unwrap
from pathlib import Path

import pytest

import paint
from paint.commands import function_names

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", paint.__all__)
def test_package_exported_name_is_importable(name: str) -> None:
    exported = getattr(paint, name)
    assert callable(exported)
    home = exported.__module__.partition(".")[0]
    assert exported.__name__ == name
    assert home == ("strictgrade" if name == "normalize" else "paint")
    assert name in dir(paint)


def test_package_lists_public_names_alone() -> None:
    import paint.cli.main  # binds the names of modules in the package

    assert [name for name in dir(paint) if not name.startswith("__")] == paint.__all__


@pytest.mark.parametrize("name", function_names())
def test_help_of_command_shows_types_without_notes(name: str) -> None:
    function = getattr(paint, name)
    said = pydoc.plain(pydoc.render_doc(function))
    line = said.splitlines()[2]
    assert line.startswith(f"{name}(")
    assert "Annotated" not in line
    own, annotated = signature(function), signature(unwrap(function))
    assert list(own.parameters) == list(annotated.parameters)
    for parameter in own.parameters.values():
        assert parameter.default == annotated.parameters[parameter.name].default
        assert parameter.kind == annotated.parameters[parameter.name].kind


@pytest.mark.parametrize("name", ["paint_lost", "import_modules", "token_log_probs"])
def test_package_unknown_name_raises_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'paint' has no attribute '{name}'"):
        getattr(paint, name)


def test_package_import_on_windows_names_wsl() -> None:
    source = 'import sys; sys.platform = "win32"; import paint'
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith(
        "ImportError: paint runs on Linux and macOS; on Windows, install it in WSL"
    )


def test_changelog_names_lower_bounds_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = dict(
        re.findall(r"^(torch|transformers)>=([\d.]+)", "\n".join(project["dependencies"]), re.M)
    )
    text = (ROOT / "CHANGELOG.md").read_text()
    assert dict(re.findall(r"(torch|transformers) ([\d.]+) to [\d.]+", text)) == bounds


def test_installation_page_names_versions_of_constraints() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    tested = dict(re.findall(r"^(torch|transformers)==([\d.]+)$", constraints, re.M))
    page = (ROOT / "docs/getting-started/install.md").read_text()
    named = re.findall(r"\b(torch|transformers) (\d+\.\d+\.\d+)", page)
    assert len(named) >= 4
    assert all(tested[package] == version for package, version in named)
