"""The package itself: its functions by name, and the systems that it runs on."""

import subprocess
import sys

import pytest

import paint


@pytest.mark.parametrize("name", paint.__all__)
def test_package_exported_name_is_importable(name: str) -> None:
    exported = getattr(paint, name)
    assert callable(exported)
    assert (exported.__name__, exported.__module__.partition(".")[0]) == (name, "paint")
    assert name in dir(paint)


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
