"""A run folder is data: what its record names runs only where the user vouches for it."""

import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import paint
from paint.cli.main import main
from paint.config.recipe import executables_of, to_table
from paint.config.run_folder import foreign_code, read_run, read_run_json
from paint.config.schema import Config
from paint.core import trust
from paint.core.errors import ConfigError
from paint.core.extensions import load_object, option_fields
from paint.core.trust import UntrustedError, begin_call, is_remembered, remember, vouch_for
from paint.evaluation.store import recorded_engines
from paint.resolve.check import check_config
from runs import write_problems

Said = Callable[[], str]

NOTES = """
from pathlib import Path
Path(__file__).with_name("mark").write_text("")
def f(*given, **named):
    return 1.0
"""

SMALL: dict[str, Any] = {
    "rollout": {"max_new_tokens": 8, "engine": "local"},
    "train": {"steps": 1, "batch_size": 2, "checkpoint_every": 1},
    "model": {"lora_rank": 4},
    "log": {"token_rows": 0},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step, with a validation."""
    folder = tmp_path_factory.mktemp("runs")
    rows = [{"problem": f"Compute {n} + 1.", "answer": str(n + 1)} for n in range(4)]
    validation = write_problems(folder / "validation.jsonl", rows)
    of_validation = {"path": validation, "samples": 1, "max_new_tokens": 8}
    run = paint.train("demo-paint", output_dir=folder / "first", validation=of_validation, **SMALL)
    return run.path


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Modules that a test imports are imported anew by the next one."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name in ("notes", "mine"):
            del sys.modules[name]


CODE: dict[str, dict[str, dict[str, Any]]] = {
    "method": {"train": {"method": "notes:f"}},
    "context": {"context": {"source": ["notes:f"]}},
    "divergence": {"objective": {"divergence": "notes:f"}},
    "grader": {"grading": {"grader": ["notes:f"]}},
    "engine": {"rollout": {"engine": "notes:f"}},
    "server": {"rollout": {"engine": "vllm", "server": "touch mark; serve"}},
    "urls": {"rollout": {"engine": "vllm", "urls": ["http://127.0.0.1:9"]}},
}
"""Settings of a stranger's run that name code, or whom the key of servers is sent to."""


def tamper(folder: Path, changes: dict[str, dict[str, Any]]) -> None:
    """Change settings in a run.json."""
    path = folder / "run.json"
    table = json.loads(path.read_text())
    for section, settings in changes.items():
        table["config"][section] |= settings
    path.write_text(json.dumps(table))


@pytest.fixture
def stranger(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgetful: None
) -> Callable[[str], Path]:
    """A run that somebody sent, with its module; its folder is the working directory."""

    def made(setting: str) -> Path:
        folder = tmp_path / "sent"
        shutil.copytree(trained, folder)
        tamper(folder, CODE[setting])
        (folder / "notes.py").write_text(NOTES)
        monkeypatch.chdir(folder)
        return folder

    return made


def assert_nothing_ran(folder: Path) -> None:
    assert not (folder / "mark").exists()
    assert "notes" not in sys.modules


SOME = ["--limit", "1", "--samples", "1", "--rollout.max-new-tokens", "4"]
FEW = ["--seeds", "1", "--problems", "1", "--samples", "1", "--train.steps", "1"]
FEW += ["--train.batch-size", "2", "--rollout.max-new-tokens", "8", "--max-new-tokens", "8"]
ADVISED = ["--rollout.engine", "stored", "--problems", "1", "--samples", "2", "--ratios", "0"]
COMMANDS: dict[str, list[str]] = {
    "show": ["show", ".", "--no-open"],
    "show --no-rescore": ["show", ".", "--no-open", "--no-rescore"],
    "eval": ["eval", ".", *SOME],
    "eval --help": ["eval", ".", "--help"],
    "eval options": ["eval", ".", *SOME, "--grading.options.x", "1"],
    "held-out-kl": ["held-out-kl", ".", "demo", "--problems", "1", "--samples", "1"],
    "resume": ["resume", ".", "--steps", "2"],
    "runs": ["runs", ".."],
    "export": ["export", ".", "../exported"],
    "grade": ["grade", "."],
    "compare --stored": ["compare", "demo-paint", "demo-opsd", "--stored", ".", *FEW],
    "advise": ["advise", "demo-paint", "--rollout.stored", ".", *ADVISED],
}


def call(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    return main(list(words))


def is_needed(command: str, setting: str) -> bool:
    """Whether a command cannot do without what a setting names."""
    if command in ("held-out-kl", "resume"):
        return True
    if command in ("eval", "eval options"):
        return setting == "grader"
    return command == "show" and setting == "divergence"


QUICK = {("eval", "grader"), ("eval options", "grader"), ("eval --help", "grader")}
QUICK |= {("show", "divergence"), ("held-out-kl", "urls"), *product(["resume"], CODE)}


@pytest.mark.parametrize(
    ("command", "setting"),
    [
        pytest.param(*cell, marks=[] if cell in QUICK else pytest.mark.slow)
        for cell in product(COMMANDS, CODE)
    ],
)
def test_no_command_runs_what_a_strangers_run_names_unasked(
    command: str,
    setting: str,
    stranger: Callable[[str], Path],
    said: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = stranger(setting)
    status = call(COMMANDS[command], monkeypatch)
    assert_nothing_ran(folder)
    message = said()
    assert ("--trust" in message) == is_needed(command, setting), message
    is_refused_otherwise = command == "eval options"
    assert status == (2 if is_needed(command, setting) or is_refused_otherwise else 0), message
    if command in ("resume", "held-out-kl"):
        for code in executables_of(to_table(read_run(folder))):
            assert f"{code.setting} {json.dumps(code.name)}" in message
    elif status and not is_refused_otherwise:
        assert ("--no-rescore" if command == "show" else "--grading.grader") in message


def test_named_code_of_a_strangers_run_is_run_for_this_call_alone(
    stranger: Callable[[str], Path], said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stranger("grader")
    named = ["--grading.grader", "notes:f"]
    assert call([*COMMANDS["eval"], *named], monkeypatch) == 0
    assert (folder / "mark").exists()
    assert call(["eval", ".", *SOME, "--output-dir", "again"], monkeypatch) == 2
    with pytest.raises(UntrustedError):
        paint.evaluate(".", limit=1, samples=1, output_dir="again")
    # A value of another flag is no name.
    assert call([*COMMANDS["eval"], "--output-dir", "notes:f"], monkeypatch) == 2


def test_trust_runs_the_code_after_a_line_that_lists_it(
    stranger: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = stranger("grader")
    command = [*COMMANDS["eval"], "--trust"]
    assert call(command, monkeypatch) == 0
    said = capsys.readouterr().out
    [line] = [line for line in said.splitlines() if line.startswith("trusted, as")]
    assert line == 'trusted, as run.json names it: grading.grader "notes:f"'
    assert (folder / "mark").exists()
    assert call(["eval", ".", *SOME, "--output-dir", "again"], monkeypatch) == 2


def test_python_call_with_trust_or_a_name_runs_the_code(stranger: Callable[[str], Path]) -> None:
    folder = stranger("grader")
    few: dict[str, Any] = {"limit": 1, "samples": 1, "rollout": {"max_new_tokens": 4}}
    with pytest.raises(UntrustedError, match=r"grading\.grader \"notes:f\""):
        paint.evaluate(folder, **few)
    with pytest.raises(UntrustedError):
        paint.evaluate(folder, **few, grading={"timeout": 9.0})
    assert_nothing_ran(folder)
    paint.evaluate(folder, **few, grading={"grader": "notes:f"}, output_dir="named")
    with pytest.raises(UntrustedError):
        paint.evaluate(folder, **few, output_dir="trusted")
    paint.evaluate(folder, **few, trust=True, output_dir="trusted")


def test_config_of_a_strangers_run_is_not_named_by_passing_it(
    stranger: Callable[[str], Path], tmp_path: Path
) -> None:
    config = paint.load_run(stranger("grader")).config
    with pytest.raises(UntrustedError, match="name it yourself"):
        paint.train(config, output_dir=tmp_path / "new")
    with pytest.raises(UntrustedError):
        check_config(config)
    assert "notes" not in sys.modules
    recipe = tmp_path / "own.toml"
    recipe.write_text('[grading]\ngrader = "notes:f"\n')
    for arguments in ({"recipe": config, "grading": {"grader": "notes:f"}}, {"recipe": recipe}):
        with pytest.raises(ConfigError, match=r"model\.path|data\.path") as refused:
            paint.plan(**arguments, data={"path": ""}, model={"path": ""})
        assert not isinstance(refused.value, UntrustedError)


@pytest.mark.slow
def test_own_run_is_evaluated_shown_and_resumed_without_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgetful: None, said: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def grade(completion, row):\n    return 1.0\n")
    words = ["--train.steps", "1", "--train.batch-size", "2", "--rollout.max-new-tokens", "8"]
    line = ["train", "demo-paint", "--grading.grader", "mine:grade", "--log.name", "own", *words]
    assert call(line, monkeypatch) == 0
    shutil.move("runs/own", "elsewhere")
    for command in (
        ["eval", "elsewhere", "--benchmarks", "demo", *SOME],
        ["show", "elsewhere", "--no-open"],
        ["resume", "elsewhere", "--steps", "2"],
        ["resume", "elsewhere", "--steps", "2"],
    ):
        assert call(command, monkeypatch) == 0, said()
    changed = read_run_json(Path("elsewhere"))
    assert changed["config"]["train"]["steps"] == 2
    assert foreign_code(Path("elsewhere")) == []

    tamper(Path("elsewhere"), {"grading": {"timeout": 61.0}})
    assert [code.name for code in foreign_code(Path("elsewhere"))] == ["mine:grade"]
    assert call(["resume", "elsewhere", "--steps", "3"], monkeypatch) == 2
    assert call(["resume", "elsewhere", "--steps", "3", "--trust"], monkeypatch) == 0
    assert [code.name for code in foreign_code(Path("elsewhere"))] == ["mine:grade"]


CALLER = """
import os
from dataclasses import dataclass
from urllib.request import Request, urlopen

@dataclass(frozen=True)
class Options:
    url: str = ""
    model: str = "small"

def grade(completion, row, options: Options):
    if options.url:
        urlopen(Request(options.url, headers={"Authorization": os.environ["JUDGE_API_KEY"]}))
    return 1.0
"""
"""A module of the user's own, which sends a key to the address that it is told."""


@pytest.fixture
def address() -> Iterator[tuple[str, list[str]]]:
    """A server of a stranger's, and the keys that it got."""
    keys: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", keys
        server.shutdown()


def test_named_code_of_a_strangers_run_takes_no_options_of_it(
    trained: Path,
    address: tuple[str, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    forgetful: None,
) -> None:
    url, keys = address
    shutil.copytree(trained, tmp_path / "sent")
    options = {"url": url, "model": "small"}
    tamper(tmp_path / "sent", {"grading": {"grader": ["mine:grade"], "options": options}})
    own = tmp_path / "own"
    own.mkdir()
    (own / "mine.py").write_text(CALLER)
    monkeypatch.chdir(own)
    monkeypatch.setenv("JUDGE_API_KEY", "the-key-of-the-user")
    line = ["eval", "../sent", *SOME, "--grading.grader", "mine:grade"]
    assert main(line) == 0, capsys.readouterr()
    assert keys == []
    said = "".join(capsys.readouterr())
    assert "its grading.options are not taken" in said
    assert said.count("are not taken") == 1
    assert "--grading.options.url" in said
    assert main([*line, "--grading.options.url", url, "--output-dir", "given"]) == 0
    assert set(keys) == {"the-key-of-the-user"}
    keys.clear()
    assert main([*line, "--trust", "--output-dir", "trusted"]) == 0
    assert set(keys) == {"the-key-of-the-user"}


@pytest.mark.parametrize(
    ("section", "key", "owner"),
    [
        (section.name, key, owner)
        for section in fields(Config)
        for key, owner in option_fields(type(getattr(Config(), section.name))).items()
    ],
)
def test_run_read_has_the_options_of_a_strangers_code_where_it_is_trusted_alone(
    section: str, key: str, owner: str, trained: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "sent"
    shutil.copytree(trained, folder)
    value = getattr(getattr(Config(), section), owner)
    name = ["notes:f"] if isinstance(value, tuple) else "notes:f"
    tamper(folder, {section: {owner: name, key: {"url": "http://127.0.0.1:9"}}})

    def options() -> dict[str, Any]:
        return dict(getattr(getattr(read_run(folder), section), key))

    assert options() == {}
    with begin_call():
        vouch_for(["notes:f"])
        assert options() == {}
        trust.trust_records()
        assert options() == {"url": "http://127.0.0.1:9"}
    remember(read_run_json(folder)["config"])
    assert options() == {"url": "http://127.0.0.1:9"}


SETTINGS = {"grading": {"grader": ["mine:grade"], "options": {"x": 1.5, "names": ["é"]}}}


def test_own_record_is_one_with_the_same_settings_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert not is_remembered(SETTINGS)
    for _ in range(2):
        remember(SETTINGS)
    assert is_remembered(json.loads(json.dumps(SETTINGS)))
    assert not is_remembered({**SETTINGS, "train": {}})
    assert not is_remembered({"grading": {**SETTINGS["grading"], "options": {"x": 1.6}}})
    [records] = (tmp_path / "paint").iterdir()
    assert len(records.read_text().splitlines()) == 1
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/nowhere")
    assert not is_remembered(SETTINGS)
    with pytest.raises(OSError, match="Not a directory"):
        remember(SETTINGS)


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (to_table(Config()), []),
        ({"train": {"method": "paint.algorithms.variant:Variant"}}, []),
        ({"train": {"method": "paintvariants.oasis:Oasis"}}, []),
        (
            {"grading": {"grader": ["math", "paint.training.torchrun:main"]}},
            ["paint.training.torchrun:main"],
        ),
        ({"train": {"options": {"wrong": "mine:d", "n": 2}}}, ["mine:d"]),
        ({"rollout": {"server": "bash -c x", "server_args": "--a"}}, ["bash -c x", "--a"]),
        ({"data": {"path": "squad:plain"}, "log": {"name": "a:b"}}, []),
    ],
)
def test_code_of_settings_is_what_may_run(table: dict[str, Any], names: list[str]) -> None:
    assert [code.name for code in executables_of(table)] == names


def test_engine_that_a_strangers_evaluation_records_is_not_loaded(tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"engine": "notes:f"}))
    assert recorded_engines([tmp_path]) == {"notes:f"}
    with pytest.raises(UntrustedError, match=r"settings\.json names code"):
        load_object("notes:f", "rollout.engine", ())

    remember({"engine": "notes:f"})
    with begin_call():
        assert recorded_engines([tmp_path]) == {"notes:f"}
        with pytest.raises(ConfigError, match="cannot be imported"):
            load_object("notes:f", "rollout.engine", ())


def test_module_of_the_package_is_not_looked_for_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths: list[list[str]] = []

    def note(name: str) -> Any:
        paths.append(list(sys.path))
        return paint

    monkeypatch.setattr("importlib.import_module", note)
    for spec in ("paint.algorithms.grpo:train", "paintvariants.oasis:train", "mine:train"):
        load_object(spec, "train.method", ())
    assert [str(tmp_path) in path for path in paths] == [False, False, True]


def test_own_run_imports_no_module_from_a_run_folder(
    stranger: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of one's own that somebody sends back with a module beside it."""
    folder = stranger("grader")
    remember(read_run_json(folder)["config"])
    assert call(COMMANDS["eval"], monkeypatch) == 2
    assert_nothing_ran(folder)
