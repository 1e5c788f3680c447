"""Processes that paint starts import nothing from the folder in which it is called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import paint

CHILDREN = {
    # ``python -m`` puts the working directory first on a server's path.
    "server": """
from pathlib import Path
from paint.inference.vllm.process import OwnedProcess, inherited_environment
command = [sys.executable, "-m", "calendar", "2042"]
process = OwnedProcess(command, inherited_environment(command), Path(LOG))
process.start()
while not process.dead:
    time.sleep(0.02)
said = process.tail(50)
process.stop()
""",
    "grader": """
from paint.grading.contract import Item
from paint.grading.mathematics import MathGrader
with MathGrader(workers=1) as grader:
    [grade] = grader.grade([Item("\\\\boxed{2\\\\cdot 21x}", "42x")])
said = "42" if grade.correct else str(grade)
""",
    "ranks": """
from paint.training import torchrun
torchrun.main(["--standalone", "--nproc-per-node", "2", "grade", "nowhere"])
said = "42"
""",
    "gpus": """
from paint.training.launcher import _gpus_of_machine
assert _gpus_of_machine(1)
said = "42"
""",
    "git": """
from paint.training.run_log import _git_revision
_git_revision()
said = "42"
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("child", CHILDREN)
def test_child_process_imports_nothing_from_working_directory(child: str, tmp_path: Path) -> None:
    folder, marks = tmp_path / "folder", tmp_path / "marks"
    folder.mkdir()
    names = {name for name in sys.stdlib_module_names if not name.startswith("_")}
    for name in [*names, "sitecustomize", "usercustomize", "paint", "torch", "sympy"]:
        (folder / f"{name}.py").write_text(f"open({str(marks)!r}, 'a').write('{name}\\n')\n")
    (folder / "git").write_text(f"#!/bin/sh\necho git >> {marks}\n")
    (folder / "git").chmod(0o755)

    code = f"import sys, time\nLOG = {str(tmp_path / 'log')!r}\n{CHILDREN[child]}\nprint(said)"
    result = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(paint.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "42" in result.stdout, result.stderr
    assert not marks.exists(), marks.read_text()
