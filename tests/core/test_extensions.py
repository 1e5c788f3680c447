"""Extensions: modules that cannot be imported, and the options that extensions declare."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from paint.core.errors import ConfigError
from paint.core.extensions import (
    OptionTable,
    build_options,
    complete_options,
    declared_options,
    load_object,
    options_of,
    plain_options,
    spec_of,
)
from paint.core.settings import setting, within


@dataclass(frozen=True)
class Some:
    epsilon: float = setting(0.2, within("[0, 1]"), "paper: 0.2")
    """Largest change,
    in [0, 1]."""
    count: int | None = None
    """A number."""
    kind: Literal["near", "far"] = "near"
    names: tuple[str, ...] = ()
    is_on: bool = True

    def __post_init__(self) -> None:
        if self.count == 13:
            raise ValueError("count 13 brings bad luck")


class Annotated:
    options: Some


class Derived(Annotated):
    """Declares by its base."""


class InText:
    options: "Some"


class Untyped:
    options: Any = None


def graded(text: str, row: Any, options: Some) -> float:
    return options.epsilon


def graded_in_text(text: str, row: Any, options: "Some") -> float:
    return options.epsilon


def plain(text: str, row: Any) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("extension", "expected"),
    [
        (Annotated, Some),
        (Derived, Some),
        (InText, Some),
        (graded, Some),
        (graded_in_text, Some),
        (Untyped, None),
        (plain, None),
        (print, None),
        ("text", None),
    ],
)
def test_declared_options_of_class_and_function_is_their_annotation(
    extension: Any, expected: type | None
) -> None:
    assert declared_options(extension, "x") is expected


@dataclass(frozen=True)
class Required:
    path: str


def of_required(options: Required) -> None:
    pass


def test_declared_options_without_a_default_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^m:f: Required\.path must have a default"):
        declared_options(of_required, "m:f")


def built(**table: Any) -> Any:
    return build_options(Annotated, plain_options("train.options", table), "train.options", "m:A")


def test_build_options_converts_values_and_keeps_defaults() -> None:
    assert built() == Some()
    assert built(epsilon=1, count=3, names=["a"]) == Some(1.0, 3, "near", ("a",))
    assert built(names="a").names == ("a",)
    assert build_options(plain, OptionTable(), "train.options", "m:A") is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"epsilon": 2}, r"train\.options\.epsilon must be in \[0, 1\], got 2\.0 \(paper: 0\.2\)"),
        ({"count": 13}, r"^train\.options: count 13 brings bad luck; change it"),
        ({"count": {}}, r"train\.options\.count must be a number, text, true, false"),
    ],
)
def test_build_options_wrong_table_is_refused_with_name_and_value(
    table: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        built(**table)


@dataclass(frozen=True)
class Other:
    strength: float = 1.0


@dataclass(frozen=True)
class Part:
    method: str = "distillation"
    options: OptionTable = options_of("method")
    source: tuple[str, ...] = ("text",)
    more: OptionTable = options_of("source")


def test_complete_options_holds_values_and_defaults() -> None:
    part = Part(spec_of(Annotated), OptionTable({"count": 1}), ("text", spec_of(graded)))
    complete = complete_options(part, "part.")
    defaults = {"epsilon": 0.2, "count": None, "kind": "near", "names": (), "is_on": True}
    assert complete.options == defaults | {"count": 1}
    assert complete.more == defaults
    assert complete_options(Part(), "part.") == Part()


def other(options: Other) -> None:
    pass


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            Part(spec_of(Annotated), OptionTable({"epsilom": 1})),
            r"part\.options\.epsilom of part\.method \S+; it has epsilon",
        ),
        (
            Part(source=("text", spec_of(other)), more=OptionTable({"x": 1})),
            r"part\.more\.x of part\.source .*; it has strength",
        ),
    ],
)
def test_complete_options_unknown_name_is_refused(part: Part, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^unknown option {message}"):
        complete_options(part, "part.")


BROKEN = {
    "raises": ("\n\n1 / 0\n", "ZeroDivisionError: .* line 3"),
    "ends": ("import sys\nsys.exit(0)\n", "SystemExit: .* line 2"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_load_object_of_broken_module_names_setting_module_and_line(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, message = BROKEN[case]
    (tmp_path / f"broken_{case}.py").write_bytes(text.encode("latin-1"))
    monkeypatch.syspath_prepend(tmp_path)
    spec = f"broken_{case}:thing"
    match = rf"grading\.grader is \"{spec}\", and broken_{case} cannot be imported: {message}"
    with pytest.raises(ConfigError, match=match):
        load_object(spec, "grading.grader", ["math"])
    assert f"broken_{case}" not in sys.modules
