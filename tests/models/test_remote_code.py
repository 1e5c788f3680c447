"""Code of a model's folder: it is not run, whatever a terminal answers."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from paint.commands.plan import max_model_len
from paint.config import schema as cfg
from paint.core.errors import PaintError
from paint.models.policy import PolicyError, load_policy, load_tokenizer
from paint.models.weights import linear_layers_of, load_trained, own_dtype
from paint.resolve.shapes import shape_of

CODE = """
import os
from transformers import Qwen2TokenizerFast, Qwen3Config, Qwen3ForCausalLM
open(os.environ["RUN"], "w").close()
class EvilConfig(Qwen3Config):
    model_type = "evilqwen"
class EvilModel(Qwen3ForCausalLM):
    config_class = EvilConfig
class EvilTokenizer(Qwen2TokenizerFast):
    pass
"""


@pytest.fixture
def evil(demo_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that brings its own code, which writes the file ``tmp_path / "run"``."""
    (demo_copy / "evil.py").write_text(CODE)
    own: dict[str, dict[str, Any]] = {
        "config.json": {"AutoConfig": "EvilConfig", "AutoModelForCausalLM": "EvilModel"},
        "tokenizer_config.json": {"AutoTokenizer": ["EvilTokenizer", None]},
    }
    for name, classes in own.items():
        table = json.loads((demo_copy / name).read_text())
        named = {key: _with_module(value) for key, value in classes.items()}
        table |= {"auto_map": named, "model_type": "evilqwen"}
        table.pop("tokenizer_class", None)
        (demo_copy / name).write_text(json.dumps(table))
    monkeypatch.setenv("RUN", str(tmp_path / "run"))
    # transformers copies such code there; the hub's client reads it when it is imported.
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    return demo_copy


def _with_module(name: Any) -> Any:
    if isinstance(name, list):
        return [_with_module(one) for one in name]
    return name and f"evil.{name}"


LOADS: dict[str, Callable[[str], Any]] = {
    "number format": own_dtype,
    "layers": linear_layers_of,
    "shape": shape_of,
    "tokenizer": load_tokenizer,
    "model": lambda path: load_policy(cfg.ModelConfig(path=path, dtype="float32"), seed=0),
    "longest row": lambda path: max_model_len(cfg.Config(cfg.ModelConfig(path=path))),
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_load_of_model_with_own_code_runs_none_of_it_whatever_is_answered(
    load: Callable[[str], Any], evil: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []

    def answer(question: str = "") -> str:
        questions.append(question)
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    with suppress(PaintError):
        load(str(evil))
    assert questions == []
    assert not (tmp_path / "run").exists()


def test_load_trained_of_model_with_own_code_runs_none_of_it(
    evil: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    model = cfg.ModelConfig(path="demo", dtype="float32", train_mode="full")
    with pytest.raises(PolicyError, match="it must hold a model that can be loaded"):
        load_trained(load_policy(model, seed=0), evil)
    assert not (tmp_path / "run").exists()
