"""The wheel, installed in an environment of its own, elsewhere."""

import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import paint

ROOT = Path(__file__).parents[1]

BUILT = re.compile(r"__pycache__|\.egg-info")

FIVE_LINES = """
import paint
rows = [{"problem": f"{a} + 1?", "solution": f"It is ${a + 1}$.", "answer": a} for a in range(40)]
run = paint.train("demo-paint", data=rows, output_dir="runs/first", train={"steps": 2})
results = paint.evaluate(run, benchmarks=rows[:2], samples=2, rollout={"max_new_tokens": 16})
print(len(run.metrics), len(results.table), paint.__version__, paint.__file__)
"""


@pytest.mark.slow
def test_wheel_in_bare_environment_runs_demo_and_five_lines(tmp_path: Path) -> None:
    pytest.importorskip("build")

    def done(*command: str | Path, cwd: Path = ROOT) -> str:
        bare = {"HOME": str(tmp_path), "PATH": f"{tmp_path}/env/bin:/usr/bin:/bin"}
        return subprocess.run(
            command, cwd=cwd, env=bare, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    done(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT)
    assert {path.suffix for path in tmp_path.glob("paint_distill-*")} == {".gz", ".whl"}
    [wheel] = tmp_path.glob("*.whl")
    sources = [path for path in (ROOT / "src").rglob("*") if path.is_file()]
    shipped = {str(path.relative_to(ROOT / "src")) for path in sources}
    built = zipfile.ZipFile(wheel).namelist()
    assert {name for name in shipped.difference(built) if not BUILT.search(name)} == set()
    done(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env")
    python = tmp_path / "env/bin/python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python]
    done(*pip, "install", "--quiet", "--no-deps", wheel)
    # The dependencies of this environment, without what is installed as editable.
    [packages] = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    recipe = (ROOT / "recipes/demo-paint.toml").read_text()
    (elsewhere / "short.toml").write_text(recipe.replace("steps = 20", "steps = 1"))
    few = ["--problems", "4", "--samples", "2"]
    assert "short" in done("paint", "demo", "short.toml", *few, cwd=elsewhere)
    printed = done(python, "-c", FIVE_LINES, cwd=elsewhere).splitlines()[-1].split()
    assert printed == ["2", printed[1], paint.__version__, str(packages / "paint/__init__.py")]
    assert int(printed[1]) > 0
    done("paint", "show", "runs/first", "--no-open", "--out", "page.html", cwd=elsewhere)
    assert (elsewhere / "page.html").exists()
