"""The file itself: data that ends nothing, scripts of its own alone, little of it."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paint.lab.viewer.page import (
    ASSETS,
    PAGES,
    as_json,
    packed,
    places_of,
    render,
    text_of,
    turns_of,
)

HOSTILE = "</script><!-- & ‮ \u2028 \x1b[31m \ud800 \x00"


@pytest.mark.parametrize("kind", PAGES)
def test_render_page_runs_only_its_own_script(kind: str) -> None:
    page = render(kind, HOSTILE, {"text": HOSTILE})
    assert page.count("<script") == 2
    assert page.count("</script") == 2
    for tag, source in (("script", "script-src"), ("style", "style-src")):
        content = page.split(f"<{tag}>")[1].split(f"</{tag}>")[0]
        sha = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        [policy] = re.findall('Content-Security-Policy" content="([^"]*)"', page)
        assert f"{source} &#39;sha256-{sha}" in policy or f"{source} 'sha256-{sha}" in policy
    data = page.split('id="data">')[1].split("</script>")[0]
    assert json.loads(data) == {"text": HOSTILE}
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_assets_set_only_text_and_stay_small() -> None:
    for asset in ASSETS.iterdir():
        if asset.name.endswith(".js"):
            code = asset.read_text("utf-8")
            for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
                assert way not in code, (asset.name, way)
            assert "</script" not in code
            assert max(map(len, code.splitlines())) <= 100, asset.name  # oxfmt leaves long texts
    for kind in PAGES:
        assert len(render(kind, "", {}).encode()) < 80_000  # no framework


def test_scripts_of_pages_have_no_undefined_and_no_unused_name(tmp_path: Path) -> None:
    """The pages' scripts share names, so a linter of single files cannot tell."""
    linter = shutil.which("oxlint", path=Path(sys.executable).parent)
    if linter is None:
        pytest.skip("oxlint is not installed")
    code = {asset.name: asset.read_text("utf-8") for asset in ASSETS.iterdir()}
    assert {name for name in code if name.endswith(".js")} == {
        n for names in PAGES.values() for n in names
    }
    shared = set.intersection(*map(set, PAGES.values()))
    # One block a page, since pages reuse names.
    parts = [code[name] for name in PAGES["run"] if name in shared]
    parts += [
        "{" + "\n".join(code[name] for name in names if name not in shared) + "}"
        for names in PAGES.values()
    ]
    script = tmp_path / "pages.js"
    script.write_text("\n".join(parts))
    rules = [flag for rule in ("no-undef", "no-unused-vars") for flag in ("-D", rule)]
    config = tmp_path / "oxlint.json"
    config.write_text('{"env": {"browser": true, "es2024": true}}')
    line = [linter, "--config", str(config), "-A", "all", *rules, str(script)]
    found = subprocess.run(line, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_turns_of_a_conversation_have_text_and_calls() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "I add.", "tool_calls": [call]},
        {"role": "tool", "name": "add", "content": "2"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    assert turns_of(messages) == [
        ("assistant", f"I add.\n{json.dumps(call)}"),
        ("tool", "2"),
        ("assistant", json.dumps(call)),
    ]


def test_as_json_non_finite_numbers_are_null() -> None:
    assert json.loads(as_json({"a": float("nan"), "b": [np.float32(0.5), float("inf")]})) == {
        "a": None,
        "b": [0.5, None],
    }


@pytest.mark.parametrize(
    ("values", "kind"),
    [([True, False], "u1"), ([1, 65_535], "u2"), ([1, 70_000], "u4"), ([0.25, -3.0], "f4")],
)
def test_packed_arrays_round_trip_through_base64(values: list[float], kind: str) -> None:
    [(name, text)] = packed(np.array(values)).items()
    assert name == kind
    array = np.frombuffer(base64.b64decode(text), dtype=f"<{kind}")
    assert array.tolist() == values


def test_places_of_stores_each_token_once() -> None:
    vocabulary: dict[int, int] = {}
    assert places_of([7, 9, 7], vocabulary).tolist() == [0, 1, 0]
    assert places_of([9, 3], vocabulary).tolist() == [1, 2]
    assert list(vocabulary) == [7, 9, 3]
    assert text_of(b"\xe2a") == "\udce2a"
