"""Small runs of the demo's recipes: changed, killed, resumed and compared."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from paint.cli.main import COMMANDS
from paint.cli.parser import Line, find_command, read_line
from paint.config.recipe import find_recipe, from_table, read_recipe, to_table
from paint.config.run_folder import latest_checkpoint, read_metrics, read_run, step_of
from paint.config.schema import Config
from paint.core.storage import read_jsonl
from paint.data.problems import Problem
from paint.grading.graders import open_grader
from paint.inference.engine import Completion
from paint.inference.local import LocalEngine
from paint.inference.rollouts import Rollout
from paint.models.policy import Policy, load_policy
from paint.models.teacher import open_teacher
from paint.resolve.algorithm import Algorithm
from paint.resolve.check import check_config, check_training, with_resolved
from paint.training import trainer
from paint.training.train_step import Setup
from processes import MODULES, in_two_processes, started, train_command, write_recipe

Sections = Mapping[str, Mapping[str, Any]]


def parse(line: Sequence[str]) -> Line:
    """Read a line of the command line, without the name of the program."""
    command = find_command(line, COMMANDS)
    assert command is not None, line
    return read_line(command, line)


def train(config: Config, folder: Path, *, resume: bool = False, **options: Any) -> Path:
    """Train in this process by a config that nothing has checked, and return the checkpoint."""
    if resume:
        config = with_resolved(config, read_run(folder))
    return trainer.train(check_training(config), folder, resume=resume, **options)


def changed(recipe: str, *changes: Sections) -> Config:
    """A shipped recipe with changes, the later ones counting."""
    table = to_table(read_recipe(find_recipe(recipe)))
    for sections in changes:
        for name, values in sections.items():
            table[name] |= values
    return from_table(table)


def small_run(
    tokens: int, *, limit: int | None = None, at_once: int | None = None, **train: Any
) -> dict[str, dict[str, Any]]:
    """Settings of a small run: a small adapter, a few rows, so many tokens, and those of [train].

    As many completions as ``at_once`` are generated together.
    """
    rollout = {"max_new_tokens": tokens} | ({"batch_size": at_once} if at_once else {})
    model = {"lora_rank": 4, "lora_alpha": 8}
    return {"data": {"limit": limit}, "model": model, "rollout": rollout, "train": train}


def variant(algorithm: type[Algorithm], **options: Any) -> dict[str, dict[str, Any]]:
    """Settings that train with an algorithm, such as one of paintvariants, and these options."""
    method = f"{algorithm.__module__}:{algorithm.__qualname__}"
    return {"train": {"method": method, "options": options}}


@contextmanager
def opened_setup(
    config: Config, policy: Policy, accelerator: Accelerator, problems: Sequence[Problem] = ()
) -> Iterator[Setup]:
    """What a step works with, in this process."""
    with open_grader(config.grading) as grader:
        yield Setup(
            check_config(config),
            policy,
            open_teacher(policy, config.teacher),
            problems,
            LocalEngine(policy, batch_size=12),
            torch.optim.AdamW(policy.trainable),
            accelerator,
            grader,
        )


def write_problems(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    """Write rows as JSONL; return the path as a setting."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def tight_and_loose(folder: Path, small: Sections) -> list[str]:
    """Two recipes that differ in their clip, as the command line takes them."""
    configs = {
        name: changed("demo-paint", small, {"objective": {"clip": clip}})
        for name, clip in (("tight", 0.06), ("loose", 0.3))
    }
    return [write_recipe(folder / f"{name}.toml", config) for name, config in configs.items()]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines."""
    return list(read_jsonl(path, ""))


def course(metric: str, values: Sequence[float]) -> list[dict[str, float]]:
    """The metrics of steps in which one of them takes these values."""
    return [{"step": i, metric: value} for i, value in enumerate(values, start=1)]


def stored(folder: Path, step: int = 1) -> list[dict[str, Any]]:
    """The rollouts of a step."""
    return rows_of(folder / f"rollouts/step-{step:06d}.jsonl")


def last_checkpoint(folder: Path) -> str:
    """The name of a run's last checkpoint."""
    checkpoint = latest_checkpoint(folder)
    return checkpoint.name if checkpoint else ""


