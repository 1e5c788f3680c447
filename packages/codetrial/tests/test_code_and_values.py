"""What of a completion is code, which names tests ask of it, and which values cross."""

import collections
import datetime
import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from codetrial.extract import code_before_text, code_of, complete_tests, names_of_code
from codetrial.plain import PlainDecoder, PlainEncoder

CHECK = "def check(candidate):\n    assert candidate(encode('abc')) == 'abc'\n"


def test_code_is_last_block_of_python_that_defines_a_name() -> None:
    first, second = "def f(): return 1\n", "def f(): return 2\n"

    def chosen(text: str) -> str | None:
        code = code_of(text, ["f"])
        return code and code.parts[-1]

    python = "```python\n{}```\n"
    assert chosen(python.format(first) + python.format(second)) == second
    assert chosen(python.format(first) + python.format("print(f())\n")) == first
    assert chosen(python.format(first) + "```\n1\n```") == first
    assert chosen("```bash\nls\n```\n```\nx = 1\n```") == "x = 1\n"
    assert chosen("```bash\nls\n```") is None
    assert (
        chosen("1. So:\n   ```py\n   def f():\n     return 1\n   ```") == "def f():\n  return 1\n"
    )
    assert chosen("~~~~Python3 title\nf = 1\n~~~\n~~~~") == "f = 1\n~~~\n"
    assert chosen(python.format(first) + "```python\ndef f():") == first


def test_code_before_text_ends_where_python_ends() -> None:
    assert code_before_text("x = 1\ny = 2\nSo it is.\nz = 3") == "x = 1\ny = 2"
    assert code_before_text("x = 1\ny = (2,") == "x = 1"
    assert code_before_text("Say it") == ""
    assert code_before_text("x = 1") == "x = 1"


def test_names_that_tests_ask_of_the_code() -> None:
    assert names_of_code("import math\nassert math.pi == f(x=1)[g()]") == ["f", "g"]
    assert names_of_code("def check(candidate):\n    assert candidate(1)\ncheck(candidate)") == [
        "candidate"
    ]
    assert names_of_code("assert sum(1, 2) == 3\nassert sum(2, 3) == 5") == ["sum"]
    assert names_of_code("assert set(sum(1, 2)) == {3}") == []
    assert names_of_code("for f in [1]:\n    assert f") == []
    assert complete_tests(CHECK, "decode").endswith("check(decode)\n")
    assert complete_tests(f"{CHECK}\ncheck(decode)", "decode").count("check(") == 2


JSON_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.fractions()
    | st.complex_numbers(allow_nan=False)
    | st.dates()
    | st.datetimes()
    | st.timedeltas(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.tuples(inner, inner)
        | st.frozensets(st.integers())
        | st.sets(st.text())
    ),
    max_leaves=20,
)


@given(JSON_LIKE)
def test_plain_values_cross_as_they_are(value: Any) -> None:
    crossed = cross(value)
    assert crossed == value
    assert exact(crossed) == exact(value)


def exact(value: Any) -> Any:
    """A value with the types in it: 1, 1.0 and True differ."""
    content: Any = repr(value)
    if isinstance(value, dict):
        content = tuple((exact(k), exact(v)) for k, v in value.items())
    elif isinstance(value, set | frozenset):
        content = frozenset(map(exact, value))
    elif isinstance(value, list | tuple):
        content = tuple(map(exact, value))
    return type(value), content


def cross(value: Any) -> Any:
    def refuse(other: Any) -> Any:
        raise AssertionError(other)

    message = json.loads(json.dumps(PlainEncoder(refuse).encode(value)))
    return PlainDecoder(refuse).decode(message)


def test_special_values_cross_as_they_are() -> None:
    values = [
        collections.Counter("aab"),
        collections.OrderedDict(b=1, a=2),
        collections.deque([1, 2], maxlen=3),
        collections.defaultdict(list, a=[1]),
        bytearray(b"x"),
        Decimal("1.10"),
        Fraction(1, 3),
        datetime.time(1, 2),
        2**5000,
        -0.0,
        math.inf,
        "\ud800",
        ValueError,
    ]
    for value in values:
        crossed = cross(value)
        assert (type(crossed), repr(crossed)) == (type(value), repr(value))
    cyclic: list[Any] = [1]
    cyclic.append(cyclic)
    crossed = cross(cyclic)
    assert crossed[1] is crossed
    pair = cross([[]] * 2)
    assert pair[0] is pair[1]


class Odd(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def test_instance_of_a_subclass_crosses_as_its_base() -> None:
    class Texts(list[str]):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None

    assert type(cross(Odd(3))) is int
    assert cross(Odd(3)) != 4
    assert type(cross(Texts("ab"))) is list
