"""Plain values as JSON, which is all that crosses between tests and tested code.

Numbers, texts, bytes, None, lists, tuples, dicts, sets, ranges, dates, fractions, decimals and the
containers of ``collections`` cross with their exact types, and named tuples with their names. An
instance of a subclass crosses as its base: what the tests compare is never an object whose methods
the tested code wrote. Anything else is the caller's business: an object stays where it is, and the
other side gets a number for it.

Lists, dicts and sets have numbers within a message. So a list that stands in two places is one
list on the other side, too, and a call's arguments are found again in its reply.
"""

import builtins
import datetime
import enum
import functools
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

EXACT_IN_JSON = 2**53
TYPES = {name: kind for name, kind in vars(builtins).items() if isinstance(kind, type)}
_NAMES: dict[Any, str] = {kind: name for name, kind in TYPES.items()}

Known = dict[int, Any]
"""Lists, dicts and sets of a message by their numbers."""

# Subclasses before their bases.
_MUTABLE: dict[str, type] = {
    "counter": Counter,
    "ordered": OrderedDict,
    "default": defaultdict,
    "deque": deque,
    "list": list,
    "dict": dict,
    "set": set,
    "bytearray": bytearray,
}


@functools.cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """The class of named tuples. Raises ValueError for what are no names."""
    return namedtuple(name, fields)


class PlainEncoder:
    """Makes JSON of the values of one message.

    Args:
        refer: what stands for an object that is not plain, as JSON.
        known: lists, dicts and sets that the other side has, by their numbers.
    """

    def __init__(self, refer: Callable[[Any], Any], known: Mapping[int, Any] | None = None) -> None:
        self._refer = refer
        # The values are kept, too: a number is that of an object as long as the object lives.
        self.known: Known = dict(known or {})
        self._numbers = {id(value): number for number, value in self.known.items()}

    def encode(self, value: Any) -> Any:
        """A value as JSON."""
        if value is None or value is True or value is False:
            return value
        if isinstance(value, enum.Enum):
            return self._refer(value)
        if isinstance(value, int):
            value = int(value)
            return value if abs(value) < EXACT_IN_JSON else ["int", hex(value)]
        if isinstance(value, float):
            return float(value)
        if isinstance(value, str):
            return str.__str__(value)
        for tag, kind in _MUTABLE.items():
            if isinstance(value, kind):
                if id(value) in self._numbers:
                    return ["known", self._numbers[id(value)]]
                number = len(self.known)
                self.known[number] = value
                self._numbers[id(value)] = number
                return [tag, number, *self.content(value)]
        return self._encode_immutable(value)

    def _encode_immutable(self, value: Any) -> Any:
        if isinstance(value, tuple):
            items = [*map(self.encode, tuple.__iter__(value))]
            fields = getattr(type(value), "_fields", None)
            if isinstance(fields, tuple) and len(fields) == len(items):  # a named tuple
                return ["named", type(value).__name__, list(map(str, fields)), *items]
            return ["tuple", *items]
        if isinstance(value, frozenset):
            return ["frozenset", *map(self.encode, frozenset.__iter__(value))]
        if isinstance(value, bytes):
            return ["bytes", value.hex()]
        if isinstance(value, complex):
            return ["complex", value.real, value.imag]
        if isinstance(value, range):
            return ["range", *map(self.encode, (value.start, value.stop, value.step))]
        if isinstance(value, Fraction):
            return ["fraction", self.encode(value.numerator), self.encode(value.denominator)]
        if isinstance(value, Decimal):
            return ["decimal", str(value)]
        if isinstance(value, datetime.timedelta):
            return ["timedelta", value.days, value.seconds, value.microseconds]
        if isinstance(value, datetime.datetime):
            return ["datetime", value.isoformat(), value.fold]
        if isinstance(value, datetime.date):
            return ["date", value.isoformat()]
        if isinstance(value, datetime.time):
            return ["time", value.isoformat(), value.fold]
        if isinstance(value, type) and value in _NAMES:
            return ["type", _NAMES[value]]
        if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            return self.encode(value.item())  # a number of numpy
        return self._refer(value)

    def content(self, value: Any) -> list[Any]:
        """What a list, dict, set, deque or bytearray holds."""
        if isinstance(value, bytearray):
            return [value.hex()]
        if isinstance(value, defaultdict):
            factory = value.default_factory
            return [_NAMES.get(factory, "") if factory else "", *self._pairs(value)]
        if isinstance(value, deque):
            return [value.maxlen, *map(self.encode, value)]
        if isinstance(value, dict):
            return self._pairs(value)
        base = list if isinstance(value, list) else set
        return [self.encode(item) for item in base.__iter__(value)]

    def _pairs(self, value: dict[Any, Any]) -> list[Any]:
        return [[self.encode(k), self.encode(v)] for k, v in dict.items(value)]


class PlainDecoder:
    """Makes values of a message's JSON.

    Args:
        find: the object that a tag of the other side's ``refer`` stands for.
        known: lists, dicts and sets that this side has, by their numbers.
    """

    def __init__(self, find: Callable[[list[Any]], Any], known: Known | None = None) -> None:
        self._find = find
        self.known: Known = {} if known is None else known

    def decode(self, message: Any) -> Any:
        """The value of JSON. Raises ValueError, TypeError or the like where it is none."""
        if not isinstance(message, list):
            if isinstance(message, dict):
                raise ValueError("a value of no kind")
            return message
        tag, *content = message
        if tag == "known":
            return self.known[content[0]]
        if tag in _MUTABLE:
            number, *content = content
            value = _MUTABLE[tag]()
            if tag == "default":
                value = defaultdict(TYPES.get(content[0]))
            elif tag == "deque":
                value = deque(maxlen=content[0])
            self.known[number] = value
            self.fill(value, content)
            return value
        return self._decode_immutable(tag, content, message)

    def _decode_immutable(self, tag: str, content: list[Any], message: list[Any]) -> Any:
        match tag:
            case "int":
                return int(content[0], 16)
            case "tuple":
                return tuple(map(self.decode, content))
            case "named":
                name, fields, *items = content
                return _named_tuple(name, tuple(fields))(*map(self.decode, items))
            case "frozenset":
                return frozenset(map(self.decode, content))
            case "bytes":
                return bytes.fromhex(content[0])
            case "complex":
                return complex(*content)
            case "range":
                return range(*map(self.decode, content))
            case "fraction":
                return Fraction(*map(self.decode, content))
            case "decimal":
                return Decimal(content[0])
            case "timedelta":
                return datetime.timedelta(*content)
            case "datetime":
                return datetime.datetime.fromisoformat(content[0]).replace(fold=content[1])
            case "date":
                return datetime.date.fromisoformat(content[0])
            case "time":
                return datetime.time.fromisoformat(content[0]).replace(fold=content[1])
            case "type":
                return TYPES[content[0]]
        return self._find(message)

    def fill(self, value: Any, content: Iterable[Any]) -> None:
        """Put the content that ``PlainEncoder.content`` made in place of what a value holds."""
        content = list(content)
        if isinstance(value, bytearray):
            value[:] = bytes.fromhex(content[0])
            return
        if isinstance(value, list):
            value[:] = map(self.decode, content)
            return
        if isinstance(value, defaultdict | deque):
            content = content[1:]
        value.clear()
        if isinstance(value, dict):
            for k, v in content:
                value[self.decode(k)] = self.decode(v)
        elif isinstance(value, deque):
            value.extend(map(self.decode, content))
        else:
            value.update(map(self.decode, content))
