"""The library by itself: what it imports, its functions, and its use as a reward."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest

import strictgrade
from strictgrade import compare, comparer, inputs, reason_for, verify

PAGE = Path(__file__).parents[1] / "README.md"
MODEL = Path(__file__).parents[3] / "src" / "paint" / "demo" / "model"
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
def test_modules_import_few_packages(path: Path) -> None:
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


@pytest.mark.parametrize(
    ("completion", "gold", "is_right"),
    [
        (r"\boxed{72}", 72, True),
        (r"\boxed{72}", 72.0, True),
        (r"\boxed{72}", numpy.int64(72), True),
        (r"\boxed{72}", [71, "72"], True),
        (r"\boxed{72}", [71, 73.0], False),
        (r"\boxed{\frac12}", Fraction(1, 2), True),
        (r"\boxed{0.5}", Decimal("0.50"), True),
        (r"\boxed{1000}", Decimal("1E+3"), True),
        (r"\boxed{0.1}", numpy.float32(0.1), True),
        (r"\boxed{0.3}", 0.1 + 0.2, True),
        (r"\boxed{\frac{1}{3}}", 1 / 3, True),
        (r"\boxed{2e-7}", 1e-7, False),
        (r"\boxed{\infty}", float("inf"), True),
    ],
)
def test_verify_numbers_as_gold_are_compared(completion: str, gold: Any, is_right: bool) -> None:
    assert verify(completion, gold) == is_right


# In a process of its own: annotations are checked in this one, and refuse other types before.
REFUSED = r"""
import json
import numpy
from decimal import Decimal
from strictgrade import chosen_letter, verify

def refusal(function, *arguments):
    try:
        return str(function(*arguments))
    except Exception as error:
        return f"{type(error).__name__}: {error}"

others = [True, numpy.True_, None, {"a": 1}, b"1", [None], 1j, object(), numpy.eye(2)]
nans = [float("nan"), Decimal("nan"), [1, float("nan")]]
message = {"role": "assistant", "content": "x"}
texts = [None, 72, b"x", ["x"], [message], message]
arrays = [numpy.array(72), numpy.array([71, 72])]
print(json.dumps({
    "arrays": [verify(r"\boxed{72}", gold) for gold in arrays],
    "golds": [refusal(verify, text, gold) for gold in others for text in (r"\boxed{1}", "no box")],
    "nans": [refusal(verify, r"\boxed{1}", gold) for gold in nans],
    "completions": [[refusal(verify, text, "3"), refusal(chosen_letter, text)] for text in texts],
}))
"""


def test_verify_takes_arrays_and_refuses_other_types_by_a_sentence() -> None:
    line = [sys.executable, "-c", REFUSED]
    run = subprocess.run(line, capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)
    assert found["arrays"] == [True, True]
    said = "TypeError: an answer must be a text, a real number or a list of these"
    assert all(refusal.startswith(said) for refusal in found["golds"]), found["golds"]
    assert all(refusal.startswith("ValueError: an answer is nan") for refusal in found["nans"])
    hints = ["None", "int", "bytes", "list", 'completion[-1]["content"]']
    for refusals, hint in zip(found["completions"], [*hints, hints[-1]], strict=True):
        for refusal in refusals:
            assert refusal.startswith("TypeError: a completion must be a text, and this is")
            assert hint in refusal


@pytest.mark.parametrize("name", ["sympy", "latex2sympy2_extended", "antlr4", "mpmath"])
def test_missing_package_is_named_at_the_first_call(name: str) -> None:
    code = (
        f"import sys; sys.modules[{name!r}] = None; import strictgrade\n"
        r"strictgrade.verify(r'\boxed{0.5}', '1/2')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: strictgrade needs packages")
    assert {"antlr4": "antlr4-python3-runtime"}.get(name, name) in last
    assert "ProcessError" not in run.stderr


def test_page_names_the_packages_that_are_needed() -> None:
    page = PAGE.read_text()
    assert all(f"`{package}`" in page for package in inputs.PACKAGES.values())


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
    page = PAGE.read_text()
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
