"""The benchmark of generation, on the demo's model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from generation import SAMPLING, Options, by_engine, by_transformers, main
from paint.models.policy import Policy


def test_both_count_tokens_up_to_the_end_of_a_completion(policy: Policy) -> None:
    prompts = torch.randint(500, (2, 12), generator=torch.Generator().manual_seed(0)).tolist()
    sampling = replace(SAMPLING, max_new_tokens=5)
    for contender in (by_engine, by_transformers):
        assert 2 <= contender(policy, prompts, sampling)() <= 10


@pytest.mark.slow
def test_main_writes_both_rates_and_their_ratio(tmp_path: Path) -> None:
    options = Options(
        rows=(1,), prompt=8, tokens=4, repeat=1, only_demo=True, json=tmp_path / "a.json"
    )
    [row] = main(options)["demo"]
    assert row["ratio"] == row["engine"] / row["transformers"] > 0
    assert (tmp_path / "a.json").exists()
