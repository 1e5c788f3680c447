"""What an engine of one's own returns is refused by its name and prompt, or reaches training."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import paint
from paint.inference.checked import CheckedEngine
from paint.inference.engine import Completion, Engine, EngineError, OnCompletion, Sampling

SAMPLING = Sampling(1.0, 1.0, -1, 8)
VALID = Completion((1, 2), (-0.5, 0.0), False, "own")
NAME = "mine:Own"

Answer = Callable[[OnCompletion], None]


class Own(Engine):
    """Answers two prompts by a function."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        finished: OnCompletion,
    ) -> None:
        self.answer(finished)

    def sync_weights(self) -> None:
        raise KeyError("adapter")


def answers(*pairs: tuple[Any, Any]) -> Answer:
    def answer(finished: OnCompletion) -> None:
        for index, completion in pairs:
            finished(index, completion)

    return answer


def having(**values: Any) -> Answer:
    """Both completions, the second with other values."""
    return answers((0, VALID), (1, changed(**values)))


def changed(**values: Any) -> Completion:
    completion = replace(VALID)
    for name, value in values.items():
        object.__setattr__(completion, name, value)
    return completion


def fail(finished: OnCompletion) -> None:
    raise KeyError("gone")


REFUSED: dict[str, tuple[Answer, str]] = {
    "none": (answers(), "prompt 0 has no completion"),
    "one": (answers((0, VALID)), "prompt 1 has no completion"),
    "other prompt": (answers((0, VALID), (2, VALID)), "of prompt 2, and there are 2"),
    "negative prompt": (answers((-1, VALID)), "of prompt -1, and there are 2"),
    "twice": (answers((0, VALID), (0, VALID)), "prompt 0 has two completions"),
    "text": (having(ids="12"), 'prompt 1 has the token ids "12"'),
    "empty": (having(ids=()), "prompt 1 has 0 tokens"),
    "foreign": (having(ids=(1, 10)), "prompt 1 has the token id 10, which is none of 10"),
    "negative": (having(ids=(1, -1)), "prompt 1 has the token id -1"),
    "float": (having(ids=(1, 2.0)), r"prompt 1 has the token id 2\.0"),
    "length": (having(log_probs=(-1.0,)), "prompt 1 has 1 log-probs of 2 tokens"),
    "nan": (having(log_probs=(-1.0, math.nan)), "prompt 1 has the log-prob nan"),
    "infinite": (having(log_probs=(-1.0, -math.inf)), "prompt 1 has the log-prob -inf"),
    "positive": (having(log_probs=(-1.0, 0.1)), r"prompt 1 has the log-prob 0\.1"),
    "none for log-probs": (having(log_probs=None), "prompt 1 has the log-probs None"),
    "truncated": (having(truncated="no"), 'prompt 1 has truncated "no"'),
    "raises": (fail, f"rollout.engine {NAME}: KeyError: 'gone'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_checked_engine_refuses_what_is_no_completion_of_each_prompt(case: str) -> None:
    answer, message = REFUSED[case]
    engine = CheckedEngine(Own(answer), NAME, 10)
    prompts = [[1], [2]]
    with pytest.raises(EngineError, match=message):
        engine.generate(prompts, SAMPLING, [0, 1])
    with pytest.raises(EngineError, match=message):
        engine.stream(prompts, SAMPLING, [0, 1], lambda *_: None)
    with pytest.raises(EngineError, match=message):
        engine.submit(prompts, SAMPLING, [0, 1])()


def test_checked_engine_refuses_what_is_no_completion() -> None:
    engine = CheckedEngine(Own(answers((0, SimpleNamespace(**vars(VALID))))), NAME, 10)
    with pytest.raises(EngineError, match=r"completion of prompt 0 is .*, and no Completion"):
        engine.stream([[1]], SAMPLING, [0], lambda *_: None)


def test_checked_engine_passes_valid_completions_in_order() -> None:
    other = replace(VALID, log_probs=(), ids=(9,))
    engine = CheckedEngine(Own(answers((1, other), (0, VALID))), NAME, 10)
    assert engine.generate([[1], [2]], SAMPLING, [0, 1]) == [VALID, other]
    found: dict[int, Completion] = {}
    engine.stream([[1], [2]], SAMPLING, [0, 1], found.__setitem__)
    assert found == {0: VALID, 1: other}
    with pytest.raises(EngineError, match=f"rollout.engine {NAME}: KeyError: 'adapter'"):
        engine.fork().sync_weights()


class NoEngine(Own):
    """An engine that opens as nothing."""

    @classmethod
    def from_setup(cls, setup: object) -> None:
        return None


class Far(Own):
    """An engine that samples a token beyond the model's vocabulary."""

    @classmethod
    def from_setup(cls, setup: object) -> "Far":
        return cls(answers((0, changed(ids=(10**6, 1)))))

    def sync_weights(self) -> None:
        return


@pytest.mark.parametrize(
    ("engine", "message"), [(NoEngine, "from_setup returned None"), (Far, "token id 1000000")]
)
def test_train_on_engine_of_ones_own_is_checked(
    engine: type[Engine], message: str, tmp_path: Path
) -> None:
    rows = [{"problem": "1 + 1?", "solution": "$1+1=2$", "answer": "2"}]
    with pytest.raises(EngineError, match=rf"rollout\.engine \S*{engine.__name__}.*{message}"):
        paint.train(
            "demo-paint",
            data=rows,
            output_dir=tmp_path / "run",
            train={"steps": 1, "batch_size": 1},
            rollout={"engine": engine},
        )
