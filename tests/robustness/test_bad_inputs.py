"""What is bad from outside, by kind: every command answers it with one message, never more.

Broken copies of the demo's model, of an adapter, of a run and of data files; a wrong value of every
setting that paint.config.schema has and of every option of the command line; names that are no
names. Each is given to ``main`` as a person would. It must end with status 2, must name what is
wrong on stderr, and must leave nothing behind that keeps the right command from working.

A few of every kind are always tried, the others with ``-m slow``.
"""

import dataclasses
import io
import json
import random
import re
import resource
import shutil
import signal
import struct
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from paint.cli import main
from paint.config.schema import Config
from paint.demo.files import MODEL

# Of this process's own work, whatever else the machine does; and of waiting, by the clock.
WORK_SECONDS, CLOCK_SECONDS = 20, 120
MEMORY = 16 * 2**30

ASKED = ["--benchmarks", "demo", "--limit=1", "--samples=1", "--rollout.max-new-tokens=4"]

Break = Callable[[Path, random.Random], object]
Said = Callable[[], str]
Words = tuple[str, ...]


@pytest.fixture(autouse=True)
def _bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An input that takes all memory or never ends fails its trial, and not the machine."""
    monkeypatch.chdir(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class TookTooLongError(BaseException):
    """What ends a trial that does not end."""


def told(arguments: Sequence[str], said: Said) -> tuple[int, str]:
    """The exit status of ``paint`` with these arguments, and what it says on stderr."""

    def stop(*_: object) -> None:
        raise TookTooLongError

    said()  # forget what was
    bounds = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
    handlers = {number: signal.signal(number, stop) for number in bounds.values()}
    signal.setitimer(signal.ITIMER_PROF, WORK_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, CLOCK_SECONDS)
    try:
        status = main(list(arguments))
    except TookTooLongError:
        pytest.fail(f"does not end: {list(arguments)}")
    except Exception as error:
        pytest.fail(f"traceback: {type(error).__name__}: {str(error)[:200]} from {arguments!r}")
    finally:
        for timer, number in bounds.items():
            signal.setitimer(timer, 0)
            signal.signal(number, handlers[number])
    return status, said()


def refuses(arguments: Sequence[str], names: str, said: Said) -> str:
    """The command is refused, with a message that names what is wrong; returns it."""
    status, message = told(arguments, said)
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


# --- model folders -------------------------------------------------------------------------------


def _edit(name: str, change: Callable[[Any, random.Random], Any]) -> Break:
    def broken(folder: Path, rng: random.Random) -> None:
        value = json.loads((folder / name).read_text())
        changed = change(value, rng)
        value = value if changed is None else changed
        (folder / name).write_text(json.dumps(value))

    return broken


def _set(name: str, **values: Any) -> Break:
    return _edit(name, lambda table, _: table.update(values))


def _text(name: str, text: str | bytes) -> Break:
    content = text if isinstance(text, bytes) else text.encode()
    return lambda folder, _: (folder / name).write_bytes(content)


def _gone(name: str) -> Break:
    return lambda folder, _: (folder / name).unlink()


def _tensors(change: Callable[[dict[str, Any], random.Random], object]) -> Break:
    def broken(folder: Path, rng: random.Random) -> None:
        [path] = folder.glob("*.safetensors")
        tensors = load_file(path)
        change(tensors, rng)
        save_file(tensors, path, metadata={"format": "pt"})

    return broken


def _one(tensors: dict[str, Any], rng: random.Random) -> str:
    return rng.choice(sorted(tensors))


def _each(change: Callable[[Any, random.Random], Any]) -> Break:
    """Change the values of one tensor."""

    def changed(tensors: dict[str, Any], rng: random.Random) -> None:
        name = _one(tensors, rng)
        tensors[name] = change(tensors[name], rng)

    return _tensors(changed)


def _header(folder: Path, rng: random.Random) -> None:
    [path] = folder.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[: rng.choice([1, 8])] = rng.choice([b"\xff" * 8, struct.pack("<Q", 10**7)])
    path.write_bytes(content)


def _torn_header(folder: Path, rng: random.Random) -> None:
    [path] = folder.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    for _ in range(40):
        content[rng.randrange(8, 600)] = rng.randrange(256)
    path.write_bytes(content)


def _pickled(folder: Path, rng: random.Random) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(rng.randbytes(rng.choice([0, 10, 3000])))


def _shards(folder: Path, rng: random.Random) -> None:
    names = load_file(folder / "model.safetensors")
    shard = rng.choice(["model-00001-of-00002.safetensors", "../x.safetensors", 7, None])
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()


def _instead(make: Callable[[Path], object]) -> Break:
    def broken(folder: Path, _: random.Random) -> None:
        shutil.rmtree(folder)
        make(folder)

    return broken


CONFIG, TOKENIZER, SETTINGS = "config.json", "tokenizer.json", "tokenizer_config.json"
WEIGHTS, TEMPLATE = "model.safetensors", "chat_template.jinja"
PARSED = {"null": b"null", "list": b"[1, 2]", "number": b"7", "text": b'"text"', "object": b"{}"}
PARSED |= {"nested": b'{"a":' * 100_000}
CONTENTS = PARSED | {"empty": b"", "latin-1": '{"a": "\xe9"}'.encode("latin-1")}
JUNK = ["gone", *CONTENTS, "cut", "noise", "folder", "dangling"]


def _junk(kind: str, name: str) -> Break:
    def broken(folder: Path, rng: random.Random) -> None:
        path = folder / name
        content = path.read_bytes()
        path.unlink()
        if kind in CONTENTS:
            path.write_bytes(CONTENTS[kind])
        elif kind == "cut":
            path.write_bytes(content[: rng.randrange(1, len(content) - 1)])
        elif kind == "noise":
            path.write_bytes(rng.randbytes(rng.randrange(1, 5000)))
        elif kind == "folder":
            path.mkdir()
        elif kind == "dangling":
            path.symlink_to("nowhere")

    return broken


FULL = "full_attention"
NO_LANGUAGE_MODELS = ["bert", "t5", "clip", "llava", "timm_wrapper"]
QUANTISED: dict[str, Any] = {
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    **{method: {"quant_method": method, "bits": 4} for method in ("gptq", "awq")},
    "list": [4],
}
WRONG_CONFIGS: dict[str, dict[str, Any]] = {
    "unknown kind": {"model_type": "paint9"},
    "kind null": {"model_type": None},
    "kind list": {"model_type": ["qwen3"]},
    "remote code": {"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "mine.Mine"}},
    **{f"hidden {size}": {"hidden_size": size} for size in ("wide", None, -128, 0, 96, 10**12)},
    **{f"heads {count}": {"num_attention_heads": count} for count in (3, 0)},
    "groups": {"num_key_value_heads": 3},
    "layers 4": {"num_hidden_layers": 4, "layer_types": [FULL] * 4},
    "layers list": {"num_hidden_layers": [3]},
    "layer types": {"layer_types": ["full", "none", 3]},
    **{f"vocabulary {size}": {"vocab_size": size} for size in (100, 700, "all")},
    "untied": {"tie_word_embeddings": False},
    "activation": {"hidden_act": "nonesuch"},
    "rope": {"rope_parameters": {"rope_type": "nonesuch", "rope_theta": 1e4}},
    "rope list": {"rope_parameters": [1, 2]},
    "rope text": {"rope_parameters": {"rope_type": "default", "rope_theta": "x"}},
    "positions": {"max_position_embeddings": "long"},
    "norm": {"rms_norm_eps": "small"},
    "pad": {"pad_token_id": 10**6},
    **{f"quantised {q[:12]}": {"quantization_config": given} for q, given in QUANTISED.items()},
}
TEMPLATES: dict[str, str | bytes] = {
    "empty": "",
    "blank": "{# nothing #}",
    "cut": "{% for m in messages %}{{ m.content }}",
    "raises": "{{ raise_exception('I take no users') }}",
    "undefined": "{{ messages[0].content.nonesuch.deeper }}",
    "divides": "{{ messages[0].content }}{{ 1 // 0 }}",
    "wrong call": "{{ messages[0].content.split(1, 2, 3) }}",
    "calls": "{{ nonesuch(messages) }}",
    "unsafe": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "deaf": "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n",
    "recurses": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "huge": "{{ 'x' * 10**13 }}{{ messages[0].content }}",
    "not UTF-8": "{{ 'é' }}".encode("latin-1"),
}
TENSORS: dict[str, Break] = {
    "tensor gone": _tensors(lambda tensors, rng: tensors.pop(_one(tensors, rng))),
    "all tensors gone": _tensors(lambda tensors, rng: tensors.clear()),
    "tensor renamed": _tensors(lambda all_, rng: all_.update(old=all_.pop(_one(all_, rng)))),
    "tensor wider": _each(lambda tensor, _: np.concatenate([tensor, tensor])),
    "tensor flat": _each(lambda tensor, rng: tensor.reshape(-1)[: rng.randrange(1, 9)]),
    "tensor not finite": _each(lambda x, rng: np.full_like(x, rng.choice([np.nan, np.inf]))),
    "weights header": _header,
    "weights torn header": _torn_header,
}
UNREAD = ("gone", "object", "folder", "dangling")  # of which settings may be
MODELS: dict[str, Break] = {
    **{f"config {kind}": _junk(kind, CONFIG) for kind in JUNK},
    **{f"tokenizer {kind}": _junk(kind, TOKENIZER) for kind in JUNK},
    **{f"weights {kind}": _junk(kind, WEIGHTS) for kind in JUNK if kind not in PARSED},
    **{f"settings {kind}": _junk(kind, SETTINGS) for kind in JUNK if kind not in UNREAD},
    **{
        f"only {kind}": _text(CONFIG, json.dumps({"model_type": kind}))
        for kind in NO_LANGUAGE_MODELS
    },
    **{kind: _set(CONFIG, **values) for kind, values in WRONG_CONFIGS.items()},
    **TENSORS,
    "tensors gone": _tensors(lambda tensors, rng: [tensors.pop(_one(tensors, rng)) for _ in "abc"]),
    "weights pickled": _pickled,
    "weights shards": _shards,
    "template gone": _gone(TEMPLATE),
    **{f"template {kind}": _text(TEMPLATE, text) for kind, text in TEMPLATES.items()},
    "template folder": _junk("folder", TEMPLATE),
    "no end": lambda folder, rng: [
        _set(CONFIG, eos_token_id=None)(folder, rng),
        _gone("generation_config.json")(folder, rng),
        _edit(SETTINGS, lambda table, _: [table.pop("eos_token"), None][1])(folder, rng),
    ],
    **{
        f"end {end}": lambda folder, rng, end=end: [  # type: ignore[misc]
            _set(name, eos_token_id=end)(folder, rng) for name in (CONFIG, "generation_config.json")
        ]
        for end in (10**6, "end")
    },
    "folder empty": _instead(Path.mkdir),
    "folder gone": lambda folder, _: shutil.rmtree(folder),
    "folder is file": _instead(lambda folder: folder.write_text("model")),
}


def broken_model(kind: str, folder: Path) -> Path:
    """A copy of the demo's model with what the kind breaks."""
    shutil.copytree(MODEL, folder, copy_function=shutil.copyfile)
    MODELS[kind](folder, random.Random(f"{kind}/1"))
    return folder


