"""Opening engines: own servers that do not start, and checks of what an engine returns."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paint.config.recipe import find_recipe, read_recipe
from paint.config.run_folder import read_metrics
from paint.config.schema import Config, EvaluationConfig
from paint.core.display import Display
from paint.core.errors import ConfigError
from paint.core.extensions import spec_of
from paint.evaluation.evaluate import evaluate
from paint.inference.engine import (
    Completion,
    Engine,
    EngineError,
    OnCompletion,
    Prompts,
    Sampling,
    ServerStartError,
)
from paint.inference.factory import CheckedEngine
from paint.inference.local import LocalEngine
from paint.resolve import check
from runs import train

DIES = "import sys; print('CUDA out of memory'); sys.exit(1)"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A step of the demo on a machine where auto finds a server that dies as it starts."""
    script = tmp_path / "server.py"
    script.write_text(DIES)
    monkeypatch.setattr(check, "_choose", _found)
    recipe = read_recipe(find_recipe("demo-paint"))
    recipe = recipe.changed("train", steps=1, batch_size=2)
    return recipe.changed("rollout", engine="auto", server=f"{sys.executable} {script} serve")


def _found(rollout: Any, *_: Any, **__: Any) -> tuple[str, str]:
    return ("vllm" if rollout.engine == "auto" else rollout.engine), "since it is there"


def evaluated(config: Config, folder: Path, engine: str = "auto", samples: int = 1) -> Path:
    rollout = replace(config.rollout, engine=engine, max_new_tokens=8)
    options = EvaluationConfig(
        output_dir=str(folder), benchmarks=("demo",), samples=samples, limit=2, rollout=rollout
    )
    return evaluate(options, ["demo"])


def test_eval_server_that_does_not_start_fails(config: Config, tmp_path: Path) -> None:
    for engine in ("auto", "vllm"):
        with pytest.raises(ServerStartError, match=r"(?s)before it was ready.* local .*out of mem"):
            evaluated(config, tmp_path / engine, engine=engine)
    asked = evaluated(config, tmp_path / "begun", engine="local") / "base/demo/settings.json"
    (asked.parent / "SHA256SUMS").unlink()
    asked.write_text(asked.read_text().replace('"engine": "local"', '"engine": "vllm"'))
    with pytest.raises(ServerStartError, match="ended before it was ready"):
        evaluated(config, tmp_path / "begun", samples=2)


SAMPLING = Sampling(1.0, 1.0, -1, 8)
VALID = Completion((1, 2), (-0.5, 0.0), False, "own")


class Own(Engine):
    """Passes on the same completions, each with the index of its prompt, in every call."""

    def __init__(self, *given: tuple[int, Completion]) -> None:
        self.given = given

    def stream(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        for index, completion in self.given:
            finished(index, completion)

    def sync_weights(self) -> None: ...


def second(**values: Any) -> list[tuple[int, Completion]]:
    """Two completions, the second of which has other values."""
    return [(0, VALID), (1, replace(VALID, **values))]


REFUSED = {
    "one": ([(0, VALID)], "no completion of 1 of 2 prompts"),
    "other prompt": ([(0, VALID), (2, VALID)], "of prompt 2 that nothing asked for"),
    "twice": ([(0, VALID), (0, VALID)], "of prompt 0 that nothing asked for"),
    "no tokens": (second(ids=()), "prompt 1 that has no token"),
    "foreign": (second(ids=(1, 10)), "prompt 1 that has the token id 10, which is none of 10"),
    "length": (second(log_probs=(-1.0,)), "prompt 1 that has 1 log-probs of 2 tokens"),
    "nan": (second(log_probs=(-1.0, math.nan)), "prompt 1 that has the log-prob nan"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_checked_engine_refuses_what_is_no_completion_of_each_prompt(
    given: list[tuple[int, Completion]], message: str
) -> None:
    engine = CheckedEngine(Own(*given), "mine:Own", 10)
    with pytest.raises(EngineError, match=f"rollout.engine mine:Own .*{message}"):
        engine.generate([[1], [2]], SAMPLING, [0, 1])


class Faulty(Own):
    """Raises an error in one of its methods."""

    def __init__(self, method: str, error: BaseException) -> None:
        super().__init__((0, VALID))
        setattr(self, method, self.fail)
        self.error = error

    def fail(self, *_: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [SystemExit(0), KeyError("row"), RuntimeError("out of order")])
@pytest.mark.parametrize("method", ["stream", "sync_weights", "submit", "fork"])
def test_checked_engine_errors_of_an_own_engine_name_it(method: str, error: BaseException) -> None:
    def call(name: str) -> None:
        engine = CheckedEngine(Faulty(method, error), name, 10)
        given = ([[1]], SAMPLING, [0])
        calls: dict[str, Callable[[], Any]] = {
            "stream": lambda: engine.generate(*given),
            "sync_weights": engine.sync_weights,
            "submit": lambda: engine.submit(*given)(),
            "fork": engine.fork,
        }
        calls[method]()

    with pytest.raises(ConfigError, match=r"^rollout.engine mine:Own: .*correct it in its module"):
        call("mine:Own")
    with pytest.raises(type(error)):  # a fault of paint is none of a module
        call("local")


def test_checked_engine_errors_of_the_caller_are_not_the_engines() -> None:
    def finished(index: int, completion: Completion) -> None:
        raise OSError("the disk is full")

    engine = CheckedEngine(Own((0, VALID)), "mine:Own", 10)
    with pytest.raises(OSError, match="the disk is full"):
        engine.stream([[1]], SAMPLING, [0], finished)


def test_checked_engine_passes_valid_completions_in_order() -> None:
    other = replace(VALID, log_probs=(), ids=(9,))
    engine = CheckedEngine(Own((1, other), (0, VALID)), "mine:Own", 10)
    assert engine.fork().generate([[1], [2]], SAMPLING, [0, 1]) == [VALID, other]
    assert engine.submit([[1], [2]], SAMPLING, [0, 1])() == [VALID, other]
    beyond = CheckedEngine(Own(*second(ids=(1, 10))), "mine:Own", 10)
    with pytest.raises(EngineError, match="prompt 1 that has the token id 10"):
        beyond.submit([[1], [2]], SAMPLING, [0, 1])()


class Silent(LocalEngine):
    """Samples as the local engine, and tells no log-probs."""

    def stream(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        super().stream(
            prompts, sampling, seeds, lambda i, found: finished(i, replace(found, log_probs=()))
        )


@pytest.mark.parametrize("off_policy_steps", [0, 1])
def test_train_with_an_engine_without_log_probs_differs_in_what_needs_them_alone(
    off_policy_steps: int, tmp_path: Path
) -> None:
    recipe = read_recipe(find_recipe("demo-paint")).changed("train", steps=1, batch_size=2)
    rollout = {"max_new_tokens": 8, "off_policy_steps": off_policy_steps}
    for engine in ("local", spec_of(Silent)):
        config = recipe.changed("rollout", engine=engine, **rollout)
        train(config, tmp_path / engine.rpartition(":")[2], display=Display(enabled=False))
    [with_them], [without] = (read_metrics(tmp_path / name) for name in ("local", "Silent"))
    missing = {"logprob_mismatch_mean", "logprob_mismatch_p99"}
    assert with_them.keys() - without.keys() == missing
    assert with_them["loss"] == without["loss"]
