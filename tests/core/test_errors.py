"""Error messages, validation of settings, sanitizing of text, and crash reports."""

import io
import re

import pytest
from rich.table import Table

from paint.config.schema import ConfigError
from paint.core.display import Terminal
from paint.core.errors import (
    PaintError,
    escape_markdown_cell,
    reason,
    sanitize_for_terminal,
    wrap_errors,
)

STEERING = "\x1b]52;c;AAAA\x07 \x9b31m \u202e \u2066 \r\x08 [best] [/nope] {x} :smile: \x00"


def test_sanitize_for_terminal_escapes_what_controls_a_terminal() -> None:
    shown = sanitize_for_terminal(STEERING + "a\u2028b\ud800\n\tc é 한 👍🏽")
    assert shown.startswith("\\x1b]52;c;AAAA\\x07 \\x9b31m \\u202e \\u2066 \\r\\x08 [best]")
    assert shown.endswith("\\x00a\\u2028b\\ud800\n\tc é 한 👍🏽")
    assert sanitize_for_terminal(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "a|b`c`<b>**x**_y_ [a](http://x) $\\frac12$ &amp; ~~z~~ \\| __init__",
        "\\\\|\\|",
        "two\nlines\tand # a hash",
        STEERING,
    ],
)
def test_escape_markdown_cell_is_one_reversible_line(text: str) -> None:
    shown = escape_markdown_cell(text)
    assert "\n" not in shown
    # Every bar is escaped: it follows an odd number of backslashes.
    assert all(len(run) % 2 for run in re.findall(r"(\\*)\|", shown))
    plain = " ".join(sanitize_for_terminal(text).split())
    assert re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", shown) == plain


@pytest.mark.parametrize("text", [STEERING, "한국어 👍🏽 cafe\u0301"])
def test_terminal_prints_any_text_verbatim(text: str) -> None:
    file = io.StringIO()
    terminal = Terminal(file, width=4000)
    terminal.print(text)
    assert file.getvalue() == sanitize_for_terminal(text) + "\n"

    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    file.truncate(0)
    terminal.print(table)
    assert file.getvalue().replace("\0", "").count(sanitize_for_terminal(text).strip()) >= 3


class OutOfMemoryError(RuntimeError):
    """As torch has one for CUDA."""


OF_ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 589824 bytes. Error code 12 (Cannot allocate memory)"
)
OF_WRITER = "[enforce fail at inline_container.cc:672] . unexpected pos 710528 vs 710416"


def test_wrap_errors_names_place_reason_and_hint() -> None:
    mismatch = RuntimeError("Errors in loading:\n\n\tsize mismatch for a\n\tmore")
    errors = [
        (KeyError("model_type"), "KeyError: 'model_type'"),
        (mismatch, "size mismatch for a"),
        (OSError(36, "File name too long", "x"), "File name too long"),
        (MemoryError(), "not enough memory"),
        (RuntimeError(OF_ALLOCATOR), "there is not enough memory"),
        (OutOfMemoryError("CUDA out of memory. Tried 2 GiB"), "there is not enough memory"),
        (OSError(12, "Cannot allocate memory"), "there is not enough memory"),
        (ImportError("x.so: failed to map segment from shared object"), "there is not enough"),
        (RuntimeError(OF_WRITER), r"the disk is full, or a limit (ulimit -f) is reached"),
        (RecursionError(), "RecursionError"),
        (ValueError("x" * 5000 + " y"), "xxx"),
    ]
    for error, expected in errors:
        wrapped = wrap_errors("its/place", ConfigError, "go there")
        with pytest.raises(ConfigError) as caught, wrapped:
            raise error
        message = str(caught.value)
        assert message.startswith("its/place: ")
        assert message.endswith("; go there")
        assert expected in message
        assert "\n" not in message
        assert len(message) < 400

    for kept in (PaintError("mine"), KeyboardInterrupt("mine"), FutureWarning("mine")):
        with pytest.raises(type(kept), match=r"^mine$"), wrap_errors("x", ConfigError, "y"):
            raise kept
    assert reason(ValueError("")) == "ValueError"
