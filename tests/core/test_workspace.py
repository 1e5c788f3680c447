"""A folder of rows belongs to one set of settings; evaluation/test_store.py damages it."""

from pathlib import Path

import pytest

from paint.core.errors import ConfigError
from paint.core.storage import CorruptFileError
from paint.core.workspace import Workspace

SETTINGS = {"model": "demo", "seeds": (0, 1), "samples": 2}


def begun(folder: Path) -> Workspace:
    workspace = Workspace(folder, "rows.jsonl", "rows", ConfigError, "put it back")
    workspace.begin(SETTINGS)
    return workspace


def test_workspace_with_rows_refuses_other_settings_by_name(tmp_path: Path) -> None:
    workspace, other = begun(tmp_path), {**SETTINGS, "samples": 3, "top_k": 20}
    assert workspace.require_same(other)["samples"] == 2  # there are no rows yet
    workspace.append({"id": 1})
    with pytest.raises(
        ConfigError, match=r"(?s)samples: 2 -> 3\n  top_k: None -> 20\n.*--output-dir"
    ):
        workspace.require_same(other)
    assert workspace.require_same(other, {"samples", "top_k"})["samples"] == 2
    workspace.settings_path.unlink()
    with pytest.raises(CorruptFileError, match=r"settings\.json: .*; put it back"):
        workspace.require_same(SETTINGS)
