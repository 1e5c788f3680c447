"""An own server that does not start: where auto chose it, the run generates itself."""

import sys
from pathlib import Path
from typing import Any

import pytest

from paint.config.recipe import find_recipe, read_recipe
from paint.config.run_folder import read_metrics, read_run
from paint.config.schema import Config
from paint.core.display import Display
from paint.inference import resolve
from paint.inference.engine import ServerStartError
from paint.training.trainer import train

DIES = "import sys; print('CUDA out of memory'); sys.exit(1)"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A step of the demo on a machine where auto finds a server that dies as it starts."""
    script = tmp_path / "server.py"
    script.write_text(DIES)
    monkeypatch.setattr(resolve, "_choose", _found)
    recipe = read_recipe(find_recipe("demo-paint"))
    recipe = recipe.changed("train", steps=1, batch_size=2)
    return recipe.changed("rollout", engine="auto", server=f"{sys.executable} {script} serve")


def _found(rollout: Any, *_: Any) -> tuple[str, str]:
    return ("vllm" if rollout.engine == "auto" else rollout.engine), "since it is there"


def test_train_auto_server_that_does_not_start_generates_locally(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    train(config, folder, display=Display())
    said = capsys.readouterr().out
    assert said.count("engine: local goes on, since the vLLM server ended before it was") == 1
    assert "CUDA out of memory" in said
    assert len(read_metrics(folder)) == 1
    rollout = read_run(folder).rollout
    assert (rollout.engine, rollout.colocate) == ("local", False)  # so that a resumed run is, too


def test_train_vllm_by_name_that_does_not_start_fails(config: Config, tmp_path: Path) -> None:
    named = config.changed("rollout", engine="vllm")
    with pytest.raises(ServerStartError, match=r"(?s)ended before it was ready.*out of memory"):
        train(named, tmp_path / "run", display=Display(enabled=False))
