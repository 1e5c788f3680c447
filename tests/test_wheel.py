"""The wheels of paint and its libraries, installed in an environment of their own, elsewhere."""

import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import paint

ROOT = Path(__file__).parents[1]
PROJECTS = [ROOT, *sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))]

BUILT = re.compile(r"__pycache__|\.egg-info")

FIVE_LINES = f"""
import importlib
import paint
libraries = {[project.name for project in PROJECTS[1:]]}
rows = [dict(problem=str(a) + " + 1?", solution=f"It is ${{a + 1}}$.", answer=a) for a in range(40)]
run = paint.train("demo-paint", data=rows, output_dir="runs/first", train=dict(steps=2))
results = paint.evaluate(run, benchmarks=rows[:2], samples=2, rollout=dict(max_new_tokens=16))
print(len(run.metrics), len(results.table), paint.__version__)
print(paint.__file__, *(importlib.import_module(name).__file__ for name in libraries))
"""


@pytest.mark.slow
def test_wheels_in_bare_environment_runs_demo_and_five_lines(tmp_path: Path) -> None:
    pytest.importorskip("build")

    def done(*command: str | Path, cwd: Path = ROOT) -> str:
        bare = {"HOME": str(tmp_path), "PATH": f"{tmp_path}/env/bin:/usr/bin:/bin"}
        return subprocess.run(
            command, cwd=cwd, env=bare, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    wheels: list[Path] = []
    for project in PROJECTS:
        table = tomllib.loads((project / "pyproject.toml").read_text())
        name = table["project"]["name"].replace("-", "_")
        done(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, project)
        assert {path.suffix for path in tmp_path.glob(f"{name}-*")} == {".gz", ".whl"}
        wheels += tmp_path.glob(f"{name}-*.whl")
        sources = [path for path in (project / "src").rglob("*") if path.is_file()]
        shipped = {str(path.relative_to(project / "src")) for path in sources}
        built = zipfile.ZipFile(wheels[-1]).namelist()
        assert {name for name in shipped.difference(built) if not BUILT.search(name)} == set()
        assert any(path.endswith("licenses/LICENSE") for path in built)
    done(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env")
    python = tmp_path / "env/bin/python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python]
    done(*pip, "install", "--quiet", "--no-deps", *wheels)
    # The dependencies of this environment, without what is installed as editable.
    [packages] = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    recipe = (ROOT / "recipes/demo-paint.toml").read_text()
    (elsewhere / "short.toml").write_text(recipe.replace("steps = 20", "steps = 1"))
    few = ["--problems", "4", "--samples", "2"]
    assert "short" in done("paint", "demo", "short.toml", *few, cwd=elsewhere)
    counts, files = done(python, "-c", FIVE_LINES, cwd=elsewhere).splitlines()[-2:]
    steps, rows, version = counts.split()
    assert (steps, int(rows) > 0, version) == ("2", True, paint.__version__)
    names = ["paint", *(project.name for project in PROJECTS[1:])]
    assert files.split() == [str(packages / name / "__init__.py") for name in names]
    assert "paintvariants.oasis:Oasis" in done("paint", "config", "oasis", cwd=elsewhere)
    done("paint", "show", "runs/first", "--no-open", "--out", "page.html", cwd=elsewhere)
    assert (elsewhere / "page.html").exists()