def train_on(model: Path | str, *more: str) -> list[str]:
    small = ["--train.steps=1", "--train.batch-size=2", "--train.micro-batch-size=2"]
    small += ["--rollout.max-new-tokens=4", "--log.folder=runs", "--log.name=mine"]
    return ["train", "demo-paint", f"--model.path={model}", *small, *more]


@pytest.mark.filterwarnings("ignore:Initializing zero-element")  # of torch, for hidden size 0
@pytest.mark.parametrize("kind", rows_of(sorted(MODELS), 8))
def test_train_corrupt_model_is_refused(kind: str, tmp_path: Path, said: Said) -> None:
    model = broken_model(kind, tmp_path / "its-model")
    refuses(train_on(model, "--data.limit=8"), "its-model", said)
    assert not Path("runs").exists()


# What a tokenizer alone needs: data are checked without the weights.
OF_TOKENIZER = [kind for kind in sorted(MODELS) if kind.startswith(("tokenizer", "template"))]


@pytest.mark.parametrize("kind", rows_of(OF_TOKENIZER, 8))
def test_data_validate_corrupt_tokenizer_is_refused(kind: str, tmp_path: Path, said: Said) -> None:
    model = broken_model(kind, tmp_path / "its-model")
    line = ["data", "validate", "demo", f"--model.path={model}", "--data.limit=1"]
    refuses(line, "its-model", said)


