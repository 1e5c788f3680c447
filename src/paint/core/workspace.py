"""A folder that a command fills row by row, so that the same command continues after a kill.

    settings.json   what the folder was begun with
    ROWS.jsonl      one line per finished row, in order of completion
    SHA256SUMS      checksums of the files, once no row is missing

A folder belongs to one set of settings: rows of others are not comparable. A partial last line,
left by a kill, is dropped and its row is made again. The caller holds the folder's lock.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paint.core import storage
from paint.core.errors import PaintError, wrap_errors
from paint.core.extensions import is_passed, is_spec
from paint.core.trust import is_own, is_remembered, read_names, remember

SETTINGS = "settings.json"
ELSEWHERE = "choose another place (--output-dir)"
MOST_DIFFERENCES = 10  # that a message lists


def setting_differences(
    before: Mapping[str, Any], after: Mapping[str, Any], changeable: Collection[str] = ()
) -> list[str]:
    """List the settings that differ, such as "temperature: 1.0 -> 0.6"."""
    lines = []
    for name in {**before, **after}:
        if name in changeable or before.get(name) == after.get(name):
            continue
        if name == "problems_digest":
            lines.append(f"the rows of {after.get('benchmark', 'the problems')} have changed")
        else:
            lines.append(f"{name}: {before.get(name)!r} -> {after.get(name)!r}")
    return lines


def refuse_differences(
    holder: str, lines: list[str], error: type[PaintError], elsewhere: str = ELSEWHERE
) -> None:
    if lines:
        listed = "\n  ".join(lines[:MOST_DIFFERENCES])
        raise error(
            f"{holder} with other settings:\n  {listed}\n"
            f"Use the same settings to continue, or {elsewhere}"
        )


@dataclass(frozen=True)
class Workspace:
    """The settings and the growing rows of a folder."""

    folder: Path
    rows_name: str
    content: str  # what the rows are, for messages, such as "an evaluation"
    error: type[PaintError]  # of settings that differ and of files that cannot be written
    hint: str  # what to do about a file that was changed or lost
    elsewhere: str = ELSEWHERE  # what to do about other settings, but for using the same

    @property
    def rows_path(self) -> Path:
        return self.folder / self.rows_name

    @property
    def settings_path(self) -> Path:
        return self.folder / SETTINGS

    @property
    def sums_path(self) -> Path:
        return self.folder / storage.SUMS

    def require_same(
        self, settings: Mapping[str, Any], changeable: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return the settings that the folder was begun with; {} for a new folder.

        Raises ``error`` for others that are not ``changeable``. A folder without rows takes any.
        """
        self.verify()
        before: dict[str, Any] = {}
        if self.settings_path.exists() or self.has_rows:
            before = storage.read_json(self.settings_path, self.hint)
        if self.has_rows:
            after = json.loads(json.dumps(settings))  # as it is read again: lists for tuples
            lines = setting_differences(before, after, changeable)
            holder = f"{self.folder} holds {self.content}"
            refuse_differences(holder, lines, self.error, self.elsewhere)
        return before

    def begin(self, settings: Mapping[str, Any]) -> bool:
        """Record the settings and prepare for ``append``; return whether a partial row was cut."""
        with self._or_error():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.sums_path.unlink(missing_ok=True)  # absent until no row is missing
            storage.write_json(self.settings_path, settings)
            engine = str(settings.get("engine", ""))
            if is_spec(engine) and is_own(engine):
                with suppress(OSError):  # it is named again, or trusted
                    remember({"engine": engine})
            return self.trim()

    def recorded_engine(self) -> str:
        """Return the engine that made the rows; "" where nothing was begun."""
        if not self.settings_path.exists():
            return ""
        settings = storage.read_json(self.settings_path, self.hint)
        engine = str(settings["engine"])
        if is_spec(engine) and not is_passed(engine):
            read_names([engine], self.settings_path, is_own=is_remembered({"engine": engine}))
        return engine

    def trim(self) -> bool:
        """Remove a partial last row, which a kill has cut; return whether there was one."""
        with self._or_error():
            self.rows_path.touch()
            return storage.trim_partial_line(self.rows_path)

    @property
    def is_finished(self) -> bool:
        return self.sums_path.exists()

    @property
    def has_rows(self) -> bool:
        return self.rows_path.exists() and self.rows_path.stat().st_size > 0

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Append rows, which then survive a kill. Raises ``error`` if that fails."""
        with self._or_error():
            storage.append_jsonl(self.rows_path, rows)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over the complete rows. Raises CorruptFileError for one that is damaged."""
        return storage.read_growing_jsonl(self.rows_path, self.hint)

    def finish(self, *names: str) -> None:
        """Write the checksums of files, by default of settings and rows."""
        with self._or_error():
            storage.write_sums(self.folder, names or (SETTINGS, self.rows_name))

    def verify(self) -> None:
        """Check the files against the checksums, if there are any. Raises CorruptFileError."""
        if self.is_finished:
            storage.verify_checksums(self.folder, self.hint)

    def _or_error(self) -> AbstractContextManager[None]:
        return wrap_errors(
            self.rows_path, self.error, "rows stored before are kept; free some space, and repeat"
        )
