"""The pictures of pages in docs/how-to: `make screenshots`.

Trains demo-paint, evaluates it and its base, and asks for advice, unless --run, --evals and
--advice name others; writes the pages, and takes a picture of each view with the system's Chromium.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from paint import train
from paint.config.run_folder import read_metrics
from paint.core.display import Display, shown_on_terminal
from paint.lab.viewer.run import PageSpec
from paint.lab.viewer.show import show_targets

SIZE = {"width": 1400, "height": 900}
CONTEXTS = ("solution", "none", "other", "wrong_answer")
MOST_BYTES = 300_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="a finished run (default: train demo-paint)")
    parser.add_argument("--evals", type=Path, help="an evaluation (default: of that run)")
    parser.add_argument(
        "--advice", type=Path, help="a folder of paint advise (default: 30 problems)"
    )
    parser.add_argument("--work", type=Path, default=Path("runs/screenshots"))
    parser.add_argument("--docs", type=Path, default=Path("docs/images"))
    parser.add_argument("--name", default="show", help="the pictures are NAME-rollout.png, ...")
    options = parser.parse_args()

    run = options.run or trained(options.work)
    evals = options.evals or evaluated(run, options.work)
    display = Display()
    run_page = show_targets(
        [run], display, PageSpec(contexts=CONTEXTS), out=options.work / "run.html"
    )
    evaluation_page = show_targets([evals], display, out=options.work / "evaluation.html")
    advice = options.advice or advised(options.work)
    advice_page = show_targets([advice], display, out=options.work / "advice.html")
    conversations = conversed(options.work)
    turns_page = show_targets([conversations], display, out=options.work / "turns.html")
    take(run_page, evaluation_page, advice_page, turns_page, options.docs, options.name)


def trained(work: Path) -> Path:
    run = work / "demo-paint"
    if not run.exists() or len(read_metrics(run)) < 20:
        shutil.rmtree(run, ignore_errors=True)
        paint("train", "demo-paint", "--log.folder", str(work), "--log.name", run.name)
    return run


def evaluated(run: Path, work: Path) -> Path:
    last = sorted((run / "checkpoints").iterdir())[-1]
    paint(
        *("eval", str(last), "--benchmarks", "demo", "--limit", "60", "--samples", "8"),
        *("--output-dir", str(work / "evals")),
    )
    return work / "evals"


def advised(work: Path) -> Path:
    paint("advise", "demo-paint", "--problems", "30", "--output-dir", str(work / "advice"))
    return work / "advice"


class CheckTwice:
    """Asks once for a check."""

    def step(self, messages: list[dict[str, Any]], completion: str) -> str | None:
        return None if len(messages) > 2 else "Check your answer, and give it again."


def conversed(work: Path) -> Path:
    run = work / "conversations"
    shutil.rmtree(run, ignore_errors=True)
    small = {"steps": 2, "batch_size": 8}
    train("demo-paint", output_dir=run, train=small, conversation={"environment": CheckTwice})
    return run


def paint(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "paint.cli", *arguments], check=True)


def take(run: Path, evaluation: Path, advice: Path, turns: Path, docs: Path, name: str) -> None:
    """A picture of each view, of at most MOST_BYTES."""
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=binary, args=["--no-sandbox"])

        def shot(view: str, page: Page) -> None:
            path = docs / f"{name}-{view}.png"
            page.wait_for_timeout(150)
            page.screenshot(path=path)
            assert path.stat().st_size <= MOST_BYTES, f"{path}: {path.stat().st_size:,} bytes"
            print(f"{path}: {path.stat().st_size:,} bytes")

        def opened(path: Path, place: str, *, dark: bool = False) -> Page:
            scheme = "dark" if dark else "light"
            page = browser.new_context(color_scheme=scheme, viewport=SIZE).new_page()
            page.goto(f"{path.resolve().as_uri()}#{place}")
            page.wait_for_function("document.documentElement.dataset.ready === 'true'")
            return page

        shot("run", opened(run, "view=run"))

        page = opened(run, "view=rollouts")
        page.evaluate(WORST)
        shot("rollout", page)

        page.keyboard.press("Escape")
        page.evaluate("document.querySelector('#contexts').scrollIntoView()")
        page.hover("#contexts .t.clipped, #contexts .t.selected >> nth=0")
        shot("contexts", page)

        page = opened(run, "view=rollouts&color=ratio", dark=True)
        page.select_option("select[name=correct]", "wrong")
        page.click("[data-sort=klmax]")
        page.click("#rows tbody tr >> nth=0")
        page.keyboard.press("n")
        shot("where", page)

        page = opened(evaluation, "view=problems")
        page.select_option("select[name=kind]", "gained")
        page.click("#problems tbody tr >> nth=0")
        shot("evaluation", page)

        shot("accuracy", opened(evaluation, "view=figures"))
        shot("advice", opened(advice, "view=advice"))
        shot("conversation", opened(turns, "view=rollouts"))
        browser.close()


# The wrong rollout of an exactly scored step with the largest KL at a clipped token.
WORST = """() => {
  const rows = ROWS.filter(r => r.at.is_exact && !r.correct && r.entries);
  let best = null;
  for (const row of rows.length ? rows : ROWS) {
    const v = values(row);
    v.kl.forEach((kl, i) => {
      if (v.clipped[i] && (!best || kl > best[2])) best = [row, i, kl];
    });
  }
  if (best) { selectRow(best[0]); focusToken(best[1]); }
}"""


if __name__ == "__main__":
    with shown_on_terminal():
        main()
