"""The doors of what goes wrong: settings, libraries' errors, text from outside, what is kept."""

import io
import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.progress import Progress
from rich.table import Table

from paint.config import Config, ConfigError, Log, Train
from paint.display import Display, Terminal, _columns
from paint.errors import PaintError, cell, explained, plain, reason, unexpected, wrong_name

STEERING = "\x1b]52;c;AAAA\x07 \x9b31m \u202e \u2066 \r\x08 [best] [/nope] {x} :smile: \x00"


@given(st.text(st.characters(), max_size=80))
@example(STEERING)
@example("a\u2028b\ud800")
def test_plain_text_has_nothing_that_steers_and_is_plain_already(text: str) -> None:
    shown = plain(text)
    assert not {unicodedata.category(c) for c in shown.replace("\n", "").replace("\t", "")} & {
        "Cc",
        "Cf",
        "Cn",
        "Cs",
    }
    assert plain(shown) == shown
    shown.encode()


@given(st.text(max_size=60))
@example("a|b`c`<b>**x**_y_ [a](http://x) $\\frac12$ &amp; ~~z~~ \\| __init__")
def test_a_cell_is_one_line_that_reads_as_it_was_written(text: str) -> None:
    shown = cell(text)
    assert "\n" not in shown
    # Every bar is escaped: an odd number of backslashes stands before it.
    assert all(len(run) % 2 for run in re.findall(r"(\\*)\|", shown))
    assert re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", shown) == " ".join(plain(text).split())


def test_figures_and_names_stay_as_they_are_in_a_cell() -> None:
    for text in ("59.0 [55.1, 62.3]", "lab_paint", "step-000020", "1,024 [900, inf]", "p < 0.05"):
        assert cell(text) == text.replace("<", "\\<")


@given(st.text(st.characters(exclude_characters="\t\n"), min_size=1, max_size=40))
@example(STEERING)
@example("\U000e0000")  # known to no Unicode, of no width
@example("\u0301")  # an accent with nothing to sit on: rich leaves out a cell of no width
@example("\u1160\u1161")
@example("a\u0301 \u0301")
def test_a_terminal_shows_every_text_as_text(text: str) -> None:
    file = io.StringIO()
    terminal = Terminal(file, width=4000)
    terminal.print(text)
    assert file.getvalue() == plain(text) + "\n"

    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    file.truncate(0)
    terminal.print(table)
    assert file.getvalue().replace("\0", "").count(plain(text).strip()) >= 3


@pytest.mark.parametrize("title", ["[best] {task.nonesuch}", "{x}", "[/]", STEERING])
def test_a_count_shows_its_title_as_text(title: str) -> None:
    file = io.StringIO()
    terminal = Terminal(file, width=400)
    with Progress(*_columns(), console=terminal) as bar:
        bar.add_task(plain(title), total=3, status=plain(title))
    assert file.getvalue().count(plain(title).strip()) >= 2


def test_a_count_has_any_title(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    with display.counting(STEERING, 2) as counter:
        counter.add()
    assert capsys.readouterr().out.startswith(f"{plain(STEERING)}: 1/2")


def test_whatever_a_library_raises_names_place_reason_and_way_out() -> None:
    errors = [
        (KeyError("model_type"), "KeyError: 'model_type'"),
        (
            RuntimeError("Errors in loading:\n\n\tsize mismatch for a\n\tmore"),
            "size mismatch for a",
        ),
        (OSError(36, "File name too long", "x"), "File name too long"),
        (MemoryError(), "not enough memory"),
        (RecursionError(), "RecursionError"),
        (ValueError("x" * 5000 + " y"), "xxx"),
    ]
    for error, said in errors:
        with pytest.raises(ConfigError) as caught, explained("its/place", ConfigError, "go there"):
            raise error
        message = str(caught.value)
        assert message.startswith("its/place: ")
        assert message.endswith("; go there")
        assert said in message
        assert "\n" not in message
        assert len(message) < 400

    with pytest.raises(PaintError, match=r"^mine$"), explained("x", ConfigError, "y"):
        raise PaintError("mine")
    with pytest.raises(KeyboardInterrupt), explained("x", ConfigError, "y"):
        raise KeyboardInterrupt
    assert reason(ValueError("")) == "ValueError"


def test_what_nobody_expected_is_kept_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("MY_API_KEY", "swordfish-1")
    command = ["train", "--api-key=openSesame", "--token", "hf_abcdefghijkl", "--train.steps=4"]
    command += ["--rollout.urls=http://me:hunter2@node:8000", "swordfish-1"]
    try:
        raise LookupError("Bearer abc123 of http://u:pass@h/ was refused")
    except LookupError as error:
        said = unexpected(error, command)

    [path] = tmp_path.iterdir()
    kept = path.read_text()
    assert str(path) in said
    assert "Traceback" not in said
    assert path.stat().st_mode & 0o077 == 0
    for part in (
        "Traceback",
        "LookupError",
        "paint train",
        "--train.steps=4",
        "torch ",
        "node:8000",
    ):
        assert part in kept, part
    for secret in ("openSesame", "abcdefghijkl", "hunter2", "swordfish-1", "abc123", "u:pass"):
        assert secret not in kept, secret


@given(st.text(max_size=400))
@example("a" * 256)
@example("é" * 128)
@example("a\0b")
@example("a/" * 2100)
def test_a_name_is_refused_where_the_file_system_would(name: str) -> None:
    def is_name() -> bool:
        try:
            Path("/", name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except (OSError, ValueError):
            return False
        return True

    if not wrong_name(name):
        assert is_name() or len(name.encode()) > 4000
    elif not any(unicodedata.category(c) == "Cc" for c in name):
        assert not is_name() or len(name.encode()) > 4095


def test_settings_that_no_computer_holds_are_refused_by_name() -> None:
    config = Config()
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("train.seed", lambda: Train(seed=2**63)),
        ("train.steps", lambda: Train(steps=10**9)),
        ("train.learning_rate", lambda: Train(learning_rate=1e300)),
        ("train.learning_rate", lambda: Train(learning_rate=float("nan"))),
        ("log.name", lambda: Log(name="é" * 128)),
        ("log.name", lambda: Log(name="a\x1bb")),
        ("log.folder", lambda: Log(folder="x/" * 3000)),
        ("rollout.patience", lambda: replace(config.rollout, patience=float("inf"))),
        ("rollout.timeout", lambda: replace(config.rollout, timeout=1e30)),
        ("rollout.temperature", lambda: replace(config.rollout, temperature=1e-30)),
        ("model.lora_targets", lambda: replace(config.model, lora_targets=("q\0",))),
    ]
    for name, make in wrong:
        with pytest.raises(ConfigError, match=rf"^{re.escape(name)} must be ") as caught:
            make()
        assert len(str(caught.value)) < 500
