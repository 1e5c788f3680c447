"""Trust in records: whether what a file such as run.json names may run.

A record is data: its modules, command lines and addresses are used only where

- the user names them in the same call: on the command line, in an argument or in a recipe;
- the user trusts the records of the call (``--trust``, ``trust=True``); or
- the record is the user's own: this user wrote its settings on this machine.

Options of what the user names are those of the call: of a record that is neither trusted nor one's
own none is taken, since an option may be an address that gets the user's key.

The digests of the settings that a user has written are in a file in the user's state folder, so it
does not matter where the record lies, and changed settings are others.
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
    """What a setting names that may run: a "module:name", a command line, or an address."""

    setting: str
    name: str


@dataclass
class Call:
    """What the user has said in a call of a command."""

    named: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)  # in records of the user's own
    trusted: set[str] = field(default_factory=set)
    trusts: bool = False  # the records of others, too
    left_out: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    # Options of others' records by setting, each with its record.
    told: set[str] = field(default_factory=set)  # messages


_calls: list[Call] = []
# Those under way, the outer ones first: a callback may call a command.
_records: dict[str, str] = {}
# Names that records of others have, each with such a record. They stay: a config that was
# read from one may be used later.


@contextmanager
def begin_call() -> Iterator[None]:
    """Within the block, names and trust are those of one call of a command."""
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
    """Whether a call under way takes what records name."""
    return any(call.trusts for call in _calls)


def leave_out_options(setting: str, options: Mapping[str, Any], record: object) -> None:
    """Note the options, such as those of grading.options, that are not taken from a record."""
    if _calls:
        _calls[-1].left_out[setting] = (str(record), options)


def tell_left_out(setting: str, in_force: Mapping[str, Any]) -> None:
    """Say which options of a record were not taken, where others are in force; once in a call."""
    for call in _calls:
        record, options = call.left_out.pop(setting, ("", {}))
        others = {key: value for key, value in options.items() if in_force.get(key, value) != value}
        if not others:
            continue
        listed = ", ".join(f"{key} {format_value(value)}" for key, value in others.items())
        flag = f"--{setting}.{next(iter(others))}".replace("_", "-")
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
    """Whether the user has given a name in a call under way, or was shown it."""
    return any(name in call.named | call.trusted for call in _calls)


def is_own(name: str) -> bool:
    """Whether the user has given a name in a call under way, or has a record with it."""
    return any(name in call.named | call.own for call in _calls)


def require_trusted(codes: Sequence[Executable], way: str = "") -> None:
    """Raise UntrustedError where records name some of this, and nobody vouches for it.

    In a call that trusts records, it is printed instead.

    Args:
        codes: what is about to run.
        way: what the user can do in place of trusting the record, for the message.
    """
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
    """Note that this user has written a record with these settings on this machine.

    Raises OSError where it cannot be noted; its message has the reason.
    """
    if not is_remembered(settings):
        path = state_folder() / RECORDS
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("a") as file:
            file.write(f"{_digest(settings)}\n")


def is_remembered(settings: Mapping[str, Any]) -> bool:
    """Whether this user has written a record with these settings on this machine."""
    try:
        return _digest(settings) in (state_folder() / RECORDS).read_text().split()
    except OSError:
        return False


def _digest(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def state_folder() -> Path:
    """The user's folder for what outlives a call. Raises OSError where none is known."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError as error:  # a user without a home
        raise OSError(str(error)) from None
    return Path(state) / "paint"
