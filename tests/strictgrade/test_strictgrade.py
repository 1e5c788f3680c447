"""The library by itself: what it imports, its functions, and its use as a reward."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import strictgrade
from paint.core.demo_files import MODEL
from strictgrade import compare, comparer, reason_for, verify

ROOT = Path(__file__).parents[2]
SOURCE = Path(strictgrade.__file__).parent

# Beside the standard library; equality imports sympy where a pair needs algebra.
OUTSIDE = {
    "parse": {"latex2sympy2_extended", "sympy"},
    "symbolic": {"mpmath", "sympy"},
    "equality": {"sympy"},
}


@pytest.fixture(autouse=True, scope="module")
def no_process_is_left() -> Iterator[None]:
    """Other tests count the processes of this one."""
    yield
    comparer._shared(os.getpid())[0].close()


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.stem)
def test_modules_import_nothing_of_paint_and_few_packages(path: Path) -> None:
    packages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages.add(node.module.split(".")[0])
    assert packages - sys.stdlib_module_names - {"strictgrade"} == OUTSIDE.get(path.stem, set())


def test_library_alone_in_a_folder_verifies(tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "strictgrade")
    code = (
        "import sys\n"
        "sys.modules['paint'] = None  # whoever imports it fails\n"
        "import strictgrade\n"
        "assert not {'torch', 'sympy'} & set(sys.modules)\n"
        "print(strictgrade.__file__)\n"
        r"print(strictgrade.verify(r'\boxed{\frac{2}{\sqrt{2}}}', r'\sqrt{2}'))"
    )
    run = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.stdout.split() == [str(tmp_path / "strictgrade/__init__.py"), "True"], run.stderr
    assert run.stderr == ""


@pytest.mark.parametrize(
    ("completion", "gold", "reason"),
    [
        (r"<think>\boxed{3}</think> \boxed{\frac{1}{2}}", "0.5", "right"),
        (r"\boxed{x + 1}", "1 + x", "right"),
        (r"\boxed{x + 2}", "1 + x", "wrong"),
        (r"\boxed{2}", ["1", "2"], "right"),
        (r"\boxed{2}", r"\frac{1}{", "unparsable gold"),
        ("It is 2.", "2", "no box"),
        (r"<think>\boxed{2}", "2", "unclosed thought"),
    ],
)
def test_reason_for_completion_says_why(
    completion: str, gold: str | list[str], reason: str
) -> None:
    assert reason_for(completion, gold) == reason
    assert verify(completion, gold) == (reason == "right")


def test_verify_without_an_accepted_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="a list of accepted answers is empty"):
        verify(r"\boxed{2}", [])


def test_compare_from_several_threads_keeps_answers_apart() -> None:
    # By algebra, each in the one process that all threads share.
    pairs = [(rf"\sqrt{{{n * n * 2}}}", rf"{n + n % 2}\sqrt{{2}}") for n in range(2, 26)]
    with ThreadPoolExecutor(8) as threads:
        reasons = list(threads.map(lambda pair: compare(*pair), pairs))
    assert reasons == ["right", "wrong"] * 12


IN_A_FORK = r"""
import os
from strictgrade import compare

def agree(n):
    return compare(rf"\sqrt{{{2 * n * n}}}", rf"{n + n % 2}\sqrt{{2}}") == "right"

agree(2)  # starts this process's worker
child = os.fork()
# Both at once.
assert [agree(n) for n in range(2, 62)] == [True, False] * 30
if child:
    print(os.waitstatus_to_exitcode(os.wait()[1]), agree(2))
"""


@pytest.mark.slow
def test_verify_in_a_fork_has_workers_of_its_own() -> None:
    line = [sys.executable, "-c", IN_A_FORK]
    run = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert (run.stdout.split(), run.stderr, run.returncode) == (["0", "True"], "", 0)


def reward() -> Any:
    """The function that the page writes for TRL."""
    page = (ROOT / "docs/strictgrade.md").read_text()
    [block] = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    names: dict[str, Any] = {}
    exec(block, names)
    return names["right"]


def test_documented_reward_called_as_trl_does_rewards_right_answers() -> None:
    texts = [r"\boxed{\frac12}", r"\boxed{2}", "0.5"]
    rewards = reward()(
        prompts=["1 / 2?"] * 3,
        completions=texts,
        completion_ids=[[1]] * 3,
        answer=["0.5"] * 3,
        trainer_state=None,
    )
    assert rewards == [1.0, 0.0, 0.0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of TRL and transformers
def test_documented_reward_trains_in_trl(tmp_path: Path) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = [{"prompt": f"{n} + 1?", "answer": str(n + 1)} for n in range(4)]
    trainer = GRPOTrainer(
        model=str(MODEL),
        reward_funcs=reward(),
        args=GRPOConfig(
            str(tmp_path),
            num_generations=2,
            per_device_train_batch_size=2,
            max_completion_length=32,
            max_steps=1,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            report_to=[],
        ),
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()
    assert "rewards/right/mean" in trainer.state.log_history[0]
