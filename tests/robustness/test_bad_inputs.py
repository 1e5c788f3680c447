"""What is bad from outside, by kind: every command answers it with one message, never more.

Broken copies of the demo's model, of an adapter and of a run, broken data files and recipes, and a
wrong value of every setting. Each is given to ``main`` as a person would. It must end with status
2, must name what is wrong on stderr, and must leave nothing behind that keeps the right command
from working. A few of every kind are always tried, the others with ``-m slow``.
"""

import dataclasses
import json
import random
import shutil
import types
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from safetensors.numpy import load_file, save_file

from paint.cli import main
from paint.config.schema import Config
from paint.core.demo_files import MODEL

ASKED = ["--benchmarks", "demo", "--limit=1", "--samples=1", "--rollout.max-new-tokens=4"]

Break = Callable[[Path], object]
Said = Callable[[], str]
Words = tuple[str, ...]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refuses(arguments: Sequence[str], names: str, said: Said) -> str:
    """The command is refused, with a message that names what is wrong; returns it."""
    said()  # forget what was
    status, message = main(list(arguments)), said()
    assert status == 2, f"silent: status {status} from {list(arguments)!r}: {message[-500:]}"
    is_plain(message)
    assert "".join(names.split()) in "".join(message.split()), message
    return message


def is_plain(message: str) -> None:
    """A message is there, without a traceback and without characters that control a terminal."""
    assert message
    assert "Traceback" not in message
    assert not {c for c in message if ord(c) < 32 or c == "\x7f"}


def rows_of(kinds: Iterable[Any], each: int) -> list[Any]:
    """Every kind as a parameter; every ``each``-th is quick."""
    return [
        pytest.param(
            kind,
            marks=[] if i % each == 0 else [pytest.mark.slow],
            id=kind if isinstance(kind, str) else " ".join(kind)[:60],
        )
        for i, kind in enumerate(kinds, start=1)
    ]


# --- models, adapters and runs -------------------------------------------------------------------


def _set(name: str, **values: Any) -> Break:
    def broken(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return broken


def _text(name: str, text: str) -> Break:
    return lambda folder: (folder / name).write_text(text)


def _gone(name: str) -> Break:
    return lambda folder: (folder / name).unlink()


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
    **{f"{name} gone": _gone(name) for name in (CONFIG, TOKENIZER, WEIGHTS, TEMPLATE)},
    **{f"{name} cut": _cut(name) for name in (CONFIG, TOKENIZER, WEIGHTS)},
    "unknown kind": _set(CONFIG, model_type="paint9"),
    "no language model": _set(CONFIG, model_type="bert"),
    "other width": _set(CONFIG, hidden_size=96),
    "tensor gone": _without_tensor,
    "template without problem": _text(TEMPLATE, "<|im_start|>user\nhello<|im_end|>\n"),
    "template raises": _text(TEMPLATE, "{{ raise_exception('I take no users') }}"),
    "folder gone": shutil.rmtree,
}


def broken_model(kind: str, folder: Path) -> Path:
    """A copy of the demo's model with what the kind breaks."""
    shutil.copytree(MODEL, folder, copy_function=shutil.copyfile)
    MODELS[kind](folder)
    return folder


def train_on(model: Path | str, *more: str) -> list[str]:
    small = ["--train.steps=1", "--train.batch-size=2", "--train.micro-batch-size=2"]
    small += ["--rollout.max-new-tokens=4", "--log.folder=runs", "--log.name=mine"]
    return ["train", "demo-paint", f"--model.path={model}", *small, *more]


@pytest.mark.parametrize("kind", rows_of(MODELS, 4))
def test_train_corrupt_model_is_refused(kind: str, tmp_path: Path, said: Said) -> None:
    model = broken_model(kind, tmp_path / "its-model")
    refuses(train_on(model, "--data.limit=8"), "its-model", said)
    assert not Path("runs").exists()


# What a tokenizer alone needs: data are checked without the weights.
@pytest.mark.parametrize("kind", [f"{TOKENIZER} cut", f"{TEMPLATE} gone"])
def test_data_validate_corrupt_tokenizer_is_refused(kind: str, tmp_path: Path, said: Said) -> None:
    model = broken_model(kind, tmp_path / "its-model")
    line = ["data", "validate", "demo", f"--model.path={model}", "--data.limit=1"]
    refuses(line, "its-model", said)


