"""Objects of one's own that settings name: how a module that cannot be imported is reported."""

import sys
from pathlib import Path

import pytest

from paint.config.recipe import from_table
from paint.config.schema import ContextConfig
from paint.core.errors import ConfigError
from paint.core.plugins import load_object, spec_of
from paint.data.contexts import Contexts
from paint.data.problems import DataError, Problem
from paint.training.check import check_config

BROKEN = {
    "syntax": ("x = 1\ndef f(:\n", "SyntaxError: .* line 2"),
    "raises": ("\n\n1 / 0\n", "ZeroDivisionError: .* line 3"),
    "ends": ("import sys\nsys.exit(0)\n", "SystemExit: .* line 2"),
    "bytes": ("x = '\xff'\n", "SyntaxError: "),
}
SETTINGS = {
    "train": "method",
    "objective": "divergence",
    "rollout": "engine",
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
    for section, key in SETTINGS.items():
        with pytest.raises(ConfigError, match=rf"{section}\.{key} is .* broken_{case} cannot be"):
            check_config(from_table({section: {key: spec}}))
    assert f"broken_{case}" not in sys.modules


def test_context_function_that_exits_is_refused_by_name() -> None:
    spec = spec_of(lambda *_: sys.exit(0), "leave", module="contexts_of_mine")
    contexts = Contexts(ContextConfig(source=(spec,)), [])
    with pytest.raises(DataError, match=f"context.source {spec}, problem 7: SystemExit"):
        contexts.references(Problem("p", "", "1", "7"), 0)
