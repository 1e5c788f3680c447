"""Trust in records: whether what a file such as run.json names may run (SECURITY.md).

It does where the user names it in the same call, trusts the records of the call, or has written the
record: the digest of its settings is in a file in the user's state folder. Of any other record no
options are taken for code that the user names: one may be an address that gets the user's key.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from paint.core.credentials import redact
from paint.core.errors import ConfigError, format_short, format_value

RECORDS = "own_records"
"""File of the digests, in the user's state folder."""


class UntrustedError(ConfigError):
    """A record names code that nobody vouches for; the message has it, and what to do."""


class Executable(NamedTuple):
    """A "module:name", a command line or an address that a setting names."""

    setting: str
    name: str


@dataclass
class Call:
    """What the user has said in a call of a command."""

    named: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)  # in records of the user's own
    trusted: set[str] = field(default_factory=set)
    trusts: bool = False  # the records of others, too
    told: set[str] = field(default_factory=set)  # messages


# Those under way, the outer ones first: a callback may call a command.
_calls: list[Call] = []
# Names in others' records, each with its record; a config that was read from one may be used later.
_records: dict[str, str] = {}


@contextmanager
def begin_call() -> Iterator[None]:
    """Let names and trust within the block be those of one call of a command."""
    call = Call()
    _calls.append(call)
    try:
        yield
    finally:
        _calls.remove(call)


def vouch_for(names: Iterable[str]) -> None:
    """Take names that the user has given in the call under way."""
    if _calls:
        _calls[-1].named.update(names)


def trust_records() -> None:
    """Take what records name in the call under way, too; each of it is printed before."""
    if _calls:
        _calls[-1].trusts = True


def trusts_records() -> bool:
    return any(call.trusts for call in _calls)


def tell_left_out(
    setting: str, options: Mapping[str, Any], record: object, owners: Iterable[str]
) -> None:
    """Say once which options of a record are not taken for code that the user names."""
    if not options or not any(map(is_asked, owners)):
        return
    listed = ", ".join(f"{key} {format_value(value)}" for key, value in options.items())
    flag = f"--{setting}.{next(iter(options))}".replace("_", "-")
    message = (
        f"{record} was not written by you on this machine: its {setting} are not taken "
        f"({redact(listed)}); give those that you want, such as {flag}"
    )
    if message not in _calls[0].told and os.environ.get("RANK", "0") == "0":
        _calls[0].told.add(message)
        from paint.core.display import Display  # loads rich, which `import paint` need not

        Display().warn(message)


def read_names(names: Iterable[str], record: object, *, is_own: bool) -> None:
    """Take the names of a record of the user's own; of others, those that the user gives."""
    if is_own and _calls:
        _calls[-1].own.update(names)
    if not is_own:
        _records.update(dict.fromkeys(names, str(record)))


def is_asked(name: str) -> bool:
    """Return whether the user has given a name in a call under way, or was shown it."""
    return any(name in call.named | call.trusted for call in _calls)


def is_own(name: str) -> bool:
    """Return whether the user has given a name in a call under way, or has a record with it."""
    return any(name in call.named | call.own for call in _calls)


def require_trusted(codes: Sequence[Executable], way: str = "") -> None:
    """Raise UntrustedError where records name code that nobody vouches for."""
    vouched = set[str]().union(*(call.named | call.own | call.trusted for call in _calls))
    unknown = [code for code in codes if code.name in _records and code.name not in vouched]
    if not unknown:
        return
    listed = ", ".join(f"{code.setting} {format_short(code.name)}" for code in unknown)
    places = " and ".join(sorted({_records[code.name] for code in unknown}))
    if trusts_records():
        if os.environ.get("RANK", "0") == "0":  # one line, whatever the number of ranks
            from paint.core.display import Display

            Display().note(f"trusted, as {places} names it: {listed}")
        _calls[-1].trusted.update(code.name for code in unknown)
        return
    raise UntrustedError(
        f"{places} names code, which would run: {listed}. It was not written by you on this "
        f"machine, or was changed since. Read that code first; then {way and f'{way}, or '}trust "
        f"it with --trust (trust=True)"
    )


def remember(settings: Mapping[str, Any]) -> None:
    """Note that this user has written a record with these settings. Raises OSError."""
    if not is_remembered(settings):
        path = state_folder() / RECORDS
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("a") as file:
            file.write(f"{_digest(settings)}\n")


def is_remembered(settings: Mapping[str, Any]) -> bool:
    """Return whether this user has written a record with these settings on this machine."""
    try:
        return _digest(settings) in (state_folder() / RECORDS).read_text().split()
    except OSError:
        return False


def _digest(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def state_folder() -> Path:
    """Return the user's folder for what outlives a call. Raises OSError where none is known."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError as error:  # a user without a home
        raise OSError(str(error)) from None
    return Path(state) / "paint"