ADAPTER = "adapter_config.json"
ADAPTERS: dict[str, Break] = {
    "config cut": _cut(ADAPTER),
    "weights gone": _gone("adapter_model.safetensors"),
    "weights cut": _cut("adapter_model.safetensors"),
    "kind": _set(ADAPTER, peft_type="IA3"),
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


RUNS: dict[str, Break] = {
    "facts cut": _cut("run.json"),
    "config gone": _set("run.json", config=None),
    "setting of another type": _set("run.json", config={"train": {"steps": "many"}}),
    "setting unknown": _set("run.json", config={"train": {"stepz": 1}}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_resume_corrupt_run_settings_are_refused(
    kind: str, run: Path, tmp_path: Path, said: Said
) -> None:
    folder = shutil.copytree(run, tmp_path / "its-run")
    RUNS[kind](folder)
    refuses(["resume", str(folder), "--steps=2"], "its-run", said)


# --- data ----------------------------------------------------------------------------------------

# What the tests of readers and of problems do not have.
DATA: dict[str, tuple[str, bytes]] = {
    "noise jsonl": ("x.jsonl", random.Random(1).randbytes(3000)),
    "blank jsonl": ("x.jsonl", b"\n\n  \n"),
    "noise csv": ("x.csv", random.Random(2).randbytes(3000)),
    "noise parquet": ("x.parquet", random.Random(3).randbytes(3000)),
    "other ending": ("x.xlsx", b"PK"),
    "packed": ("x.jsonl.gz", b"\x1f\x8b" + bytes(30)),
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


# --- recipes -------------------------------------------------------------------------------------

RECIPES: dict[str, str] = {
    "noise": "\x00\x01",
    "open": '[model]\npath = "demo',
    "twice": "[model]\n[model]\n",
    "array of tables": "[[train]]\nsteps = 1\n",
    "escapes in value": '[train]\nmethod = "\\u001b[31m"\n',
    "date": "[train]\nsteps = 2020-01-01\n",
    "mixed list": '[model]\nlora_targets = ["q_proj", 1, [2]]\n',
}


@pytest.mark.parametrize("kind", RECIPES)
def test_corrupt_recipe_is_refused(kind: str, said: Said) -> None:
    Path("its.toml").write_text(RECIPES[kind])
    refuses(["train", "its.toml"], "its.toml", said)
    assert [entry.name for entry in Path().iterdir()] == ["its.toml"]


# --- settings ------------------------------------------------------------------------------------

NUMBERS = ["nan", "-inf", "1e300", "1e30", "-1", "ten", "", "1" + "0" * 30, "\x1b[31m", "0x1g"]
TEXTS = ["a\0b", "x" * 5000, "\x1b]52;c;AAAA\x07", "a\x08b", "\x9b31m"]
WORDS_OF_SHELLS = ["'", '"unclosed', "vllm 'serve", "a\\", "a\0b", "\x1b[31m"]
ADDRESSES = ["http://", "http://[::1", "http://host:99999", "http://a b", "https://:80", "x"]
ADDRESSES += ["ftp://host", "http://host:port", "http://\x1b[31m", "http://a\0b", "http://["]


def _is(annotation: Any, kind: type) -> bool:
    if get_origin(annotation) in (Union, types.UnionType, tuple):
        return any(_is(part, kind) for part in get_args(annotation))
    return annotation is kind


def _wrong(section: str, field: dataclasses.Field[Any]) -> list[str]:
    if get_origin(field.type) is Literal or _is(field.type, bool):
        return ["nonesuch", "", "\x1b[31m", "1"]
    if field.name == "weights":  # may be of any size and sign
        return ["nan", "-inf", "ten"]
    if field.name == "urls":
        return ADDRESSES
    if field.name in ("server", "server_args"):
        return WORDS_OF_SHELLS
    return NUMBERS if _is(field.type, int) or _is(field.type, float) else TEXTS


def _settings() -> list[tuple[str, str]]:
    """Every setting of a run with one value that it does not take."""
    found: list[tuple[str, str]] = []
    for section in dataclasses.fields(Config):
        kind: Any = section.type
        for field in dataclasses.fields(kind):
            values = _wrong(section.name, field)
            found.append((f"{section.name}.{field.name}", values[len(found) % len(values)]))
    return found


def _flag(setting: str, value: str) -> str:
    return f"--{setting.replace('_', '-')}={value}"


@pytest.mark.parametrize("case", rows_of(_settings(), 10))
def test_train_setting_with_invalid_value_is_refused(case: Words, said: Said) -> None:
    setting, value = case
    more = ["--rollout.engine=vllm"] if setting.startswith("rollout.url") else []
    more += ["--data.path=nowhere.jsonl"] if setting != "data.path" else []
    message = refuses([*train_on("demo"), *more, _flag(setting, value)], "", said)
    _is_named(setting, value, message)


def _is_named(setting: str, value: str, message: str) -> None:
    """The message names the setting, or what is nowhere where the value is odd and may stand."""
    name = setting.rpartition(".")[2]
    may_stand = value in ("1e30", "1" + "0" * 30, "x" * 5000) or (name, value) == ("top_k", "-1")
    told_so = ("control characters", "Unrecognized options")  # tyro does not say which
    is_named = any(part in message for part in (name, name.replace("_", "-"), *told_so))
    assert is_named or ("nowhere.jsonl" in message and may_stand), message


VERBS = ["", "trian", "\x1b[31m", "--nonesuch", "--"]


@pytest.mark.parametrize("verb", VERBS)
def test_unknown_command_is_refused(verb: str, said: Said) -> None:
    message = refuses([verb], "", said)
    assert "train" in message or "control characters" in message
