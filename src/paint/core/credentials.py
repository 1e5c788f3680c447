"""Secrets: settings that would hold one, values of the environment, messages without either.

Settings are written to run.json, logs, pages and cards. An option of an extension names an
environment variable in place of a secret, ``env:JUDGE_API_KEY``, which is read where the extension
is used. A secret is recognised by its name alone: api_key, token, password or secret.
"""

import os
import re
from collections.abc import Sequence
from typing import Any

REFERENCE = re.compile(r"env:([A-Za-z_]\w*)", re.ASCII)

_NAME = r"(?:[\w-]*[_-])?(?:api[_-]?key|password|secret)|(?:(?:api|auth|access|hf)[_-])?token"
_SECRET = re.compile(_NAME, re.IGNORECASE)
# A flag of a command line, a variable of it, or a part of an address's query. $NAME is none.
_GIVEN = re.compile(rf"--(?:{_NAME})[=\s]\s*[^\s$]|(?<![\w-])(?:{_NAME})=[^\s$<{{]", re.IGNORECASE)
_LOGIN = re.compile(r"://[^\s/?#@:]*:[^\s/?#@]+@")
_NO_KEY = {"", "EMPTY"}  # what an endpoint without a key wants in the place of one

_QUERY = re.compile(r"([a-z][a-z\d+.-]*://[^\s?\"'<>]*)\?[^\s\"'<>]*", re.IGNORECASE)
_USER = re.compile(r"\b([a-z][a-z\d+.-]*://)[^\s/?#\"'<>]*@", re.IGNORECASE)

_read: dict[str, str] = {}
# Values that this process has read from its environment, with what stands for them in messages.


def secret_in(name: str, value: Any) -> str:
    """Say, without the value, why a setting would hold a secret; "" if it holds none."""
    items = value if isinstance(value, tuple | list) else (value,)
    for item in items:
        if isinstance(item, bool) or not isinstance(item, str | int):
            continue
        if item in _NO_KEY or is_reference(item):
            continue
        if _SECRET.fullmatch(name.rpartition(".")[2]):
            return "its name is that of a secret"
        if isinstance(item, str) and _LOGIN.search(item):
            return "it has a password before an @"
        if isinstance(item, str) and _GIVEN.search(item):
            return "it gives what has the name of a secret"
    return ""


def recorded_line(line: Sequence[str]) -> list[str]:
    """Return a command line without what seems to be secrets."""
    recorded, flag = [], ""
    for word in line:
        value = word
        if word.startswith("--"):  # of --name=value, the value is the part after the equals sign
            flag, _, value = word[2:].partition("=")
        is_secret = value and secret_in(flag.replace("-", "_"), value)
        recorded.append(word.replace(value, "(a secret)") if is_secret else redact(word))
    return recorded


def is_reference(value: Any) -> bool:
    """Return whether a value of an option, or one in a list, is read from the environment."""
    items = value if isinstance(value, tuple) else (value,)
    return any(isinstance(item, str) and REFERENCE.fullmatch(item) for item in items)


def read_references(value: Any) -> Any:
    """Return a value of an option, with the environment's in place of ``env:NAME``.

    Raises KeyError with the name of a variable that is not set.
    """
    if isinstance(value, tuple):
        return tuple(map(read_references, value))
    found = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value
    secret = os.environ[found[1]]
    if len(secret) >= 4:  # a shorter one would be cut out of every message
        _read[secret] = value
    return secret


def hide_values(text: str) -> str:
    """Put ``env:NAME`` for each value that this process has read from its environment."""
    for secret in sorted(_read, key=len, reverse=True):
        text = text.replace(secret, _read[secret])
    return text


def redact(text: str) -> str:
    """``hide_values``, and cut user, password and query from addresses."""
    return _QUERY.sub(r"\1", _USER.sub(r"\1", hide_values(text)))
