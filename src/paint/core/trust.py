"""Trust in records: whether what a file such as run.json names may run.

A record is data: its modules, command lines and addresses are used only where

- the user names them in the same call: on the command line, in an argument or in a recipe;
- the user trusts the records of the call (``--trust``, ``trust=True``); or
- the record is signed: this user wrote it on this machine.

Options of what the user names are those of the call: of a record that is neither trusted nor signed
none is taken, since an option may be an address that gets the user's key.

The signature is an HMAC-SHA256 of the record's settings with a key in the user's state folder, so
it outlives a move of the record, and no change of the settings.
"""

import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from paint.core.credentials import redact
from paint.core.errors import ConfigError, format_short, format_value

SIGNATURE = "signature"
"""Key of a record's signature, where it names code."""

KEY_BYTES = 32


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
    signed: set[str] = field(default_factory=set)  # by records of the user's own
    trusted: set[str] = field(default_factory=set)
    trusts: bool = False  # the records of others, too
    left_out: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    # Options of others' records by setting, each with its record.
    told: set[str] = field(default_factory=set)  # messages


_calls: list[Call] = []
# Those under way, the outer ones first: a callback may call a command.
_records: dict[str, str] = {}
# Names that records without a signature have, each with such a record. They stay: a config that was
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


def read_names(names: Iterable[str], record: object, *, signed: bool) -> None:
    """Take the names of a record that is signed, and no others unless the user gives them."""
    if signed and _calls:
        _calls[-1].signed.update(names)
    if not signed:
        _records.update(dict.fromkeys(names, str(record)))


def is_asked(name: str) -> bool:
    """Whether the user has given a name in a call under way, or was shown it."""
    return any(name in call.named | call.trusted for call in _calls)


def is_own(name: str) -> bool:
    """Whether the user has given a name in a call under way, or signed a record that has it."""
    return any(name in call.named | call.signed for call in _calls)


def require_trusted(codes: Sequence[Executable], way: str = "") -> None:
    """Raise UntrustedError where records name some of this, and nobody vouches for it.

    In a call that trusts records, it is printed instead.

    Args:
        codes: what is about to run.
        way: what the user can do in place of trusting the record, for the message.
    """
    vouched = set[str]().union(*(call.named | call.signed | call.trusted for call in _calls))
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


def sign(settings: Mapping[str, Any]) -> str:
    """The signature of a record's settings, by a key that is made at need.

    Raises:
        OSError: there is no key, and none can be written. Its message has the reason.
    """
    path = key_path()
    if not path.exists():
        _write_key(path)
    return _signature(settings, _read_key(path))


def is_signed(settings: Mapping[str, Any], signature: object) -> bool:
    """Whether this user has signed these settings on this machine."""
    if not isinstance(signature, str):
        return False
    try:
        expected = _signature(settings, _read_key(key_path()))
    except OSError:
        return False
    return hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace"))


def key_path() -> Path:
    """The file of the user's key. Raises OSError where no folder for it is known."""
    return state_folder() / "key"


def state_folder() -> Path:
    """The user's folder for what outlives a call. Raises OSError where none is known."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError as error:  # a user without a home
        raise OSError(str(error)) from None
    return Path(state) / "paint"


def _signature(settings: Mapping[str, Any], key: bytes) -> str:
    text = json.dumps(settings, sort_keys=True)
    return hmac.new(key, b"settings of paint\0" + text.encode(), hashlib.sha256).hexdigest()


def _read_key(path: Path) -> bytes:
    """Raises OSError for a file that is no key, or that others can read or have written."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        text = file.read(4 * KEY_BYTES)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError(f"{path} must belong to you, with mode 600")
    try:
        key = bytes.fromhex(text.decode())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise OSError(f"{path} holds no key; delete it")
    return key


def _write_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), 0o600)  # whatever the umask
            file.write(secrets.token_hex(KEY_BYTES).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        # Not a rename, which would replace the key of a process that was faster.
        with suppress(FileExistsError):
            os.link(partial, path)
    finally:
        partial.unlink()
