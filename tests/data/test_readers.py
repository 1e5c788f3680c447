"""Rows: each kind of file gives its cells as they stand there, and says which row is bad."""

import decimal
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paint.config.schema import DataConfig
from paint.data.problems import read_problems
from paint.data.readers import BadRow, DataError, Number, read_hub, read_rows


def rows_of(path: Path) -> list[tuple[int, Any]]:
    rows = read_rows(path)
    return [(row, str(cells) if isinstance(cells, BadRow) else cells) for row, cells in rows]


def refusal(source: Path | str) -> str:
    with pytest.raises(DataError) as caught:
        list(read_rows(source))
    return str(caught.value)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def test_read_csv_rows_keep_their_cells_and_are_numbered_by_record(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbfa,"b ""c"""\r\n"1\r\n2",\xe2\x80\xa8\r\n\r\n0.10,"x,y"\r\n,\r\n3,\r\n'
    path = write(tmp_path / "p.csv", content)
    assert rows_of(path) == [
        (1, {"a": "1\r\n2", 'b "c"': "\u2028"}),
        (2, {"a": "0.10", 'b "c"': "x,y"}),
        (4, {"a": "3", 'b "c"': ""}),  # a record without text is one, a blank line is none
    ]
    frame = pd.read_csv(path, dtype=str)
    assert [(row, cells["a"]) for row, cells in rows_of(path)] == [
        (place + 1, text) for place, text in frame["a"].items() if isinstance(text, str)
    ]


@pytest.mark.parametrize("line", ["1", "1,2,3"])
def test_read_csv_wrong_cell_count_is_bad_and_next_row_is_read(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "p.csv", f"a,b\n007,0.10\n{line}\n9,{'9' * 200_000}\n".encode())
    first, bad, last = read_rows(path)
    assert (first, last) == ((1, {"a": "007", "b": "0.10"}), (3, {"a": "9", "b": "9" * 200_000}))
    assert bad[0] == 2
    assert str(bad[1]) == (
        f"wrong number of cells: {line.count(',') + 1}, up to line 3, where the first record names "
        f"2 columns; columns are separated by commas"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,a\n1,2\n", "two columns have one name"),
        (b'a,b\n0,0\n1,"2"3\n9,9\n', "row 2 (line 3) or later: "),
        (b'a,b\n0,0\n1,"2\n9,9\n', "or later: unexpected end of data"),
        ("a,b\n1,2\n".encode("utf-16"), "or later: 'utf-8' codec"),
    ],
)
def test_read_csv_damaged_is_refused_by_row(tmp_path: Path, content: bytes, message: str) -> None:
    assert message in refusal(write(tmp_path / "p.csv", content))


def test_read_tsv_columns_are_separated_by_tabs(tmp_path: Path) -> None:
    path = write(tmp_path / "p.tsv", b'problem\ta,b\n"1, 2\tor 3?"\t4\n')
    assert rows_of(path) == [(1, {"problem": "1, 2\tor 3?", "a,b": "4"})]


@pytest.mark.parametrize(
    ("name", "sign"), [("p.csv", ";"), ("p.csv", "\t"), ("p.csv", "|"), ("p.tsv", ",")]
)
def test_read_csv_with_another_separator_is_refused(tmp_path: Path, name: str, sign: str) -> None:
    path = write(tmp_path / name, f"a{sign}b\n1{sign}2\n".encode())
    assert f"its first record is {f'a{sign}b'!r}; write the file again" in refusal(path)


def test_read_json_list_numbers_its_rows_and_keeps_digits(tmp_path: Path) -> None:
    text = b'\xef\xbb\xbf \n[{"answer": 0.10},\n 3,\n {"answer": "x"}]\n'
    first, bad, last = read_rows(write(tmp_path / "p.json", text))
    assert (first, last) == ((1, {"answer": "0.10"}), (3, {"answer": "x"}))
    assert str(bad[1]) == "not a JSON object but a number"
    lines = write(tmp_path / "lines.json", b'{"a": "1"}\n{"a": "2"}\n')
    assert [row for row, _ in read_rows(lines)] == [1, 2]


def test_read_parquet_numbers_keep_digits_and_null_is_none(tmp_path: Path) -> None:
    path = parquet(
        tmp_path / "p.parquet",
        integer=pa.array([2**63, None], pa.uint64()),
        decimal=[decimal.Decimal("1.50"), decimal.Decimal("-0.25")],
        real=[4.0, 0.1],
        small=pa.array([0.1, float("nan")], pa.float32()),
        text=pa.array(["x", None]).dictionary_encode(),
        true=[True, False],
        list=[[1], []],
    )
    first, second = (fields for _, fields in rows_of(path))
    numbers = {"integer": "9223372036854775808", "decimal": "1.50", "real": "4", "small": "0.1"}
    assert first == numbers | {"text": "x", "true": True, "list": [1]}
    assert {type(first[name]) for name in numbers} == {Number} != {type(first["text"])}
    assert (second["integer"], second["text"], second["real"]) == (None, None, "0.1")
    assert second["small"] != second["small"]  # not a number, so no Number


def test_read_parquet_damaged_file_is_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path / "p.parquet", a=[1, 2, 3])
    content = path.read_bytes()
    for broken in (b"", content[:90], b"PAR1" + bytes(90) + b"PAR1"):
        assert refusal(write(path, broken)).startswith(f"{path}: ")


def test_read_hub_streams_rows_like_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "copy"
    (folder / "data").mkdir(parents=True)
    train, test = (folder / f"data/{name}-00000-of-00001.parquet" for name in ("train", "test"))
    parquet(train, problem=["a", "b"], Answer=[7, 8], solution=["s", "t"])
    parquet(test, problem=["c"], Answer=[9], solution=["u"])
    assert [fields for _, fields in read_hub(str(folder), None, "test")] == [
        {"problem": "c", "Answer": "9", "solution": "u"}
    ]

    load, asked = datasets.load_dataset, []

    def from_folder(*names: Any, **options: Any) -> Any:
        asked.append((*names, options))
        return load(str(folder), **options)

    monkeypatch.setattr(datasets, "load_dataset", from_folder)
    found = read_problems(DataConfig(path="owner/some.name-1")).problems
    assert [(p.id, p.problem, p.answer) for p in found] == [("1", "a", "7"), ("2", "b", "8")]
    assert len(read_problems(DataConfig(path="owner/name:config@test")).problems) == 1
    without_code = {"streaming": True, "trust_remote_code": False}
    assert asked == [
        ("owner/some.name-1", None, {"split": "train", **without_code}),
        ("owner/name", "config", {"split": "test", **without_code}),
    ]
    with pytest.raises(DataError, match=r"owner/name@nowhere\b.*split"):
        read_problems(DataConfig(path="owner/name@nowhere"))


def test_read_hub_unreachable_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"nobody/nothing@train\b.*reach"):
        list(read_rows("nobody/nothing"))

    monkeypatch.chdir(tmp_path)
    # An ending makes it a file.
    assert refusal("folder/p.jsonl").startswith("folder/p.jsonl does not exist")

    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert refusal("owner/name").startswith("owner/name is a folder")
