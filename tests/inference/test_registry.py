"""Engines by name: their properties, those outside of the package, and who knows the names."""

from typing import Any

import pytest

from paint.config.recipe import from_table
from paint.config.schema import Config, ConfigError
from paint.inference.engine import Engine
from paint.resolve.check import check_config, enable_servers
from paint.resolve.engines import ENGINES, engine_type, server_engine

SHOUT = "extensions.shout_engine:ShoutEngine"


@pytest.mark.parametrize("name", ENGINES)
def test_engine_type_properties_equal_those_of_class(name: str) -> None:
    kind = engine_type(name)
    engine = kind.load()
    assert Engine in engine.__mro__
    assert engine.is_remote == kind.is_remote


def configured(**sections: Any) -> Config:
    model = {"path": "demo"} | sections.pop("model", {})
    return from_table({"model": model, "data": {"path": "demo"}} | sections)


def test_server_engine_of_outside_engine_is_itself() -> None:
    run = check_config(configured(rollout={"engine": SHOUT}))
    assert enable_servers(run).config == run.config
    with pytest.raises(ConfigError, match=r"generates in the training process"):
        server_engine(SHOUT)
    assert [server_engine(name) for name in ("local", "vllm")] == ["vllm", "vllm"]
