"""Self-contained HTML pages: data as JSON, with inlined style and scripts.

Text from models and files is untrusted. It is embedded as JSON without ``<``, and the scripts
insert it as text nodes only. A content security policy allows only these scripts and no network
access.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from paint.core import storage
from paint.core.errors import sanitize_for_terminal
from paint.core.versions import __version__

ASSETS = resources("paint.lab.viewer") / "assets"

PAGE = "show.html"
"""Name of a page in the folder that it shows."""

PAGES = {
    "run": ("base.js", "charts.js", "tokens.js", "run.js"),
    "evaluation": ("base.js", "charts.js", "evaluation.js"),
    "runs": ("base.js", "charts.js", "runs.js"),
    "tables": ("base.js", "charts.js", "tables.js"),
}
"""The scripts of each page, in order."""


def places_of(ids: Sequence[int], table: dict[int, int]) -> np.ndarray:
    """Return each token's index in the table of a page's distinct tokens, which gets new ones."""
    return np.array([table.setdefault(int(i), len(table)) for i in ids], np.uint32)


def text_of(piece: bytes) -> str:
    """Return the text of a token; undecodable bytes become surrogate escapes (never valid text)."""
    return piece.decode("utf-8", "surrogateescape")


def packed(values: Any) -> dict[str, str]:
    """Encode numbers as base64 of little-endian bytes, in the smallest type that holds them."""
    array = np.asarray(values)
    if array.dtype == bool:
        array = array.astype(np.uint8)
    elif array.dtype.kind in "iu":
        # In two bytes where they fit: a page has an index for every token of every row.
        array = array.astype(np.uint16 if array.max(initial=0) < 2**16 else np.uint32)
    else:
        array = array.astype(np.float32)
    kind = f"{array.dtype.kind}{array.dtype.itemsize}"
    little = array.astype(array.dtype.newbyteorder("<"))
    return {kind: base64.b64encode(little.tobytes()).decode()}


def turns_of(messages: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return role and text of each message of a conversation, with calls of tools as JSON."""
    turns = []
    for message in messages:
        calls = [json.dumps(call, ensure_ascii=False) for call in message.get("tool_calls") or ()]
        text = "\n".join(filter(None, [message.get("content"), *calls]))
        turns.append((str(message["role"]), text))
    return turns


def write_page(path: Path, kind: str, title: str, data: Mapping[str, Any]) -> int:
    """Write a page and return its size in bytes. Raises OSError if that fails."""
    page = render(kind, title, data).encode("utf-8", "replace")
    storage.write_atomic(path, page)
    return len(page)


def render(kind: str, title: str, data: Mapping[str, Any]) -> str:
    style = (ASSETS / "style.css").read_text("utf-8")
    scripts = [(ASSETS / name).read_text("utf-8") for name in PAGES[kind]]
    script = "\n".join(scripts)
    # Strict: a misspelt name is an error, not an empty place on the page.
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((ASSETS / "page.html").read_text("utf-8"))
    return template.render(
        title=sanitize_for_terminal(title),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=as_json(data),
        # Only a page that is served asks for more.
        connect="connect-src 'self'; " if data.get("live") else "",
        version=__version__,
    )


def as_json(value: Any) -> str:
    """Encode to JSON that is safe in a script element: ``<``, ``>`` and ``&`` are escaped."""
    text = json.dumps(_finite(value), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    # A text with </script> would end the element.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """Replace infinities and NaN by None, since JSON has neither."""
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_finite, value))
    return value.item() if isinstance(value, np.generic) else value


def _hash(text: str) -> str:
    # The page's policy allows a script by the hash of its text, so no other one runs.
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
