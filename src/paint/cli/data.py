"""``paint data openthoughts`` and ``paint data validate``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from paint.cli.options import Count, OptionalCount, Place, Seconds, Seed, bounded
from paint.config.schema import DataConfig


@dataclass(frozen=True)
class OpenThoughts:
    """Draw a verified, decontaminated sample of OpenThoughts-114k (paper: Experimental Setup).

    Problems of mathematics are drawn whose solutions are verified and which repeat no benchmark
    problem. The same command continues where it was interrupted.

    Example: paint data openthoughts openthoughts.jsonl --sample 30000
    """

    out: Positional[Place]
    """File to write, OUT.jsonl; OUT.report.json and others are written to the same folder."""
    source: str = "open-thoughts/OpenThoughts-114k:metadata"
    """Data set of the hub, or a local file or folder with its columns."""
    sample: Count = 30_000
    """Problems to draw (paper: up to 30K)."""
    seed: Seed = 0
    """Seed of the draw, at least 0."""
    solution: Literal["deepseek_solution", "ground_truth_solution", "deepseek_reasoning"] = (
        "deepseek_solution"
    )
    """Column that becomes the solution y*; deepseek_solution is always the one that is verified."""
    benchmarks: tuple[str, ...] = (
        "aime_2024",
        "aime_2025",
        "aime_2026",
        "hmmt_feb_2025",
        "hmmt_feb_2026",
        "math_500",
    )
    """Problem sets, NAME or NAME=PATH as in `paint eval`, whose problems must not be trained on."""
    ngram: Count = 13
    """Length in words of a shared passage that counts as a repetition."""
    share: Annotated[float, bounded(float, 0, 1)] = 0.6
    """Share of a problem that must be repeated, in [0, 1]."""
    masked: bool = False
    """Also drop problems that repeat one with other numbers or letters, and some that only sound
    alike (docs/how-to/own-data.md)."""
    workers: OptionalCount = None
    """Processes for verification; None: one per core."""
    deadline: Seconds = 5.0
    """CPU seconds for one answer, in [0.01, 86400]."""

    def run(self) -> int:
        """Write the sample, and print what was kept."""
        from paint.core.display import Display
        from paint.data.benchmarks import load_benchmark
        from paint.data.openthoughts import make_training_data, print_preparation

        display = Display()
        settings = vars(self) | {"benchmarks": [load_benchmark(name) for name in self.benchmarks]}
        preparation = make_training_data(**settings, display=display)
        print_preparation(preparation, self.out, display)
        return 0


@dataclass(frozen=True)
class Validate:
    """Count a file's rows that are good, bad, long, doubled or without a verified answer.

    The exit status is 1 if a run would refuse the file.

    Example: paint data validate demo --model.path demo --data.limit 50
    """

    file: Positional[str]
    """JSONL, CSV or Parquet file, a hub data set (owner/name), or demo."""
    model_path: Annotated[str, arg(name="model.path")]
    """Model whose tokenizer counts: folder, hub name or demo."""
    benchmarks: tuple[str, ...] = ()
    """Problem sets, as in `paint eval`, whose problems are searched for in the file."""
    teacher_thinking: Annotated[bool, arg(name="model.teacher-thinking")] = True
    """Thinking mode of the teacher's prompt."""
    problem_field: Annotated[str, arg(name="data.problem-field")] = "problem"
    """Field that holds the problem x."""
    solution_field: Annotated[str, arg(name="data.solution-field")] = "solution"
    """Field that holds the verified solution y*."""
    answer_field: Annotated[str, arg(name="data.answer-field")] = "answer"
    """Field that holds the final gold answer."""
    id_field: Annotated[str, arg(name="data.id-field")] = "id"
    """Field that names a row."""
    max_prompt_tokens: Annotated[Count, arg(name="data.max-prompt-tokens")] = 8192
    """Longest prompt of the teacher, in tokens."""
    limit: Annotated[OptionalCount, arg(name="data.limit")] = None
    """Number of valid rows to read; None is all."""

    def run(self) -> int:
        """Print the counts; return 1 if a run would refuse the file."""
        from paint.data.benchmarks import load_benchmark
        from paint.data.validate import check_file, print_check

        source = DataConfig(
            path=self.file,
            problem_field=self.problem_field,
            solution_field=self.solution_field,
            answer_field=self.answer_field,
            id_field=self.id_field,
            max_prompt_tokens=self.max_prompt_tokens,
            limit=self.limit,
        )
        check = check_file(
            source,
            self.model_path,
            teacher_thinking=self.teacher_thinking,
            benchmarks=[load_benchmark(name) for name in self.benchmarks],
        )
        print_check(check)
        return 1 if check.bad or check.too_long.count else 0
