"""The tools and the environment that a config names: loaded and checked, before anything runs."""

import inspect
from collections.abc import Callable
from typing import Any

from paint.config.schema import ConversationConfig
from paint.core.errors import ConfigError
from paint.core.extensions import (
    build_options,
    extension_errors,
    load_object,
    of_type,
    require_call,
    require_method,
)

SETTING = "conversation.environment"
TOOLS = "conversation.tools"


def tools_of(settings: ConversationConfig) -> list[Callable[..., Any]]:
    """Return the tools that the model is told of; those of a class of TRL's are its methods."""
    tools = list(map(load_tool, settings.tools))
    environment = load_environment(settings)
    if environment is not None and not hasattr(environment, "step"):
        tools += methods_of(environment).values()
    names = list(map(tool_name, tools))
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{TOOLS}: two tools are named {name}; rename one of them")
    return tools


def load_tool(spec: str) -> Callable[..., Any]:
    """Return the function that ``conversation.tools`` names. Raises ConfigError for others."""
    function = load_object(spec, TOOLS, ())
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"{TOOLS} {spec} is an object {of_type(function)}, and no function")
    return function  # type: ignore[no-any-return]


def load_environment(settings: ConversationConfig) -> Any:
    """Return the class that ``conversation.environment`` names; None without one."""
    if not settings.environment:
        return None
    found = load_object(settings.environment, SETTING, ())
    whose = f"{SETTING} {settings.environment}"
    if not callable(found):
        raise ConfigError(f"{whose} is an object {of_type(found)}, and no class")
    with extension_errors(SETTING, settings.environment):
        is_environment = hasattr(found, "step") or hasattr(found, "reset")
    if not is_environment:
        raise ConfigError(
            f"{whose} has neither step nor reset; give it a step (docs/how-to/extend.md)"
        )
    build_options(found, settings.options, "conversation.options", whose)
    require_call(whose, found, f"{settings.environment.rpartition(':')[2]}()")
    require_method(whose, found, "step", "messages", "completion")
    if hasattr(found, "step"):  # that of a class of TRL's takes the fields of the row
        require_method(whose, found, "reset", "row", "seed")
    require_method(whose, found, "close")
    return found


def methods_of(environment: type) -> dict[str, Callable[..., Any]]:
    """Return the public methods of a class of TRL's, which are its tools."""
    methods = inspect.getmembers(environment, inspect.isfunction)
    taken = ("reset", "close")
    return {
        name: method for name, method in methods if not name.startswith("_") and name not in taken
    }


def tool_name(tool: Callable[..., Any]) -> str:
    return str(getattr(tool, "__name__", type(tool).__name__))
