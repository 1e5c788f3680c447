"""Broken copies of the demo's model and of an adapter, and broken data files.

Each ends with status 2 and one message that names it, and leaves nothing behind.
"""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from paint.cli import main

ASKED = ["--benchmarks", "demo", "--limit=1", "--samples=1", "--rollout.max-new-tokens=4"]

Break = Callable[[Path], object]
Said = Callable[[], str]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refuses(arguments: Sequence[str], names: str, said: Said) -> None:
    """The command is refused, with a message that names what is wrong."""
    said()  # forget what was
    status, message = main(list(arguments)), said()
    assert status == 2, f"silent: status {status} from {list(arguments)!r}: {message[-500:]}"
    assert "Traceback" not in message
    assert not {c for c in message if ord(c) < 32 or c == "\x7f"}
    assert "".join(names.split()) in "".join(message.split()), message


# --- models, adapters and runs -------------------------------------------------------------------


def _set(name: str, **values: Any) -> Break:
    def broken(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return broken


def _cut(name: str) -> Break:
    def broken(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return broken


def _without_tensor(folder: Path) -> None:
    [path] = folder.glob("*.safetensors")
    tensors = load_file(path)
    tensors.pop(min(tensors))
    save_file(tensors, path, metadata={"format": "pt"})


CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"
TEMPLATE = "chat_template.jinja"
MODELS: dict[str, Break] = {
    **{f"{name} cut": _cut(name) for name in (CONFIG, TOKENIZER, WEIGHTS)},
    "template gone": lambda folder: (folder / TEMPLATE).unlink(),
    "other width": _set(CONFIG, hidden_size=96),
    "tensor gone": _without_tensor,
    "template without problem": lambda folder: (folder / TEMPLATE).write_text(
        "<|im_start|>user\nhello<|im_end|>\n"
    ),
}


def train_on(model: Path | str, *more: str) -> list[str]:
    small = ["--train.steps=1", "--train.batch-size=2", "--train.micro-batch-size=2"]
    small += ["--rollout.max-new-tokens=4", "--log.folder=runs", "--log.name=mine"]
    return ["train", "demo-paint", f"--model.path={model}", *small, *more]


@pytest.mark.parametrize("kind", MODELS)
def test_train_corrupt_model_is_refused(kind: str, demo_copy: Path, said: Said) -> None:
    MODELS[kind](demo_copy)
    refuses(train_on(demo_copy, "--data.limit=8"), str(demo_copy), said)
    assert not Path("runs").exists()


ADAPTER = "adapter_config.json"
ADAPTERS: dict[str, Break] = {
    "weights cut": _cut("adapter_model.safetensors"),
    "rank": _set(ADAPTER, r=4),
    "base": _set(ADAPTER, base_model_name_or_path="/nowhere/at/all"),
    "tensor gone": _without_tensor,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step."""
    folder = tmp_path_factory.mktemp("made")
    assert main(train_on("demo", f"--log.folder={folder}")) == 0
    return folder / "mine"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ADAPTERS)
def test_eval_corrupt_adapter_is_refused(kind: str, run: Path, tmp_path: Path, said: Said) -> None:
    source = run / "checkpoints/step-000001/adapter"
    folder = shutil.copytree(source, tmp_path / "its-adapter")
    ADAPTERS[kind](folder)
    refuses(["eval", str(folder), *ASKED], "its-adapter", said)


# --- data ----------------------------------------------------------------------------------------

# What the tests of readers and of problems do not have.
DATA: dict[str, tuple[str, bytes]] = {
    "blank jsonl": ("x.jsonl", b"\n\n  \n"),
    "noise csv": ("x.csv", random.Random(2).randbytes(3000)),
    "noise parquet": ("x.parquet", random.Random(3).randbytes(3000)),
    "other ending": ("x.xlsx", b"PK"),
}
USES = {
    "train": [*train_on("demo"), "--data.path={}"],
    "validation": [*train_on("demo"), "--validation.path={}"],
    "eval": ["eval", "demo", "--benchmarks", "{}", "--samples=1"],
}


@pytest.mark.parametrize(("kind", "use"), list(zip(DATA, cycle(USES))))
def test_corrupt_data_file_is_refused(kind: str, use: str, said: Said) -> None:
    name, content = DATA[kind]
    Path(name).write_bytes(content)
    refuses([part.format(Path(name).absolute()) for part in USES[use]], name, said)
