"""The benchmark of generation, on the demo's model."""

from dataclasses import replace

import torch

from generation import SAMPLING, by_engine, by_transformers
from paint.models.policy import Policy


def test_both_count_tokens_up_to_the_end_of_a_completion(policy: Policy) -> None:
    prompts = torch.randint(500, (2, 12), generator=torch.Generator().manual_seed(0)).tolist()
    sampling = replace(SAMPLING, max_new_tokens=5)
    for contender in (by_engine, by_transformers):
        assert 2 <= contender(policy, prompts, sampling)() <= 10
