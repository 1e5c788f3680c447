"""A folder that is no model is refused by what it is, wherever a model is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from paint.config.schema import Config, ModelConfig
from paint.core.demo_files import MODEL
from paint.core.errors import ConfigError
from paint.core.hub import require_model
from paint.core.model_folder import other_than_model
from paint.models.policy import load_tokenizer
from paint.resolve.check import require_paths

ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-1.7B"}


def model(folder: Path, *without: str, **config: object) -> Path:
    """A copy of the demo's model without these files, with these settings in its config.json."""
    shutil.copytree(MODEL, folder)
    for pattern in without:
        for path in folder.glob(pattern):
            path.unlink()
    if config:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def files(folder: Path, **contents: object) -> Path:
    """A folder of JSON files, whose names have __ for a slash and _ for a dot."""
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        path = folder / name.replace("__", "/").replace("_json", ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


TOKENIZER = "tokenizer*", "chat_template.jinja"
KINDS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "adapter": (lambda f: files(f, adapter_config_json=ADAPTER), r"adapter.*Qwen/Qwen3-1.7B"),
    "run": (lambda f: files(f, run_json={}), r"is a run or .*paint export .*--merged"),
    "full checkpoint": (lambda f: files(f, state_json={}, model__config_json={}), "checkpoint"),
    "no tokenizer": (lambda f: model(f, *TOKENIZER), "has no tokenizer"),
    "classifier": (
        lambda f: model(f, architectures=["LlamaForSequenceClassification"]),
        "predicts no next token",
    ),
    "file": (lambda f: model(f) / "model.safetensors", "is a file"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_folder_that_is_no_model_is_refused_by_what_it_is(kind: str, tmp_path: Path) -> None:
    make, what = KINDS[kind]
    path = str(make(tmp_path / "it"))
    with pytest.raises(ConfigError, match=rf"model.path \"{path}\" .*{what}"):
        require_paths(Config(model=ModelConfig(path=path)).changed("data", path="demo"))
    for load in (require_model, load_tokenizer):
        with pytest.raises(ConfigError, match=rf"{path} .*{what}"):
            load(path)


def test_folder_of_model_is_none_of_these(tmp_path: Path) -> None:
    assert other_than_model(MODEL) == ""
    assert other_than_model(tmp_path / "nowhere") == other_than_model("Qwen/Qwen3-1.7B") == ""
    own = model(tmp_path / "own", "tokenizer_config.json", architectures=None)
    assert other_than_model(own) == ""
    (own / "tokenizer.json").rename(own / "tokenizer.model")
    assert other_than_model(own) == ""
