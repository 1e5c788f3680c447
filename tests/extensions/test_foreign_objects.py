"""Objects that are no extensions: refused by setting and type, and their content is not shown."""

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from paint.config.recipe import from_table
from paint.config.schema import ContextConfig
from paint.core.errors import ConfigError
from paint.data.contexts import context_function
from paint.grading.graders import find_grader
from paint.resolve.check import check_config
from paint.training.callbacks import load_callbacks

SECRET = "sk-SECRET"


class Callable_(dict[str, str]):
    """A callable with content, whose arguments Python cannot read."""

    __signature__ = SECRET

    def __call__(self) -> str:
        return SECRET


OBJECTS: dict[str, tuple[Any, str]] = {
    "number": (3.25, "float"),
    "text": (SECRET, "str"),
    "table": ({"KEY": SECRET}, "dict"),
    "listed": ([SECRET], "list"),
    "array": (np.zeros(2), "ndarray"),
    "nothing": (None, "NoneType"),
    "module": (sys, "module"),
}


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that can be imported, with objects of many types."""
    module = ModuleType("mine")
    for name, (value, _) in OBJECTS.items():
        setattr(module, name, value)
    setattr(module, "called", Callable_(KEY=SECRET))  # noqa: B010
    setattr(module, "mapping", dict)  # noqa: B010
    monkeypatch.setitem(sys.modules, "mine", module)
    return module


def checked(section: str, key: str, spec: str) -> Any:
    return check_config(from_table({"data": {"path": "demo"}, section: {key: spec}}))


SETTINGS: dict[str, Callable[[str], Any]] = {
    "train.method": lambda spec: checked("train", "method", spec),
    "train.optimizer": lambda spec: checked("train", "optimizer", spec),
    "objective.divergence": lambda spec: checked("objective", "divergence", spec),
    "rollout.engine": lambda spec: checked("rollout", "engine", spec),
    "grading.grader": lambda spec: find_grader(spec),
    "context.source": lambda spec: context_function(ContextConfig(source=(spec,)), spec),
    "callbacks": lambda spec: load_callbacks([spec]),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", OBJECTS)
def test_object_of_another_type_is_refused_by_setting_and_type(
    name: str, setting: str, mine: ModuleType
) -> None:
    with pytest.raises(ConfigError, match=rf"^{setting} .*mine:{name}") as refused:
        SETTINGS[setting](f"mine:{name}")
    said = str(refused.value)
    assert f"of type {OBJECTS[name][1]}" in said
    assert SECRET not in said


@pytest.mark.parametrize("name", ["called", "mapping"])
def test_context_source_without_readable_arguments_is_refused_by_type(
    name: str, mine: ModuleType
) -> None:
    with pytest.raises(ConfigError, match=r"^context.source mine:") as refused:
        SETTINGS["context.source"](f"mine:{name}")
    assert {"called": "of type Callable_", "mapping": "that is a class"}[name] in str(refused.value)
    assert SECRET not in str(refused.value)


PYTHONS = {
    "math:pi": "of type float",
    "sys:path": "of type list",
    "os:environ": "of type _Environ",
    "os:system": "of type builtin_function_or_method",
    "builtins:exec": "of type builtin_function_or_method",
    "builtins:dict": "that is a class",
    "functools:partial": "that is a class",
    "os.path:join": "of type function",
    "antigravity:geohash": "Python's standard library",  # importing it opens a browser
    "mine:__class__": "a name that Python keeps for itself",
    "mine:__dict__": "a name that Python keeps for itself",
    "mine.__init__:number": "a name that Python keeps for itself",
    "__main__:__builtins__": "a name that Python keeps for itself",
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("spec", "said"), PYTHONS.items(), ids=PYTHONS)
def test_object_of_python_itself_is_no_extension(
    spec: str, said: str, setting: str, mine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", SECRET)
    with pytest.raises(ConfigError, match=rf'^{setting} is "{spec}".*{re.escape(said)}') as refused:
        SETTINGS[setting](spec)
    assert SECRET not in str(refused.value)
    assert "antigravity" not in sys.modules


def test_module_that_fails_when_its_object_is_asked_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"{name} needs a package")

    module = ModuleType("lazy")
    module.__getattr__ = missing  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy", module)
    with pytest.raises(ConfigError, match=r"lazy cannot be imported: .*grade needs a package"):
        find_grader("lazy:grade")
