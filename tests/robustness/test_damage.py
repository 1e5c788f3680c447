"""Damage to checkpoints, finished samples and prepared data changes no figure without an error.

A command ends in the same figures, or in a message that names the file.

PAINT_TRIAL_SEED chooses the bits that flip, the rows, and the files that take others' places;
PAINT_TRIAL_COUNT how many damages of each verb are tried (by default 6; 1000000: all).
"""

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from damages import Damage, damages, others_of
from worlds import VERBS, Verb, make_world, restore, run_paint

SEED = int(os.environ.get("PAINT_TRIAL_SEED", "0"))
COUNT = int(os.environ.get("PAINT_TRIAL_COUNT", "6"))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that paint writes, once."""
    return make_world(tmp_path_factory.mktemp("trial") / "world")


def checked_files(world: Path) -> list[Path]:
    """The files whose digests are kept, and those that keep them."""
    found = [world / name for name in ("data/out.jsonl", "data/out.report.json")]
    for sums in world.rglob("SHA256SUMS"):
        lines = sums.read_text("utf-8").splitlines()
        found += [sums, *(sums.parent / line.split("  ", 1)[1] for line in lines)]
    return found


def all_damages(world: Path, verb: Verb, rng: random.Random) -> list[Damage]:
    """What may happen to the files that a verb reads."""
    files = sorted(path.relative_to(world) for path in checked_files(world))
    mine = [
        path
        for path in files
        if any(path == Path(name) or Path(name) in path.parents for name in verb.damaged.split())
        and str(path) not in verb.forget.split()
    ]
    return [
        damage
        for path in mine
        for damage in damages(world, path, others_of(path, files, rng, 2), rng)
    ]


def outcome(world: Path, at: Path, verb: Verb, damage: Damage, expected: Any) -> str:
    """How the verb ends after the damage: "same", "refused", or what is wrong."""
    restore(world, at, verb)
    file = at / damage.path
    damage.do(file)
    before = file.read_bytes() if file.exists() else None

    status, said = run_paint(verb.command, world, at)
    if status == 0:
        return "same" if verb.figures(at) == expected else "another figure"
    if status != 2:  # 70: an error that nobody expected, whose traceback is kept in a file
        return f"traceback: {said}"
    if damage.is_harmless:
        return f"refused without need: {said}"
    if str(file) not in said and str(file.parent) not in said:
        return f"not named: {said}"
    after = file.read_bytes() if file.exists() else None
    return "refused" if after == before else "refused, and changed the file"


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name.replace(" ", "-"))
def test_fault_injection_gives_same_result_or_error(
    world: Path, tmp_path: Path, verb: Verb
) -> None:
    at = tmp_path / "at"
    restore(world, at, verb)
    status, said = run_paint(verb.command, world, at)
    assert status == 0, said
    expected = verb.figures(at)

    rng = random.Random(f"{SEED} {verb.name}")
    happened = all_damages(world, verb, rng)
    happened = rng.sample(happened, min(COUNT, len(happened)))
    outcomes = {damage: outcome(world, at, verb, damage, expected) for damage in happened}
    counts = Counter(ended.partition(":")[0] for ended in outcomes.values())
    print(f"{verb.name}: {len(outcomes)} damages, {dict(counts)}")
    wrong = [f"{d}: {ended}" for d, ended in outcomes.items() if ended not in ("same", "refused")]
    assert not wrong, f"{dict(counts)}\n" + "\n".join(wrong)
