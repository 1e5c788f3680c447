"""The committed reference pages are those that the generator makes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools/generate_reference.py"), "--check", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_reference_pages_match_generated_ones() -> None:
    result = check()
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_main_check_changed_page_fails_with_its_name(tmp_path: Path) -> None:
    for page in (ROOT / "docs/reference").glob("*.md"):
        shutil.copy(page, tmp_path)
    changed = tmp_path / "config.md"
    changed.write_text(changed.read_text().replace("learning", "teaching"))
    result = check("--folder", str(tmp_path))
    assert result.returncode == 1
    assert str(changed) in result.stdout
    assert "cli.md" not in result.stdout
