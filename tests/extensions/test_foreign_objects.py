"""Objects that are no extensions: refused by setting and type, and their content is not shown."""

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from paint.config.recipe import from_table
from paint.config.schema import ContextConfig
from paint.core.errors import ConfigError
from paint.core.extensions import spec_of
from paint.data.contexts import context_function
from paint.grading.graders import find_grader
from paint.resolve.algorithm import Algorithm
from paint.resolve.check import check_config
from paint.resolve.optimizer import OptimizerFactory
from paint.training.callbacks import Callback, load_callbacks
from paintvariants.entropy_gap import EntropyGap

SECRET = "sk-SECRET"


OBJECTS: dict[str, tuple[Any, str]] = {
    "number": (3.25, "float"),
    "text": (SECRET, "str"),
    "table": ({"KEY": SECRET}, "dict"),
    "nothing": (None, "NoneType"),
    "module": (sys, "module"),
}


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that can be imported, with objects of many types."""
    module = ModuleType("mine")
    for name, (value, _) in OBJECTS.items():
        setattr(module, name, value)
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


PYTHONS = {
    "math:pi": "of type float",
    "os:environ": "of type _Environ",
    "os:system": "of type builtin_function_or_method",
    "builtins:dict": "that is a class",
    "functools:partial": "that is a class",
    "os.path:join": "of type function",
    "antigravity:geohash": "Python's standard library",  # importing it opens a browser
    "mine:__class__": "a name that Python keeps for itself",
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


class OtherStep(Algorithm):
    def step(self, setup: Any, batch: Any) -> Any:  # type: ignore[override]
        return None


class OtherWeights(EntropyGap):
    def weights(self, stats: Any) -> Any:  # type: ignore[override]
        return stats["kl"]


class OtherRate(OptimizerFactory):
    def learning_rate(self, config: Any) -> float:  # type: ignore[override]
        return 1.0


class OtherCallback(Callback):
    def on_step(self, step: int) -> None:  # type: ignore[override]
        return None


class OtherStream:
    is_remote = False

    @classmethod
    def from_setup(cls, setup: Any) -> Any:
        return cls()

    def stream(self, prompts: Any, sampling: Any) -> None:
        return None


class OtherTurn:
    def step(self, completion: str) -> None:
        return None


SIGNATURES: list[tuple[str, Any, str]] = [
    ("train.method", OtherStep, "step(self, setup, batch, step_index, clock)"),
    ("train.method", OtherWeights, "weights(self, stats, lengths)"),
    ("train.optimizer", OtherRate, "learning_rate(self, config, step_index)"),
    ("rollout.engine", OtherStream, "stream(self, prompts, sampling, seeds, finished)"),
    ("callbacks", OtherCallback, "on_step(self, step, metrics, rollouts)"),
    ("conversation.environment", OtherTurn, "step(self, messages, completion)"),
    ("context.source", lambda row: "", "own(row, rows, seed)"),
    (
        "context.source",
        lambda completion, grade, row: "",
        "own(row, rows, seed, completion, grade)",
    ),
    ("grading.grader", lambda completion: 1.0, "own(completion, row)"),
    ("grading.grader", lambda completions: [1.0], "own(completions, rows)"),
    ("grading.grader", lambda: 1.0, "own(completion, row)"),
]


@pytest.mark.parametrize(("setting", "extension", "wanted"), SIGNATURES)
def test_extension_with_other_parameters_is_refused_at_the_start_by_the_wanted_ones(
    setting: str, extension: Any, wanted: str
) -> None:
    name = "" if isinstance(extension, type) else "own"
    spec = spec_of(extension, name)
    section, _, key = setting.partition(".")
    load: Callable[[str], Any] = SETTINGS.get(setting, lambda spec: checked(section, key, spec))
    with pytest.raises(ConfigError, match=rf"^{setting}.*declare it as {re.escape(wanted)}"):
        load(spec)


@pytest.mark.parametrize(
    ("setting", "extension"),
    [
        ("context.source", lambda *given, **named: ""),
        ("context.source", lambda row, rows, seed, grade=None, width=3: ""),
        ("context.source", lambda row, _, __, *, completion: ""),
        ("grading.grader", lambda *given: 1.0),
        ("grading.grader", lambda text, fields, width=3: 1.0),
        ("grading.grader", max),  # its signature cannot be read
    ],
)
def test_extension_that_takes_what_it_is_given_by_any_names_is_accepted(
    setting: str, extension: Any
) -> None:
    SETTINGS[setting](spec_of(extension, "own", "mine"))
