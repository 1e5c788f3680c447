"""What a run keeps of its tokens: the values of the step, readable elsewhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from paint.config.run_folder import read_metrics
from paint.core import storage
from paint.core.storage import CorruptFileError
from paint.models.policy import Policy
from paint.training.token_log import read_tokens, token_bytes, tokens_path
from runs import changed, small_run, stored, train

SMALL = small_run(40, limit=100, steps=1, batch_size=6, micro_batch_size=4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step with all its tokens: read only."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(changed("demo-paint", SMALL, {"log": {"token_rows": "all"}}), folder)
    return folder


def test_token_log_means_match_step_metrics(run: Path) -> None:
    tokens = pd.read_parquet(run / "tokens/step-000001.parquet")
    per_row = tokens.groupby("row").mean(numeric_only=True).mean()
    [metrics] = read_metrics(run)
    for name in ("loss", "kl", "student_entropy", "teacher_entropy", "unclipped_mass"):
        assert per_row[name] == pytest.approx(metrics[name], rel=1e-5), name
    assert per_row["clipped"] == pytest.approx(metrics["clip_frac"], rel=1e-5)
    gap = (tokens.engine_log_prob - tokens.student_log_prob).abs().mean()
    assert gap == pytest.approx(metrics["logprob_mismatch_mean"], rel=1e-4, abs=1e-9)


def test_token_log_rows_match_rollouts(run: Path) -> None:
    by_row, rollouts = read_tokens(tokens_path(run, 1)), stored(run)
    assert list(by_row) == list(range(6))
    for row, columns in by_row.items():
        assert columns["token_id"].tolist() == rollouts[row]["completion_ids"]
        assert set(columns["problem_id"]) == {rollouts[row]["problem_id"]}
        assert columns["position"].tolist() == list(range(len(columns["token"])))
        assert "".join(columns["token"]).startswith(rollouts[row]["text"])
        assert columns["loss"].mean() == pytest.approx(rollouts[row]["loss"], rel=1e-5)


LOGS = [({"token_rows": 0}, 0), ({"token_rows": 4}, 4), ({"token_rows": 100}, 6)]


@pytest.mark.parametrize(("log", "rows"), LOGS)
def test_token_log_keeps_requested_rows(tmp_path: Path, log: dict[str, Any], rows: int) -> None:
    short = {"rollout": {"max_new_tokens": 8}}
    train(changed("demo-paint", SMALL, short, {"log": log}), tmp_path)
    path = tokens_path(tmp_path, 1)
    assert (len(read_tokens(path)) if path.exists() else 0) == rows


@pytest.mark.parametrize("method", ["sft", "grpo"])
def test_token_log_of_baselines_has_available_columns(tmp_path: Path, method: str) -> None:
    batch = {"train": {"steps": 1, "batch_size": 8, "micro_batch_size": 4}}
    train(changed(f"demo-{method}", SMALL, batch, {"log": {"token_rows": "all"}}), tmp_path)
    by_row, rollouts = read_tokens(tokens_path(tmp_path, 1)), stored(tmp_path)
    assert len(by_row) == len(rollouts) == 8
    for row, columns in by_row.items():
        assert columns["token_id"].tolist() == rollouts[row]["completion_ids"]
        assert columns["loss"].mean() == pytest.approx(rollouts[row]["loss"], rel=1e-5, abs=1e-7)
        if method == "sft":  # nobody drew a reference
            assert np.isnan(columns["engine_log_prob"]).all()
            assert (columns["student_entropy"] >= 0).all()
        else:
            drawn = rollouts[row]["engine_log_probs"]
            np.testing.assert_allclose(columns["engine_log_prob"], drawn, rtol=1e-6)


@pytest.mark.slow
def test_token_log_resume_replaces_repeated_steps(tmp_path: Path) -> None:
    twice = {"train": {"steps": 2, "checkpoint_every": 1}}
    train(changed("demo-paint", SMALL, twice), tmp_path)
    later = tokens_path(tmp_path, 2)
    kept, again = tokens_path(tmp_path, 1).read_bytes(), later.read_bytes()
    storage.write_atomic(tokens_path(tmp_path, 3), again)
    train(changed("demo-paint", SMALL, twice, {"train": {"steps": 2}}), tmp_path, resume=True)
    assert not tokens_path(tmp_path, 3).exists()
    assert (tokens_path(tmp_path, 1).read_bytes(), later.read_bytes()) == (kept, again)


def test_token_bytes_preserve_incomplete_utf8(policy: Policy) -> None:
    text = "é ‮\x1b[2J</script>\n"
    ids = policy.tokenizer.encode(text)
    pieces = token_bytes(policy.tokenizer, [*ids, policy.end_ids[0]])
    assert b"".join(pieces[:-1]).decode() == text
    assert pieces[-1].startswith(b"<|")
    assert any(not piece.isascii() for piece in pieces)


def test_read_tokens_changed_file_is_refused(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "step-000001.parquet"
    whole, table = tokens_path(run, 1).read_bytes(), pq.read_table(tokens_path(run, 1))
    # A bit of each column's last page.
    for i in range(len(table.column_names)):
        column = pq.ParquetFile(tokens_path(run, 1)).metadata.row_group(0).column(i)
        start = column.dictionary_page_offset or column.data_page_offset
        at = start + column.total_compressed_size - 3
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptFileError, match=r"step-000001\.parquet: .*delete it"):
            read_tokens(path)
    path.write_bytes(whole[:-40])
    with pytest.raises(CorruptFileError, match="delete it"):
        read_tokens(path)
