"""The persona example: its graders tell the personas apart, and its questions differ."""

import bake_persona
import pytest


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
