"""One HTML file that opens anywhere: the data as JSON, the assets in it, nothing from elsewhere.

Whatever a model or a file says is data. It is written as JSON that holds no ``<``, and the scripts
put it on the page as text; a policy in the page's head lets a browser run these scripts alone and
fetch nothing.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from paint.core import storage

ASSETS = resources("paint.viewer") / "assets"

PAGES = {
    "run": ("base.js", "charts.js", "tokens.js", "run.js"),
    "evaluation": ("base.js", "charts.js", "evaluation.js"),
    "compare": ("base.js", "charts.js", "compare.js"),
}
"""The scripts of each page, in order."""


class TokenTable:
    """The tokens that a page shows, each once."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}

    def add(self, ids: Sequence[int]) -> np.ndarray:
        """The tokens' places on the page."""
        places = self.places
        return np.array([places.setdefault(int(i), len(places)) for i in ids], np.uint32)

    @property
    def ids(self) -> list[int]:
        return list(self.places)


def text_of(piece: bytes) -> str:
    """The text of a token; a byte that is no letter is half a surrogate pair, which no text has."""
    return piece.decode("utf-8", "surrogateescape")


def packed(values: Any) -> dict[str, str]:
    """Numbers as base64 of their bytes in little endian, in as few as hold them."""
    array = np.asarray(values)
    if array.dtype == bool:
        array = array.astype(np.uint8)
    elif array.dtype.kind in "iu":
        array = array.astype(np.uint16 if array.max(initial=0) < 2**16 else np.uint32)
    else:
        array = array.astype(np.float32)
    kind = f"{array.dtype.kind}{array.dtype.itemsize}"
    little = array.astype(array.dtype.newbyteorder("<"))
    return {kind: base64.b64encode(little.tobytes()).decode()}


def write_page(path: Path, kind: str, title: str, data: Mapping[str, Any]) -> int:
    """Write a page and return its size in bytes.

    Raises:
        OSError: it cannot be written.
    """
    page = render(kind, title, data).encode("utf-8", "replace")
    storage.write_atomic(path, page)
    return len(page)


def render(kind: str, title: str, data: Mapping[str, Any]) -> str:
    """The page as text."""
    style = (ASSETS / "style.css").read_text("utf-8")
    script = "\n".join((ASSETS / name).read_text("utf-8") for name in PAGES[kind])
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((ASSETS / "page.html").read_text("utf-8"))
    return template.render(
        title=title,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=as_json(data),
        version=version("paint"),
    )


def as_json(value: Any) -> str:
    """JSON that may stand in a script element: whatever it says, it ends nothing."""
    text = json.dumps(_finite(value), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """The same without infinities and NaN, which JSON cannot say."""
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