# --- adapters and runs ---------------------------------------------------------------------------

ADAPTER = "adapter_config.json"
ADAPTERS: dict[str, Break] = {
    **{f"config {kind}": _junk(kind, ADAPTER) for kind in JUNK if kind != "gone"},
    **{
        f"weights {kind}": _junk(kind, "adapter_model.safetensors")
        for kind in ("gone", "empty", "cut", "noise", "folder", "dangling")
    },
    "kind": _set(ADAPTER, peft_type="IA3"),
    **{f"rank {rank}": _set(ADAPTER, r=rank) for rank in ("many", None, 0, 10**9, [8], 4)},
    **{f"alpha {alpha}": _set(ADAPTER, lora_alpha=alpha) for alpha in ("much", None)},
    **{
        f"targets {targets}": _set(ADAPTER, target_modules=targets)
        for targets in (None, "all-linear", [1, 2], ["nonesuch"], [["q_proj"]])
    },
    **{
        f"base {str(base)[:20]!r}": _set(ADAPTER, base_model_name_or_path=base)
        for base in ("/nowhere/at/all", None, 7, "a\0b", "x" * 5000)
    },
    **TENSORS,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step."""
    folder = tmp_path_factory.mktemp("made")
    assert main(train_on("demo", f"--log.folder={folder}")) == 0
    return folder / "mine"


@pytest.mark.slow
@pytest.mark.parametrize("kind", rows_of(sorted(ADAPTERS), 1))
def test_eval_corrupt_adapter_is_refused(kind: str, run: Path, tmp_path: Path, said: Said) -> None:
    source = run / "checkpoints/step-000001/adapter"
    folder = shutil.copytree(source, tmp_path / "its-adapter")
    ADAPTERS[kind](folder, random.Random(f"{kind}/1"))
    names = "model.lora_targets" if kind == "targets ['nonesuch']" else "its-adapter"
    refuses(["eval", str(folder), *ASKED], names, said)


def _setting(**values: Any) -> Break:
    return _edit("run.json", lambda facts, _: facts["config"].update(values))


RUNS: dict[str, Break] = {
    **{f"facts {kind}": _junk(kind, "run.json") for kind in JUNK},
    "config gone": _edit("run.json", lambda facts, _: [facts.pop("config"), None][1]),
    **{f"config {value}": _set("run.json", config=value) for value in (None, [1], "demo-paint")},
    "section null": _setting(train=None),
    "section list": _setting(train=[1]),
    "section unknown": _setting(nonesuch={"a": 1}),
    "setting unknown": _setting(train={"stepz": 1}),
    "setting of another type": _setting(train={"steps": "many"}),
    "setting nested": _setting(model={"lora_targets": [["q"]]}),
    "model gone": _setting(model={"path": "/nowhere/model"}),
    "data gone": _setting(data={"path": "/nowhere.jsonl"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", rows_of(sorted(RUNS), 1))
def test_resume_and_eval_corrupt_run_settings_are_refused(
    kind: str, run: Path, tmp_path: Path, said: Said
) -> None:
    folder = shutil.copytree(run, tmp_path / "its-run")
    RUNS[kind](folder, random.Random(f"{kind}/1"))
    names = "nowhere" if kind in ("model gone", "data gone") else "its-run"
    refuses(["resume", str(folder), "--steps=2"], names, said)
    # Of the others, the adapter says itself what it belongs to.
    if kind not in ("model gone", "data gone", "section unknown"):
        refuses(["eval", str(folder), "--benchmarks", "demo", "--limit=1"], "", said)


# --- data ----------------------------------------------------------------------------------------

GOOD = {"problem": "What is 1+2?", "solution": "It is \\boxed{3}.", "answer": "3"}


def _line(**values: Any) -> str:
    return json.dumps(GOOD | values) + "\n"


def _parquet(make: Callable[[random.Random], pa.Table]) -> Callable[[random.Random], bytes]:
    def content(rng: random.Random) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(make(rng), sink)
        return bytes(sink.getvalue())

    return content


def _table(rng: random.Random, **columns: Any) -> pa.Table:
    return pa.table({name: [value] * 20 for name, value in GOOD.items()} | columns)


_whole = _parquet(lambda rng: _table(rng, id=[str(rng.random()) for _ in range(20)]))


def _torn(rng: random.Random, count: int, where: slice) -> bytes:
    torn = bytearray(_whole(rng))
    places = range(len(torn))[where]
    for _ in range(count):
        torn[rng.choice(places)] ^= rng.randrange(1, 256)
    return bytes(torn)


Content = Callable[[random.Random], bytes | str]
HEAD = "problem,solution,answer\n"
TABLES: dict[str, Callable[[random.Random], pa.Table]] = {
    "no columns": lambda _: pa.table({}),
    "nested": lambda _: pa.table({"problem": [{"a": [{"b": 1}]}], "answer": [[1]]}),
    "maps": lambda _: pa.table({"problem": pa.array([[("a", 1)]], pa.map_("str", "i4"))}),
    "long cell": lambda rng: _table(rng, problem=["x " * 10_000_000] + ["x"] * 19),
}
# What the tests of readers, of problems and of storage do not have.
BY_NAME: dict[str, dict[str, Content]] = {
    "x.jsonl": {
        "blank jsonl": lambda _: "\n\n  \n",
        "noise jsonl": lambda rng: rng.randbytes(3000),
        "deep value": lambda _: '{"problem": ' + '{"a":' * 200_000,
        "digits": lambda _: '{"problem": ' + "9" * 10_000 + "}\n",
        "surrogate": lambda _: _line(problem="a\ud800b"),
        "other keys": lambda _: json.dumps({"\x1b[31mprompt": "a"}) + "\n",
        "long line": lambda _: _line(problem="x " * 20_000_000),
    },
    "x.csv": {
        "noise csv": lambda rng: rng.randbytes(3000),
        "open quote csv": lambda _: HEAD + '"a,b,c\n' + "x\n" * 99,
        # The longest cell, and 848 lines, which are rows of their own.
        "long quote csv": lambda _: HEAD + '"' + "x\n" * 2_098_000 + '",b,c',
        "head csv": lambda _: "x" * 20_000_000,
    },
    "x.parquet": {
        "noise parquet": lambda rng: rng.randbytes(3000),
        "torn parquet": lambda rng: _torn(rng, 30, slice(None)),
        "torn footer parquet": lambda rng: _torn(rng, 5, slice(-600, -8)),
        "magic parquet": lambda rng: b"PAR1" + rng.randbytes(90) + b"PAR1",
        **{f"{kind} parquet": _parquet(make) for kind, make in TABLES.items()},
    },
    "x.xlsx": {"other ending": lambda _: _line()},
    "x.jsonl.gz": {"packed": lambda _: b"\x1f\x8b" + b"\0" * 30},
}
DATA = {kind: (name, make) for name, kinds in BY_NAME.items() for kind, make in kinds.items()}
USES = {
    "check": ["data", "validate", "{}", "--model.path=demo"],
    "validation": [*train_on("demo"), "--validation.path={}"],
    "eval": ["eval", "demo", "--benchmarks", "{}", "--samples=1"],
    "openthoughts": ["data", "openthoughts", "out.jsonl", "--source={}", "--benchmarks", "demo"],
    "skip": [*train_on("demo"), "--data.path={}", "--data.on-bad-row=skip"],
}


USED = list(zip(sorted(DATA), cycle(USES)))


@pytest.mark.parametrize("case", rows_of(USED, 4))
def test_corrupt_data_file_is_refused(case: Words, said: Said) -> None:
    (name, make), use = DATA[case[0]], case[1]
    content = make(random.Random(f"{case[0]}/1"))
    path = Path(name).absolute()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    arguments = [part.format(path) for part in USES[use]]
    status, message = told(arguments, said)
    if (use, status) in (("check", 1), ("openthoughts", 0)):
        return  # rows are counted by what is wrong with them
    if (case, status) == (("long cell parquet", "skip"), 0):
        return  # the other rows are good
    assert status == 2, f"silent: status {status} from {arguments!r}: {message[-500:]}"
    assert name in message
    is_plain(message)


# --- recipes -------------------------------------------------------------------------------------

RECIPES: dict[str, Content] = {
    "noise": lambda rng: rng.randbytes(2000),
    "latin-1": lambda _: 'x = "é"'.encode("latin-1"),
    "null": lambda _: "\0",
    "open": lambda _: '[model]\npath = "demo',
    "twice": lambda _: "[model]\n[model]\n",
    "deep": lambda _: "a = " + "[" * 100_000,
    "deep keys": lambda _: "a." * 100_000 + "b = 1",
    "digits": lambda _: "[train]\nseed = " + "9" * 10_000,
    "array of tables": lambda _: "[[train]]\nsteps = 1\n",
    "escapes": lambda _: '"\\u001b[31m" = 1\n',
    "escapes in section": lambda _: '[train]\n"\\u001b]52;c;x\\u0007" = 1\n',
    "escapes in value": lambda _: '[train]\nmethod = "\\u001b[31m"\n',
    "date": lambda _: "[train]\nsteps = 2020-01-01\n",
    "mixed list": lambda _: '[model]\nlora_targets = ["q_proj", 1, [2]]\n',
}


@pytest.mark.parametrize("kind", rows_of(sorted(RECIPES), 5))
def test_corrupt_recipe_is_refused(kind: str, said: Said) -> None:
    content = RECIPES[kind](random.Random(f"{kind}/1"))
    path = Path("its.toml")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refuses(["train", str(path)], "its.toml", said)
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


# --- the verbs' own options ----------------------------------------------------------------------


FIRST = {
    "grade": ["nowhere"],
    "resume": ["nowhere"],
    "advise": ["small.toml"],
    "demo": ["small.toml"],
    "ablate": ["mask-ratio", "small.toml"],
    "data openthoughts": ["out.jsonl", "--source=nowhere.jsonl", "--benchmarks=demo"],
    "data validate": ["nowhere.jsonl", "--model.path=demo"],
}


def _options(verb: str) -> list[str]:
    """The options with a value in a verb's --help, without the settings of recipes."""
    with redirect_stdout(io.StringIO()) as printed:
        assert main([*verb.split(), "--help"]) == 0
    options = re.findall(r"^[│ ] (--[\w.-]+) [\[{A-Z]", printed.getvalue(), re.MULTILINE)
    assert options
    return [option for option in options if "." not in option]


ODD = [*NUMBERS, "inf", "0", *TEXTS, *WORDS_OF_SHELLS[:1]]
OPTIONS = [(verb, option) for verb in FIRST for option in _options(verb)]
ODD_OPTIONS = [
    (verb, option, value)
    for (verb, option), value in zip(OPTIONS, cycle(ODD))
    if option not in ("--output-dir", "--benchmark")
    if (option, value) not in (("--seed", "0"), ("--source", ""))  # which are allowed
]


def _small_recipe(data: str) -> None:
    Path("small.toml").write_text(
        f'[model]\npath = "demo"\nlora_rank = 2\n[data]\npath = "{data}"\nmax_prompt_tokens = 400\n'
        "[rollout]\nmax_new_tokens = 4\n[train]\nsteps = 1\nbatch_size = 2\n"
    )


@pytest.mark.parametrize("case", rows_of(ODD_OPTIONS, 8))
def test_option_with_odd_value_is_refused(case: Words, said: Said) -> None:
    verb, option, value = case
    _small_recipe("nowhere.jsonl")
    message = refuses([*verb.split(), *FIRST[verb], f"{option}={value}"], "", said)
    is_named = option.removeprefix("--") in message or value in message or "nowhere" in message
    assert is_named or option.rpartition(".")[2].replace("-", "_") in message, message


PLACES = {
    "train": [*train_on("demo"), "--log.folder={}"],
    "train name": [*train_on("demo"), "--log.name={}"],
    "demo": ["demo", "small.toml", "--problems=1", "--samples=1", "--output-dir={}"],
    "advise": ["advise", "small.toml", "--problems=1", "--ratios=0", "--output-dir={}"],
    "eval": ["eval", "demo", "--benchmarks=demo", "--limit=1", "--samples=1", "--output-dir={}"],
    "eval target": ["eval", "{}", "--benchmarks=demo", "--limit=1", "--samples=1"],
    "grade": ["grade", "{}"],
    "grade out": ["grade", "evals", "--out={}"],
    "resume": ["resume", "{}"],
    "check": ["data", "validate", "{}", "--model.path=demo"],
    "check model": ["data", "validate", "demo", "--model.path={}"],
    "openthoughts": ["data", "openthoughts", "{}", "--source=demo.jsonl", "--benchmarks=demo"],
    "source": ["data", "openthoughts", "out.jsonl", "--source={}", "--benchmarks=demo"],
    "benchmark": ["data", "openthoughts", "out.jsonl", "--source=demo.jsonl", "--benchmarks={}"],
    "model": [*train_on("demo"), "--model.path={}"],
    "data": [*train_on("demo"), "--data.path={}"],
    "validation": [*train_on("demo"), "--validation.path={}"],
    "recipe": ["train", "{}"],
    "recipe file": ["train", "{}.toml"],
}
NO_PLACES = ["a\0b", "x" * 300, "x/" * 3000, "é" * 140, "\x1b[31m", "/dev/null/x", "/proc/x"]
NO_PLACES += ["a\nb\x07", "\x1b]52;c;AAAA\x07", "x" * 300 + "/y", "\udcff\x01"]


NAMED = zip([*PLACES, *PLACES], cycle(NO_PLACES))


@pytest.mark.parametrize("case", rows_of(NAMED, 8))
def test_invalid_path_name_is_refused(case: Words, said: Said) -> None:
    place, name = case
    _small_recipe("demo")
    message = refuses([part.format(name) for part in PLACES[place]], "", said)
    stored = ("demo", "advise", "eval", "openthoughts")
    assert "nothing that was stored" not in message or place in stored


VERBS = ["", "trian", "\x1b[31m", "a\0b", "--nonesuch", "-", "--", "train\n", "x" * 9999, "\udcff"]


@pytest.mark.parametrize("verb", VERBS)
def test_unknown_command_is_refused(verb: str, said: Said) -> None:
    message = refuses([verb], "", said)
    assert "train" in message or "control characters" in message
