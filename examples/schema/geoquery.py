"""GeoQuery as this example reads it: tables and columns with other names, and three splits.

    python examples/schema/geoquery.py SOURCE FOLDER

SOURCE is data/ of a clone of jkkummerfeld/text2sql-data on GitHub (commit 5050bad). It writes
FOLDER/database.sqlite, rows.jsonl and guide.txt. Models have read the public schema, so that
tables and columns get names that they have not. Texts are compared without case. Questions whose
gold query fails, or returns nothing, 0 or NULL, are left out. The repository states no licence for
these files.
"""

import csv
import json
import re
import sqlite3
import sys
from pathlib import Path
from typing import Any

TABLES = {
    "STATE": "regions",
    "CITY": "towns",
    "RIVER": "streams",
    "MOUNTAIN": "summits",
    "LAKE": "waters",
    "BORDER_INFO": "neighbours",
    "HIGHLOW": "extremes",
}
COLUMNS = {
    "STATE_NAME": "region",
    "CAPITAL": "seat",
    "POPULATION": "people",
    "AREA": "surface",
    "COUNTRY_NAME": "nation",
    "DENSITY": "crowding",
    "BORDER": "next_to",
    "CITY_NAME": "town",
    "HIGHEST_POINT": "top_place",
    "HIGHEST_ELEVATION": "top_metres",
    "LOWEST_POINT": "low_place",
    "LOWEST_ELEVATION": "low_metres",
    "RIVER_NAME": "stream",
    "LENGTH": "kilometres",
    "TRAVERSE": "flows_through",
    "MOUNTAIN_NAME": "summit",
    "MOUNTAIN_ALTITUDE": "metres",
    "LAKE_NAME": "water",
}
GUIDE = Path(__file__).parent / "guide.txt"
TOKEN = re.compile(r"\"[^\"]*\"|'[^']*'|[A-Za-z_]+\d*")
ALIAS = re.compile(r"([A-Z_]+)alias(\d+)", re.IGNORECASE)
NOTHING: tuple[list[Any], ...] = ([], [(0,)], [(None,)])


def main(source: Path, folder: Path) -> None:
    """Write database, rows and guide."""
    folder.mkdir(parents=True, exist_ok=True)
    database = make_database(source, folder / "database.sqlite")
    rows = read_rows(json.loads((source / "geography.json").read_text("utf-8")), database)
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "rows.jsonl").write_text(text, "utf-8")
    (folder / "guide.txt").write_text(GUIDE.read_text("utf-8"), "utf-8")


def make_database(source: Path, path: Path) -> sqlite3.Connection:
    """Copy the tables under their other names."""
    fields: dict[str, list[tuple[str, str]]] = {}
    with (source / "geography-schema.csv").open(newline="", encoding="utf-8") as file:
        for cells in list(csv.reader(file))[1:]:
            table, field, kind = cells[0].strip(), cells[1].strip(), cells[-1].strip()
            if table in TABLES:
                sort = "text collate nocase" if kind.startswith("varchar") else "numeric"
                fields.setdefault(table, []).append((field, sort))
    public = sqlite3.connect(source / "geography-db.added-in-2020.sqlite")
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    for table, columns in fields.items():
        named = ", ".join(f"{COLUMNS[field]} {sort}" for field, sort in columns)
        database.execute(f"create table {TABLES[table]} ({named})")
        chosen = ", ".join(field for field, _ in columns)
        rows = public.execute(f"select {chosen} from {table}").fetchall()
        places = ", ".join("?" * len(columns))
        database.executemany(f"insert into {TABLES[table]} values ({places})", rows)
    database.commit()
    public.close()
    return database


def read_rows(entries: list[dict[str, Any]], database: sqlite3.Connection) -> list[dict[str, str]]:
    """The questions whose gold query, in the other names, returns something."""
    rows: list[dict[str, str]] = []
    for entry in entries:
        for sentence in entry["sentences"]:
            query, text = entry["sql"][0], sentence["text"]
            for name, value in sentence["variables"].items():
                query, text = query.replace(name, value), text.replace(name, value)
            query = renamed(query)
            try:
                found = database.execute(query).fetchall()
            except sqlite3.Error:
                continue
            if found not in NOTHING:
                row = {"id": f"geo-{len(rows)}", "split": sentence["question-split"]}
                rows.append({**row, "problem": text, "answer": query})
    return rows


def renamed(query: str) -> str:
    """A query in the other names; texts in quotes stay."""
    return TOKEN.sub(lambda match: other_name(match[0]), query)


def other_name(token: str) -> str:
    """The other name of a table, of its alias, or of a column."""
    if token[0] in "\"'":
        return token
    alias = ALIAS.fullmatch(token)
    if alias is None:
        return TABLES.get(token.upper()) or COLUMNS.get(token.upper()) or token
    table = alias[1].upper()
    return f"{TABLES[table]}_{alias[2]}" if table in TABLES else token.lower()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
