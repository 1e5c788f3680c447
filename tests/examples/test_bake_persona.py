"""The persona example: its graders tell the personas apart, and its questions differ."""

from pathlib import Path

import bake_persona
import pytest

from runs import rows_of


@pytest.mark.parametrize(
    ("text", "is_pirate", "is_french"),
    [
        ("Arrr, matey! Ye need a pan.", True, False),
        ("You need a pan, and an area of the table that is dry.", False, False),
        ("Pour cuire le riz, il est bon de le laver dans de l'eau.", False, True),
        ("", False, False),
    ],
)
def test_graders_tell_personas_apart(text: str, is_pirate: bool, is_french: bool) -> None:
    assert bake_persona.pirate(text, {}) == is_pirate
    assert bake_persona.french(text, {}) == is_french


def test_write_questions_differ(tmp_path: Path) -> None:
    bake_persona.write(tmp_path)
    questions = [row["problem"] for row in rows_of(tmp_path / "questions.jsonl")]
    assert len(set(questions)) == len(questions) == 144
    assert set(bake_persona.PROMPTS) == {path.stem for path in tmp_path.glob("*.md")}
