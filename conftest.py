"""Shared fixtures and settings of tests: the demo's policy, no network, Triton's interpreter."""

import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # no network access in tests
# As many tests at once as there are cores: several threads in each would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jaxtyping
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when paint.objective.triton_kernels is imported

from shapes import check_annotations_of

for package in ("paint", "paintvariants", "chatforms", "codetrial", "strictgrade"):
    check_annotations_of(package)

from paint.config import schema as cfg
from paint.core import trust
from paint.core.demo_files import HELD_OUT_PROBLEMS, MODEL
from paint.core.display import shown_on_terminal
from paint.data.problems import Problem, read_problems
from paint.models.policy import Policy, load_policy

# A shell starts what it runs in the background deaf to Ctrl-C, and so would be the processes that
# tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How fast a machine is, is not what the properties are about.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

DEMO = cfg.ModelConfig(
    path="demo", dtype="float32", lora_rank=8, lora_alpha=16, teacher_thinking=False
)


LONGEST = (
    *("inference/test_vllm.py", "training/test_launcher.py", "training/test_trainer.py"),
    *("robustness/test_pairs.py", "models/test_sharding.py", "training/test_several_ranks.py"),
    *("training/test_slurm.py", "examples/test_examples.py", "test_notebook.py"),
    *("lab/test_runner.py", "benchmarks/test_gpu.py", "test_documents.py"),
    *("examples/test_real.py", "lab/publish/test_export.py", "test_wheel.py"),
)
"""The files whose slow tests take longest, the longest first. A worker runs whole files."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, then by their share of slow tests: quick ones are left for the end,
    where a worker would have no work.
    """
    here = Path(__file__).parent / "tests"
    longest = {here / name: place for place, name in enumerate(LONGEST)}
    slow, tests = Counter[Path](), Counter[Path]()
    for item in items:
        tests[item.path] += 1
        slow[item.path] += item.get_closest_marker("slow") is not None
    items.sort(
        key=lambda item: (longest.get(item.path, len(LONGEST)), -slow[item.path] / tests[item.path])
    )


@pytest.fixture(autouse=True)
def terminal() -> Iterator[None]:
    """Messages and progress are printed, as by a command."""
    with shown_on_terminal():
        yield


@pytest.fixture(autouse=True, scope="session")
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what outlives a call, in place of the user's."""
    folder = tmp_path_factory.mktemp("state")
    os.environ["XDG_STATE_HOME"] = str(folder)
    return folder


@pytest.fixture(autouse=True)
def unread_records() -> Iterator[None]:
    """A test knows no record that another one has read."""
    trust._records.clear()
    yield
    trust._records.clear()


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What was printed on stderr since the last call, in one line without tyro's frames."""
    return lambda: " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts commands whose output is read, and ends those that a failing test leaves behind."""
    from processes import started

    begun: list[subprocess.Popen[str]] = []

    def popen(line: list[str], **variables: str) -> "subprocess.Popen[str]":
        begun.append(started(line, **variables))
        return begun[-1]

    yield popen
    for process in begun:
        process.kill()
        process.communicate()


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the checker of shapes and types, as users run it."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """On the CPU, whatever device other tests have used."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator(cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def policy() -> Policy:
    """The demo's model with a fresh adapter: the student equals the base."""
    return load_policy(DEMO, seed=0)


def move(policy: Policy, seed: int = 1, by: float = 0.05) -> None:
    """Change every trained parameter, as an optimizer step does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable:
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))


def logits_alone(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    """The library's own logits of one unpadded row, where they predict the completion's ids."""
    logits: torch.Tensor = model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0]
    return logits[len(prompt) - 1 : -1]


def untie(folder: Path) -> str:
    """Give the model in a folder a head that is not its embedding; return the path."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32", trust_remote_code=False)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(1.1 * model.lm_head.weight.detach())
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def trained(policy: Policy) -> Policy:
    """The demo's model with an adapter that changes its answers."""
    move(policy)
    return policy


@pytest.fixture(scope="session")
def problems() -> list[Problem]:
    """The demo's training problems."""
    return read_problems(cfg.DataConfig(path="demo")).problems


@pytest.fixture
def demo_copy(tmp_path: Path) -> Path:
    """A copy of the demo's model that a test may damage."""
    return shutil.copytree(MODEL, tmp_path / "model", copy_function=shutil.copyfile)


# What the tests of pages share (tests/show).

SHOWN: dict[str, dict[str, Any]] = {
    "model": {"lora_rank": 4, "lora_alpha": 8},
    "data": {"limit": 40},
    "rollout": {"max_new_tokens": 60, "batch_size": 8},
    "train": {"steps": 3, "batch_size": 6, "micro_batch_size": 6, "checkpoint_every": 2},
    "validation": {
        "path": str(HELD_OUT_PROBLEMS),
        "limit": 4,
        "samples": 3,
        "max_new_tokens": 60,
    },
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The system's Chromium; no longer than a module, since it keeps an event loop running."""
    from browser import launched

    with launched() as browser:
        yield browser


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps, a checkpoint after the second and third, four rows' tokens a step: read only."""
    from runs import changed, train

    folder = tmp_path_factory.mktemp("runs") / "shown"
    train(changed("demo-paint", SHOWN), folder)
    return folder


@pytest.fixture(scope="session")
def page(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's page, with other contexts."""
    from paint.core.display import Display
    from paint.lab.viewer.run import PageSpec
    from paint.lab.viewer.show import show_targets

    out = tmp_path_factory.mktemp("pages") / "run.html"
    spec = PageSpec(contexts=("solution", "none", "other", "wrong_answer"))
    return show_targets([run], Display(enabled=False), spec, out=out)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The configs of each comparison that is asked for, by row; none is made."""
    seen: list[dict[str, Any]] = []

    def run_experiment(runs: Any, *_: Any, **__: Any) -> list[Any]:
        seen.append({run.name: run.config for run in runs})
        return []

    monkeypatch.setattr("paint.lab.runner.run_experiment", run_experiment)
    monkeypatch.setattr("paint.lab.comparison_report.publish", lambda *_: None)
    return seen
