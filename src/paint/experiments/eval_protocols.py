"""Evaluation protocols of experiments: the demo's and the paper's."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from paint.config.schema import Config, EvaluationConfig, RolloutConfig
from paint.data.benchmarks import Benchmark, load_benchmark
from paint.data.problems import problems_digest
from paint.demo.files import NAME
from paint.inference.engine import Sampling, sampling_from
from paint.inference.registry import AUTO


@dataclass(frozen=True)
class EvalProtocol:
    """The evaluation of every policy in an experiment; its seed is the policy's training seed."""

    benchmark: Benchmark
    samples: int
    thinking: bool
    rollout: RolloutConfig

    @property
    def sampling(self) -> Sampling:
        return sampling_from(self.rollout)

    @property
    def table(self) -> dict[str, Any]:
        """The settings that comparable results share, as JSON values."""
        problems = self.benchmark.problems
        return {
            "benchmark": self.benchmark.name,
            "problems": len(problems),
            "problems_digest": problems_digest(problems),
            "samples": self.samples,
            "thinking": self.thinking,
            **asdict(self.sampling),
            "engine": self.rollout.engine,
        }


def demo_protocol(problems: int | None, samples: int, benchmark: str = NAME) -> EvalProtocol:
    """The demo's protocol: held-out problems, temperature 1, no thinking, at most 96 tokens."""
    # With the paper's top-p of 0.95, errors rarer than 5 % would never be sampled.
    rollout = RolloutConfig(temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=96, batch_size=400)
    return EvalProtocol(
        load_benchmark(benchmark, limit=problems), samples, thinking=False, rollout=rollout
    )


def protocol_for(
    config: Config, benchmark: str | None, problems: int | None, samples: int
) -> EvalProtocol:
    """The demo's protocol for the embedded model, with its held-out problems if none are named.

    For other models it is the paper's, with AIME 2024.
    """
    if config.model.path == NAME:
        return demo_protocol(problems, samples, benchmark or NAME)
    return paper_protocol(config, benchmark or "aime_2024", problems, samples)


def paper_protocol(
    config: Config, benchmark: str, problems: int | None, samples: int
) -> EvalProtocol:
    """The paper's evaluation (section 'Experimental Details') through the recipe's engine."""
    paper = EvaluationConfig().rollout
    rollout = replace(
        config.rollout,
        **asdict(sampling_from(paper)),
        engine=AUTO if config.rollout.engine_type.is_stored else config.rollout.engine,
        stored="",
        timeout=max(config.rollout.timeout, paper.timeout),
    )
    return EvalProtocol(
        load_benchmark(benchmark, limit=problems), samples, thinking=True, rollout=rollout
    )
