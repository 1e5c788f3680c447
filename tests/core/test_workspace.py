"""A folder of rows belongs to one set of settings, and survives a kill."""

import json
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


def test_workspace_rows_and_settings_are_read_back(tmp_path: Path) -> None:
    workspace = begun(tmp_path / "new")
    workspace.append({"id": 1}, {"id": 3})
    assert list(workspace.rows()) == [{"id": 1}, {"id": 3}]
    assert workspace.require_same(SETTINGS) == json.loads(json.dumps(SETTINGS))


def test_workspace_cut_row_is_dropped_and_the_next_is_appended(tmp_path: Path) -> None:
    workspace = begun(tmp_path)
    workspace.append({"id": 1}, {"id": 2})
    workspace.rows_path.write_bytes(workspace.rows_path.read_bytes()[:-3])
    assert workspace.begin(SETTINGS)
    workspace.append({"id": 3})
    assert list(workspace.rows()) == [{"id": 1}, {"id": 3}]


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


@pytest.mark.parametrize("name", ["settings.json", "rows.jsonl"])
def test_workspace_finished_file_that_changed_is_refused(tmp_path: Path, name: str) -> None:
    workspace = begun(tmp_path)
    workspace.append({"id": 1})
    assert not workspace.sums_path.exists()
    workspace.finish()
    assert workspace.is_finished
    (tmp_path / name).write_text((tmp_path / name).read_text() + "\n")
    with pytest.raises(CorruptFileError, match=f"{name} is not the file that was written; put"):
        workspace.require_same(SETTINGS)
