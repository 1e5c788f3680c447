"""What every policy of an experiment is evaluated on: the demo's protocol and the paper's."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paint.config.schema import Config, ConfigError, EvaluationConfig, RolloutConfig
from paint.core.demo_files import NAME, NEW_RULES
from paint.data.benchmarks import Benchmark, load_benchmark
from paint.data.problems import problems_digest
from paint.evaluation.defaults import (
    demo_protocol,
    fitting_protocol,
    grader_needs_answer,
    has_own_task,
    with_protocol,
)
from paint.inference.engine import Sampling, sampling_from
from paint.resolve.engines import AUTO, engine_of


@dataclass(frozen=True)
class EvalProtocol:
    """The evaluation of every policy in an experiment; its seed is the policy's training seed."""

    benchmark: Benchmark
    samples: int
    thinking: bool
    rollout: RolloutConfig
    control: Benchmark | None = None  # problems on which nothing can be gained

    @property
    def benchmarks(self) -> tuple[Benchmark, ...]:
        return (self.benchmark,) if self.control is None else (self.benchmark, self.control)

    @property
    def sampling(self) -> Sampling:
        return sampling_from(self.rollout)

    @property
    def table(self) -> dict[str, Any]:
        """The settings that comparable results share, as JSON values."""
        problems = self.benchmark.problems
        control = {}
        if self.control is not None:
            control = {"control_digest": problems_digest(self.control.problems)}
        return {
            "benchmark": self.benchmark.name,
            "problems": len(problems),
            "problems_digest": problems_digest(problems),
            **control,
            "samples": self.samples,
            "thinking": self.thinking,
            **asdict(self.sampling),
            # Two engines may complete one prompt and seed differently.
            "engine": self.rollout.engine,
        }


def protocol_for(
    config: Config,
    benchmark: str | Path | None,
    problems: int | None,
    samples: int,
    thinking: bool | None = None,
    max_new_tokens: int | None = None,
) -> EvalProtocol:
    """Return the evaluation of an experiment, through the recipe's engine.

    On a published benchmark it is the paper's (section 'Experimental Details'), on other problems
    as the recipe trains. For the embedded model: the paper's sampling, no thinking, at most 96
    tokens. The arguments are those of ``paint.compare``.

    Raises ConfigError if prompts or grader are the user's own, and no benchmark is named.
    """
    if benchmark is None and has_own_task(config):
        raise ConfigError(
            f"prompts or grader are your own, and the default benchmark is mathematics; name "
            f"problems by --benchmark, other ones than those of {config.data.path}"
        )
    trained = config.rollout
    if config.model.path == NAME:
        name, protocol = str(benchmark or NAME), demo_protocol()
        rollout = with_protocol(RolloutConfig(batch_size=400), protocol)
    else:
        name = str(benchmark or "aime_2024")
        protocol = fitting_protocol(config, [name])
        # Stored completions are those of a training, not answers to these problems.
        engine = AUTO if engine_of(trained).is_stored else trained.engine
        # An answer may be longer than a rollout.
        timeout = max(trained.timeout, EvaluationConfig().rollout.timeout)
        rollout = with_protocol(trained, protocol)
        rollout = replace(rollout, engine=engine, stored="", timeout=timeout)
    if thinking is None:
        thinking = protocol["thinking"]
    if max_new_tokens is not None:
        rollout = replace(rollout, max_new_tokens=max_new_tokens)

    def load(name: str) -> Benchmark:
        needs_answer = grader_needs_answer(config.grading)
        return load_benchmark(
            name, limit=problems, needs_answer=needs_answer, trained_on=config.data
        )

    control = load(NEW_RULES) if name == NAME else None
    return EvalProtocol(load(name), samples, thinking, rollout, control)
