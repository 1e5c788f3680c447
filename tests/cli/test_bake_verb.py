"""paint bake: the recipe that may be left out, and the flags beside its settings."""

from paint.cli.main import parse
from paint.config.recipe import find_recipe, read_recipe


def test_bake_without_recipe_takes_bake() -> None:
    command = parse(["bake", "rules.md", "q.jsonl", "--model", "m", "--train.steps", "3"])
    expected = read_recipe(find_recipe("bake"))
    assert (command.recipe, command.rules, command.questions) == ("bake", "rules.md", "q.jsonl")
    assert (command.model, command.config.train.steps) == ("m", 3)
    assert command.config.prompts == expected.prompts


def test_bake_with_recipe_takes_its_settings() -> None:
    command = parse(["bake", "rules.md", "q.jsonl", "demo-bake", "--model.lora-rank", "2"])
    assert (command.recipe, command.model, command.config.model.lora_rank) == ("demo-bake", "", 2)
    assert command.config.model.path == "demo"
