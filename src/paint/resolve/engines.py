"""Registry of the engines of ``rollout.engine`` and their properties.

Engines are compared by name only here. No engine is imported, so settings are checked without
torch. An engine outside of the package is named as "module:Class" (docs/how-to/extend.md).
"""

from dataclasses import dataclass
from typing import Any

from paint.config.schema import RolloutConfig
from paint.core.errors import ConfigError, format_short
from paint.core.extensions import build_options, load_object, of_type, require_method


@dataclass(frozen=True, slots=True)
class EngineType:
    """The properties of an engine that are needed before it is opened."""

    class_name: str  # its class, as "module:Class"; imported when it is opened
    is_remote: bool = False  # it generates on servers, so this process needs no GPU for it
    server_engine: str = ""  # what replaces it where a run has GPUs for servers; "": nothing
    is_stored: bool = False  # its completions were sampled before the run, by another policy

    def load(self) -> Any:
        return load_object(self.class_name, "rollout.engine", ENGINES)


LOCAL, VLLM = "local", "vllm"
AUTO = "auto"
"""vLLM or local, as paint.resolve.check decides; until then it has local's properties."""

ENGINES = {
    AUTO: EngineType("paint.inference.local:LocalEngine", server_engine=VLLM),
    LOCAL: EngineType("paint.inference.local:LocalEngine", server_engine=VLLM),
    VLLM: EngineType("paint.inference.vllm.pool:VllmEngine", is_remote=True, server_engine=VLLM),
    "stored": EngineType("paint.inference.stored:StoredEngine", is_stored=True),
}


def engine_type(name: str) -> EngineType:
    """Look up an engine by name; one outside of the package is imported."""
    if name in ENGINES:
        return ENGINES[name]
    engine = load_object(name, "rollout.engine", ENGINES)
    for attribute in ("is_remote", "from_setup"):
        if not hasattr(engine, attribute):
            raise ConfigError(
                f"rollout.engine is {format_short(name)}, an object {of_type(engine)}, which has "
                f"no {attribute}; see paint.inference.engine.Engine"
            )
    place = f"rollout.engine {name}"
    require_method(place, engine, "from_setup", "setup")
    require_method(place, engine, "stream", "prompts", "sampling", "seeds", "finished")
    require_method(place, engine, "sync_weights")
    server_engine = name if engine.is_remote else ""
    return EngineType(name, engine.is_remote, server_engine)


def engine_of(rollout: RolloutConfig) -> EngineType:
    """The engine that generates; ``auto`` with named servers generates on them."""
    name = resolved_engine(rollout.engine, bool(rollout.urls or rollout.server_gpus))
    return engine_type(name)


def engine_options(rollout: RolloutConfig) -> Any:
    """Return the options that an engine outside of the package declares; None without any."""
    name = rollout.engine
    engine = None if name in ENGINES else load_object(name, "rollout.engine", ENGINES)
    return build_options(engine, rollout.options, "rollout.options", f"rollout.engine {name}")


def resolved_engine(name: str, has_servers: bool) -> str:
    """The engine that ``auto`` is with servers, or without; any other is itself."""
    if name != AUTO:
        return name
    if has_servers:
        return VLLM
    return LOCAL


def server_engine(name: str) -> str:
    """The engine that generates on servers for an engine of this name; ConfigError for none."""
    found = engine_type(name).server_engine
    if not found:
        raise ConfigError(
            f"rollout.engine {format_short(name)} generates in the training process and uses no "
            "servers; choose another engine, or leave out rollout.server_gpus"
        )
    return found
