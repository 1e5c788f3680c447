"""Mixtures: the order of their problems, their rows, and their settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paint.config.recipe import from_table, to_table
from paint.config.schema import DataConfig
from paint.data.benchmarks import require_distinct
from paint.data.mixtures import draw_problems, first_problems
from paint.data.problems import (
    DataError,
    Problem,
    batch_indices,
    from_row,
    problems_digest,
    read_problems,
    row_of,
    to_row,
)
from paint.resolve.check import check_config
from runs import write_problems

NAMES = "abcd"


def rows(name: str, count: int) -> list[dict[str, Any]]:
    return [{"problem": f"{name}{i}?", "solution": "s", "answer": str(i)} for i in range(count)]


def sources(folder: Path, **counts: int) -> tuple[str, ...]:
    """A file of so many rows for each name."""
    paths = []
    for name, count in counts.items():
        paths.append(write_problems(folder / f"{name}.jsonl", rows(name, count)))
    return tuple(paths)


def mixed(counts: Sequence[int], weights: Sequence[float]) -> tuple[list[Problem], DataConfig]:
    names = NAMES[: len(counts)]
    problems = [
        Problem("", "", "", f"{name}/{i}", source=name)
        for name, count in zip(names, counts, strict=True)
        for i in range(count)
    ]
    paths = tuple(f"{name}.jsonl" for name in names)
    return problems, DataConfig(path=paths, weights=tuple(map(float, weights)))


WEIGHTS = st.lists(
    st.one_of(st.integers(1, 9), st.floats(0.01, 100)), min_size=2, max_size=len(NAMES)
)


@given(WEIGHTS, st.data(), st.integers(0, 3))
def test_draw_keeps_shares_at_any_time_and_each_source_in_its_own_order(
    weights: list[float], data: st.DataObject, seed: int
) -> None:
    counts = [data.draw(st.integers(1, 7)) for _ in weights]
    problems, config = mixed(counts, weights)
    drawn = [i for step in range(10) for i in draw_problems(problems, config, 6, step, seed)]
    # The stream does not depend on how it is cut into steps, nor on what was drawn before.
    assert drawn == draw_problems(problems, config, 60, 0, seed)
    assert drawn[24:30] == draw_problems(problems, config, 6, 4, seed)
    names = [problems[i].source for i in drawn]
    for name, weight, count in zip(NAMES, weights, counts, strict=False):
        share = weight / sum(weights)
        for end in range(1, 61):
            assert names[:end].count(name) < end * share + 1
        own = [int(problems[i].id[2:]) for i in drawn if problems[i].source == name]
        assert own == (batch_indices(count, len(own), 0, seed) if own else [])


def test_draw_of_three_sources_is_that_of_every_version() -> None:
    problems, config = mixed([4, 4, 4], [3, 2, 1])
    first = [
        [problems[i].id for i in draw_problems(problems, config, 6, step, 0)] for step in range(2)
    ]
    assert first == [
        ["a/0", "b/0", "a/3", "c/0", "b/3", "a/1"],
        ["a/2", "b/1", "a/3", "c/3", "b/2", "a/1"],
    ]


def test_draw_of_one_source_is_the_order_without_mixtures() -> None:
    problems = [Problem("", "", "", str(i)) for i in range(10)]
    config = DataConfig(path="a.jsonl")
    for step in range(4):
        assert draw_problems(problems, config, 3, step, 0) == batch_indices(10, 3, step, 0)


def test_read_problems_of_sources_have_their_names_and_ids(tmp_path: Path) -> None:
    config = DataConfig(path=sources(tmp_path, a=3, b=2), limit=2)
    problems = read_problems(config).problems
    assert [(p.id, p.source, p.row) for p in problems] == [
        ("a/1", "a", 1),
        ("a/2", "a", 2),
        ("b/1", "b", 1),
        ("b/2", "b", 2),
    ]
    assert [row_of(p)["data_source"] for p in problems] == ["a", "a", "b", "b"]
    assert [from_row(to_row(p)).source for p in problems] == ["a", "a", "b", "b"]
    alone = read_problems(DataConfig(path=config.paths[0])).problems[0]
    assert (alone.id, alone.source, "data_source" in row_of(alone)) == ("1", "", False)


def test_row_of_mixture_keeps_a_column_of_the_row(tmp_path: Path) -> None:
    named = write_problems(tmp_path / "a.jsonl", [rows("a", 1)[0] | {"data_source": "own"}])
    problems = read_problems(DataConfig(path=(named, *sources(tmp_path, b=1)))).problems
    assert [row_of(p)["data_source"] for p in problems] == ["own", "b"]


def test_problems_digest_covers_every_source(tmp_path: Path) -> None:
    a, b = sources(tmp_path, a=2, b=2)
    digests = {problems_digest(read_problems(DataConfig(path=p)).problems) for p in ((a, b), a, b)}
    write_problems(tmp_path / "b.jsonl", rows("c", 2))
    digests.add(problems_digest(read_problems(DataConfig(path=(a, b))).problems))
    assert len(digests) == 4


def test_read_problems_that_two_sources_hold_is_refused_by_both_places(tmp_path: Path) -> None:
    a, b = sources(tmp_path, a=3, b=2)
    write_problems(tmp_path / "b.jsonl", [*rows("b", 1), *rows("a", 2)[1:]])
    with pytest.raises(DataError) as caught:
        read_problems(DataConfig(path=(a, b)))
    for part in (f"{b} row 2", f"row 2 of {a}", "a1?"):
        assert part in str(caught.value)
    left = read_problems(DataConfig(path=(a, b), on_bad_row="skip"))
    assert (len(left.problems), left.skipped) == (4, {"b: same problem as an earlier row": 1})


def test_require_distinct_refuses_sets_of_one_name() -> None:
    require_distinct(["a.jsonl", "b/b.csv:question,gold", "gsm8k", "aime_2024=a.jsonl", "o/n:main"])
    for one, other in (("a/x.jsonl", "b/x.csv:q,g"), ("o/n:main", "n.jsonl"), ("demo", "demo=x")):
        with pytest.raises(DataError, match="both named"):
            require_distinct([one, other])


@pytest.mark.parametrize(
    ("given", "path", "weights"),
    [
        ({"path": ["a.jsonl", "b.jsonl"]}, ("a.jsonl", "b.jsonl"), ()),
        ({"path": ["a.jsonl", "b.jsonl"], "weights": [2, 1]}, ("a.jsonl", "b.jsonl"), (2.0, 1.0)),
        ({"path": ["o/n:main", "o/n:socratic@test"]}, ("o/n:main", "o/n:socratic@test"), ()),
    ],
)
def test_sources_of_recipe_are_paths_and_weights(
    given: Mapping[str, Any], path: Any, weights: Any
) -> None:
    # Another recipe's weights are none of these sources'.
    base = from_table({"data": {"path": ["x.jsonl", "y.jsonl", "z.jsonl"], "weights": [1, 2, 3]}})
    config = from_table({"data": given}, base=base)
    assert (config.data.path, config.data.weights) == (path, weights)
    assert check_config(from_table(to_table(config))).config.data == config.data


def test_first_problems_are_those_of_a_run_in_the_shares_of_a_mixture_each_once() -> None:
    problems, data = mixed((40, 3), (3.0, 1.0))
    first = first_problems(problems, data, 20, 7)
    drawn = [problems[i] for i in draw_problems(problems, data, 20, 0, 7)]
    assert first == list(dict.fromkeys(drawn))
    # 15 of the first; the three of the second, which come again in a run, once each.
    assert [len([row for row in first if row.source == name]) for name in "ab"] == [15, 3]
    alone = DataConfig(path="a")
    of_one = first_problems(problems[:40], alone, 99, 7)
    assert of_one == [problems[i] for i in batch_indices(40, 40, 0, 7)]
