"""What SECURITY.md promises of data, models and checkpoints that others made."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from paint.config import schema as cfg
from paint.core.errors import PaintError
from paint.core.storage import write_sums
from paint.data.problems import DataError
from paint.data.readers import read_hub
from paint.grading.contract import Item
from paint.grading.mathematics import MathGrader
from paint.models.policy import Policy, PolicyError, load_policy
from paint.models.teacher import open_teacher
from paint.models.weights import load_trained
from paint.training.checkpoint import restore


class Mark:
    """An object that writes a file where its pickle is loaded without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A file that no promise lets be written."""
    return tmp_path / "mark"


def test_mark_is_written_by_a_careless_load(mark: Path) -> None:
    pickle.loads(pickle.dumps(Mark(mark)))
    assert mark.exists()


def test_checkpoint_with_pickled_code_is_refused_and_runs_none(
    policy: Policy, mark: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "step-000001"
    adapter = checkpoint / "adapter"
    policy.model.save_pretrained(adapter)
    torch.save(Mark(mark), checkpoint / "optimizer.pt")
    (checkpoint / "state.json").write_text('{"step": 1, "run": "x"}')
    names = [path.relative_to(checkpoint) for path in checkpoint.rglob("*") if path.is_file()]
    write_sums(checkpoint, sorted(map(str, names)))  # by one who knows the format
    optimizer = torch.optim.AdamW(policy.trainable)
    with pytest.raises(PaintError, match=r"optimizer\.pt holds no state"):
        restore(checkpoint, policy, optimizer, open_teacher(policy, cfg.TeacherConfig()))
    assert not mark.exists()


def test_model_with_pickled_code_is_refused_and_runs_none(demo_copy: Path, mark: Path) -> None:
    (demo_copy / "model.safetensors").unlink()
    torch.save({"weights": Mark(mark)}, demo_copy / "pytorch_model.bin")
    with pytest.raises(PolicyError, match=str(demo_copy)):
        load_policy(cfg.ModelConfig(path=str(demo_copy), dtype="float32"), seed=0)
    assert not mark.exists()


@pytest.mark.parametrize(
    "template",
    ["{{ ''.__class__.__mro__ }}", "{% set x = cycler.__init__.__globals__.os %}{{ x }}"],
)
def test_chat_template_that_leaves_the_sandbox_is_refused(demo_copy: Path, template: str) -> None:
    whole = (demo_copy / "chat_template.jinja").read_text() + template
    (demo_copy / "chat_template.jinja").write_text(whole)
    with pytest.raises(PolicyError, match="unsafe"):
        load_policy(cfg.ModelConfig(path=str(demo_copy), dtype="float32"), seed=0)


def test_data_set_with_a_script_runs_none(mark: Path, tmp_path: Path) -> None:
    folder = tmp_path / "problems"
    folder.mkdir()
    (folder / "problems.py").write_text(f"open({str(mark)!r}, 'w')\n")
    with pytest.raises(DataError):
        list(read_hub(str(folder), None, "train"))
    assert not mark.exists()


def test_answers_with_python_code_are_text(mark: Path) -> None:
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    answers = [code, f"\\boxed{{{code}}}", f"\\boxed{{\\text{{{code}}}}}", f"$$eval({code!r})$$"]
    with MathGrader(workers=1) as grader:
        grades = grader.grade([Item(f"\\boxed{{{answer}}}", "1") for answer in answers])
        grades += grader.grade([Item("\\boxed{1}", answer) for answer in answers])
    assert [grade.correct for grade in grades] == [False] * len(grades)
    assert not mark.exists()


def test_adapter_that_is_only_pickled_is_refused_and_runs_none(
    policy: Policy, mark: Path, tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter"
    policy.model.save_pretrained(adapter)
    (adapter / "adapter_model.safetensors").unlink()
    torch.save({"weights": Mark(mark)}, adapter / "adapter_model.bin")
    with pytest.raises(PaintError):
        load_trained(policy, adapter)
    assert not mark.exists()