def adapter(folder: Path, step: int | None = None) -> dict[str, torch.Tensor]:
    """The weights of a run's checkpoint, by default its last one."""
    name = f"step-{step:06d}" if step else last_checkpoint(folder)
    return load_file(folder / "checkpoints" / name / "adapter/adapter_model.safetensors")


def assert_same(
    a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], *, tolerance: float = 0.0
) -> None:
    """Two adapters, neither of them empty."""
    assert a.keys() == b.keys()
    assert sum(float(x.abs().sum()) for x in a.values()) > 0
    for name, x in a.items():
        assert (x - b[name]).abs().max() <= tolerance, name


def assert_untrained(folder: Path, config: Config) -> None:
    """The last checkpoint's adapter is that of the start."""
    fresh = dict(load_policy(config.model, seed=config.train.seed).model.named_parameters())
    for name, value in adapter(folder).items():
        assert value.equal(fresh[name.replace(".weight", ".default.weight")]), name


def completed(row: int = 0, tokens: int = 1, text: str = "", **more: Any) -> Rollout:
    """A completion of so many tokens."""
    completion = Completion((7,) * tokens, (-1.0,) * tokens, truncated=False)
    return Rollout(row, Problem("p", "s", "a", "1"), [1], completion, text, **more)


class Once:
    """An environment that asks for a check once."""

    def step(self, messages: list[Any], completion: str) -> str | None:
        return None if len(messages) > 2 else "Check it."


def resume_command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "paint.cli", "resume", str(folder)]


def wait_for(
    condition: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 120
) -> None:
    """Until something is true, while the process lives."""
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"ended early: {process.communicate()}"
        assert time.monotonic() < until, "took too long"
        time.sleep(0.001)  # what is waited for may last milliseconds


def kill_and_resume(config: Config, folder: Path, when: Callable[[], Any]) -> None:
    """Train in a process, end it with SIGKILL once something is true, and go on in this one."""
    # Another number of threads rounds differently.
    threads = str(torch.get_num_threads())
    variables = {"OMP_NUM_THREADS": threads, "PYTHONPATH": MODULES}
    process = started(train_command(config, folder), **variables)
    wait_for(when, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(read_metrics(folder)) < config.train.steps
    train(read_run(folder), folder, resume=True)


def train_in_parts(config: Config, folder: Path, first: int) -> None:
    """Train the first steps, load all anew, and train the others: what a kill leads to, too."""
    train(replace(config, train=replace(config.train, steps=first)), folder)
    train(config, folder, resume=True)


# A run ends the process group; here only the last one does.
IN_TURN = """
import sys
from pathlib import Path
from accelerate import Accelerator
from paint.config.recipe import read_recipe
from paint.core.display import shown_on_terminal
from paint.resolve.check import check_training
from paint.training.trainer import train
end, Accelerator.end_training = Accelerator.end_training, lambda _: None
*others, last = map(Path, sys.argv[1:])
with shown_on_terminal():
    for recipe in others:
        train(check_training(read_recipe(recipe)), recipe.with_suffix(""))
    Accelerator.end_training = end
    train(check_training(read_recipe(last)), last.with_suffix(""))
"""


def line_in_turn(configs: Mapping[str, Config], home: Path) -> list[str]:
    """The command of a process that trains each config in a folder of its name."""
    (home / "script.py").write_text(IN_TURN)
    # The recipe is the fifth word.
    recipes = [train_command(config, home / name)[4] for name, config in configs.items()]
    return [sys.executable, str(home / "script.py"), *recipes]


def train_by_two_ranks(configs: Mapping[str, Config], home: Path) -> str:
    """A run of each config in a folder of its name, by the same two processes; what they said."""
    line = in_two_processes(line_in_turn(configs, home))
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": MODULES}
    result = subprocess.run(line, capture_output=True, text=True, env=env)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def assert_same_history(one: Path, other: Path) -> None:
    """The losses and the rollouts of two runs, step by step."""
    losses = [[row["loss"] for row in read_metrics(run)] for run in (one, other)]
    assert losses[0] == losses[1]
    for path in (one / "rollouts").iterdir():
        assert stored(one, step_of(path)) == stored(other, step_of(path))
