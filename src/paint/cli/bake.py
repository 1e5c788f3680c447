"""``paint bake``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from paint.cli.options import Count, OptionalPlace, Recipe, Settings


@dataclass(frozen=True)
class Bake:
    """Train an adapter that answers as if a text were its system prompt.

    It measures first whether the text changes the answers to held-out questions, and refuses to
    train where it does not. It stops when prompted and plain answers cannot be told apart, or after
    train.steps (docs/how-to/bake-a-prompt.md). The same command continues where it was interrupted.

    Example: paint bake RULES.md questions.jsonl --model MODEL --grading.grader my_rules:grade
    """

    rules: Annotated[Positional[str], arg(metavar="RULES")]
    """Text file of the system prompt."""
    questions: Annotated[Positional[str], arg(metavar="QUESTIONS")]
    """Questions, as of data.path: rows with a problem, and no answer."""
    recipe: Recipe
    """Recipe to train by; where it is left out, bake."""
    config: Settings
    model: str = ""
    """Folder or hub name of the model; empty is the recipe's."""
    held_out: Count = 50
    """Questions that are measured and not trained on, at most half of all."""
    samples: Count = 4
    """Answers to each question that is measured."""
    unrelated: str = ""
    """Questions that the text does not concern, on which the adapter should change nothing; as many
    are measured as are held out."""
    benchmark: str = ""
    """Problems on which accuracy before and after is compared, as of `paint eval --benchmarks`."""
    force: bool = False
    """Train even where the text changes nothing that is measured."""
    folder: OptionalPlace = None
    """Folder of run, questions and tables; None: bakes/RULES."""

    def run(self) -> int:
        from paint.experiments.bake import bake

        config = self.config.changed("context", file=self.rules)
        config = config.changed("data", path=self.questions)
        if self.model:
            config = config.changed("model", path=self.model)
        bake(
            config,
            self.folder or Path("bakes") / Path(self.rules).stem,
            held_out=self.held_out,
            samples=self.samples,
            unrelated=self.unrelated,
            benchmark=self.benchmark,
            force=self.force,
        )
        return 0
