"""SHA-256 of what PAINT computes, to show that a move of code changes nothing.

python tools/fingerprints.py > before.json              # some two minutes on two cores
python tools/fingerprints.py --compare before.json      # exits with status 1 if one differs
python tools/fingerprints.py --only config verdicts     # some of them

Left out is what differs from run to run or names the code: seconds and tokens per second in
metrics; run.json and an evaluation's settings, with paths, versions and modules.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import paint
from paint.config.recipe import shipped_recipes

STEPS = 3
ROOT = Path(__file__).parents[1]
FOLDERS = ("examples", "packages/strictgrade/tests", "tools")  # of modules that are imported here


def digest_of(parts: Iterable[str | bytes]) -> str:
    """The first 16 digits of the SHA-256 of some texts in their order."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part.encode() if isinstance(part, str) else part)
        whole.update(b"\0")
    return whole.hexdigest()[:16]


def without_times(line: str) -> str:
    """A line of metrics.jsonl without what depends on the machine's speed."""
    row = json.loads(line)
    kept = {key: row[key] for key in row if "seconds" not in key and "per_second" not in key}
    return json.dumps(kept)


def of_run(recipe: str, **sections: Any) -> dict[str, str]:
    """The digests of a short training: its adapter, rollouts and metrics."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        paint.train(recipe, output_dir=run, train={"steps": STEPS}, **sections)
        adapter = run / f"checkpoints/step-{STEPS:06}/adapter/adapter_model.safetensors"
        rollouts = sorted((run / "rollouts").iterdir())
        metrics = (run / "metrics.jsonl").read_text().splitlines()
        return {
            "adapter": digest_of([adapter.read_bytes()]),
            "rollouts": digest_of(path.read_bytes() for path in rollouts),
            "metrics": digest_of(map(without_times, metrics)),
        }


def of_evaluation() -> dict[str, str]:
    """The digests of the files of an evaluation's store."""
    rollout = {"max_new_tokens": 64}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "evaluation")
        paint.evaluate(
            "demo", benchmarks=["demo"], limit=12, samples=2, rollout=rollout, output_dir=str(out)
        )
        files = sorted(out.rglob("*.jsonl"))
        return {str(path.relative_to(out)): digest_of([path.read_bytes()]) for path in files}


def of_recipes() -> dict[str, str]:
    """The digest of the settings of each recipe."""
    return {
        name: digest_of([json.dumps(paint.show_config(name), default=str)])
        for name in shipped_recipes()
    }


def of_verdicts() -> dict[str, str]:
    """The digest of the verdicts on rewritten answers."""
    from rewritings import graded, pairs

    verdicts = [f"{pair} {taken}" for pair, taken in graded(pairs(0, 1_000), workers=2)]
    return {"rewritings": digest_of(verdicts)}


def of_pages() -> dict[str, str]:
    """The digests of the generated pages of models and of chat templates."""
    import chat_templates_table
    import models_table

    written = chat_templates_table.PAGE.read_text(encoding="utf-8")
    return {
        "models": digest_of([models_table.page()]),
        "templates": digest_of([chat_templates_table.page(written)]),
    }


TOOLS = {"conversation": {"tools": ["look_up:look_up"], "max_turns": 3}}
PARTS: dict[str, Callable[[], dict[str, str]]] = {
    "config": of_recipes,
    "demo-paint": partial(of_run, "demo-paint"),
    "demo-opsd": partial(of_run, "demo-opsd"),
    "demo-grpo": partial(of_run, "demo-grpo"),
    "demo-sft": partial(of_run, "demo-sft"),
    "tools": partial(of_run, "demo-paint", **TOOLS),
    "evaluation": of_evaluation,
    "verdicts": of_verdicts,
    "pages": of_pages,
}


def differences(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> list[str]:
    """The names of the digests that differ, of the parts in ``after``."""
    known, found = (
        {f"{part} {name}": digest for part, row in rows.items() for name, digest in row.items()}
        for rows in (before, after)
    )
    compared = {name for name in known | found if name.partition(" ")[0] in after}
    return sorted(name for name in compared if known.get(name) != found.get(name))


def main() -> int:
    """Print the digests, or compare them with those of a file; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--compare", type=Path, metavar="FILE", help="the output of another call")
    options = parser.parse_args()
    torch.set_num_threads(1)  # sums of floats depend on their number
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path += [str(ROOT / folder) for folder in FOLDERS]
    found = {}
    for name in options.only:
        print(name, file=sys.stderr)
        found[name] = PARTS[name]()
    if options.compare is None:
        print(json.dumps(found, indent=1))
        return 0
    before = json.loads(options.compare.read_text())
    changed = differences(before, found)
    count = sum(map(len, found.values()))
    print("\n".join(changed) or f"all {count} digests are equal")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
