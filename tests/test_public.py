"""The package itself: its functions by name, and no torch until one of them needs it."""

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


def test_package_import_is_free_of_torch_until_needed() -> None:
    code = """
import sys
import paint
from paint import PaintError, anchors, mask_solution, student_messages
assert mask_solution("one two", 0.5) and not {"torch", "transformers"} & set(sys.modules)
from paint import paint_loss
assert "torch" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_package_import_on_windows_names_wsl() -> None:
    source = 'import sys; sys.platform = "win32"; import paint'
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith(
        "ImportError: paint runs on Linux and macOS; on Windows, install it in WSL"
    )
