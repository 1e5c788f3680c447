"""The example of a database's schema, on a small database and the embedded model."""

import csv
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from schema.geoquery import main as make_geoquery
from schema.run import BASE, PROMPTED, Options, main
from schema.sql_grader import grade

from paint.config.schema import ConfigError, ModelConfig
from paint.models.policy import load_policy
from runs import stored

TOWNS = [("yuma", "arizona", 42_433), ("mesa", "arizona", 152_453), ("provo", "utah", 74_111)]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    with sqlite3.connect(folder / "database.sqlite") as database:
        database.execute("create table towns (town text collate nocase, region text, people)")
        database.executemany("insert into towns values (?, ?, ?)", TOWNS)
    (folder / "guide.txt").write_text("towns(town, region, people), as {{ people }}\n")
    rows = []
    for number in range(12):
        split = ("train", "dev", "test")[number % 3]
        town, _, people = TOWNS[number % 3]
        query = f"SELECT people FROM towns WHERE town = '{town}'"
        row = {
            "id": f"q{number}",
            "split": split,
            "problem": f"{number}: people of {town}, not {people}",
        }
        rows.append({**row, "answer": query})
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    monkeypatch.setenv("SQL_DATABASE", str(folder / "database.sqlite"))
    return folder


@pytest.mark.parametrize(
    ("completion", "reward", "runs"),
    [
        ("SELECT people FROM towns WHERE town = 'Mesa'", 1, 1),
        ("```sql\nselect people + 0.0 from towns where town = 'mesa';\n```", 1, 1),
        ("SELECT people FROM towns WHERE town = 'mesa'; DROP TABLE towns", 1, 1),
        ("SELECT people FROM towns", 0, 1),
        ("SELECT people, town FROM towns WHERE town = 'mesa'", 0, 1),
        ("SELECT count FROM cities", 0, 0),
        ("DROP TABLE towns", 0, 0),
        ("", 0, 1),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n", 0, 1),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT max(i) FROM n", 0, 0),
    ],
)
def test_sql_grader_compares_what_queries_return(
    data: Path, completion: str, reward: float, runs: float
) -> None:
    grade_of = grade(completion, {"answer": "SELECT people FROM towns WHERE town = 'mesa'"})
    assert grade_of.reward == reward
    assert grade_of.metrics == {"runs": runs}


def test_geoquery_leaves_out_questions_without_result(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "geography-schema.csv").open("w", newline="") as file:
        table = [["Table", "Field", "Type"], ["CITY", "CITY_NAME", "varchar(255)"]]
        csv.writer(file).writerows([*table, ["CITY", "POPULATION", "int(11)"], ["-", "-", "-"]])
    with sqlite3.connect(source / "geography-db.added-in-2020.sqlite") as public:
        public.execute("create table city (city_name, population)")
        public.execute("insert into city values ('mesa', 152453)")
    entry = {
        "sql": ['SELECT POPULATION FROM CITY WHERE CITY_NAME = "city0"'],
        "sentences": [
            {"text": "people of city0", "question-split": "dev", "variables": {"city0": "Mesa"}},
            {"text": "people of city0", "question-split": "dev", "variables": {"city0": "yuma"}},
        ],
    }
    (source / "geography.json").write_text(json.dumps([entry]))

    make_geoquery(source, tmp_path / "made")

    rows = [json.loads(line) for line in (tmp_path / "made/rows.jsonl").read_text().splitlines()]
    answer = 'SELECT people FROM towns WHERE town = "Mesa"'
    row = {"id": "geo-0", "split": "dev", "problem": "people of Mesa", "answer": answer}
    assert rows == [row]


@pytest.mark.slow
def test_run_of_arms_reads_the_guide_as_it_is_and_continues(data: Path, tmp_path: Path) -> None:
    options = Options("demo", data, arms=("bake", "sft", "paint"), steps=1, folder=tmp_path / "out")
    table = main(options)
    names = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert names == [BASE, PROMPTED, "bake", "sft", "paint"]
    assert main(options) == table
    policy = load_policy(ModelConfig(path="demo"), seed=0)
    for arm in ("bake", "paint"):
        for row in stored(options.folder / arm / "seed-0"):
            prompt = policy.decode(row["teacher_prompt_ids"])
            assert "towns(town, region, people), as {{ people }}" in prompt
            assert ("SELECT" in prompt) is (arm == "paint")
    with pytest.raises(ConfigError, match=r"learning_rate: 0\.0003 -> 1e-05"):
        main(replace(options, learning_rate=1e-5))
