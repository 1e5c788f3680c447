"""Engines by name: their properties, those outside of the package, and who knows the names."""

from typing import Any

import pytest

from paint.config.recipe import from_table
from paint.config.schema import Config, ConfigError, RolloutConfig
from paint.inference.engine import Engine
from paint.resolve.check import check_config, check_engine, check_training, enable_servers
from paint.resolve.engines import ENGINES, engine_of, engine_type, server_engine

SHOUT = "extensions.shout_engine:ShoutEngine"


@pytest.mark.parametrize("name", ENGINES)
def test_engine_type_properties_equal_those_of_class(name: str) -> None:
    kind = engine_type(name)
    engine = kind.load()
    assert Engine in engine.__mro__
    assert engine.is_remote == kind.is_remote


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a b:C", r'must be one of auto, .*, got "a b:C"$'),
        ("no_such.module:C", r"no_such\.module cannot be imported: .*PYTHONPATH$"),
        ("extensions.shout_engine:Whisper", r"extensions\.shout_engine has no Whisper$"),
        ("filelock:FileLock", r"has no is_remote; see "),
    ],
)
def test_engine_type_unknown_name_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^rollout.engine .*{message}"):
        engine_of(RolloutConfig(engine=name))


def test_rollout_config_servers_with_local_engine_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'^rollout.urls must be empty .*"local"'):
        check_engine(RolloutConfig(engine="local", urls=("http://node1:8000",)))
    with pytest.raises(ConfigError, match=r"^rollout.server_gpus must be empty "):
        check_engine(RolloutConfig(engine="local", server_gpus=("0",)))
    assert check_engine(RolloutConfig(urls=("http://node1:8000",))).is_remote


def configured(**sections: Any) -> Config:
    model = {"path": "demo"} | sections.pop("model", {})
    return from_table({"model": model, "data": {"path": "demo"}} | sections)


def test_server_engine_of_outside_engine_is_itself() -> None:
    run = check_config(configured(rollout={"engine": SHOUT}))
    assert enable_servers(run).config == run.config
    with pytest.raises(ConfigError, match=r"generates in the training process .*--split"):
        server_engine(SHOUT)
    assert [server_engine(name) for name in ("local", "vllm")] == ["vllm", "vllm"]


def test_require_trainable_full_tuning_needs_in_process_engine() -> None:
    full = {"train_mode": "full", "dtype": "float32"}
    check_training(configured(model=full, rollout={"engine": SHOUT}))
    with pytest.raises(ConfigError, match=r'rollout\.engine must be "local" with model\.train'):
        check_training(configured(model=full, rollout={"engine": "vllm"}))
