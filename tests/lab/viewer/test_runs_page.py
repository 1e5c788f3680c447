"""The page of several runs, and that it is written again with their steps."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import paint
from browser import opened
from paint.config.schema import ConfigError
from paint.core.display import Display
from paint.core.storage import read_jsonl
from paint.lab.viewer.runs import runs_data
from paint.lab.viewer.show import show_targets

QUIET = Display(enabled=False)


@pytest.fixture
def runs(run: Path, tmp_path: Path) -> Path:
    """A folder with two runs of three steps that differ in learning rate, one not validated."""
    folder = tmp_path / "experiment"
    for name, rate in (("slow", 1e-4), ("fast", 1e-3)):
        made = shutil.copytree(run, folder / name)
        facts = json.loads((made / "run.json").read_text())
        facts["config"]["train"]["learning_rate"] = rate
        facts["config"]["log"]["name"] = name
        (made / "run.json").write_text(json.dumps(facts))
    shutil.rmtree(folder / "slow/validation")
    return folder


def test_runs_data_has_settings_that_differ_and_validations(runs: Path) -> None:
    data = runs_data([runs], QUIET)
    fast, slow = data["runs"]
    assert [fast["name"], slow["name"]] == ["fast", "slow"]
    assert [run["settings"] for run in (fast, slow)] == [
        {"train.learning_rate": 1e-3},
        {"train.learning_rate": 1e-4},
    ]
    assert slow["metrics"]["step"] == [1, 2, 3]
    assert [point["step"] for point in fast["validation"]] == [0, 2, 3]
    assert fast["change"].startswith("Validation ")
    assert slow["change"].endswith("not validated (validation.path)")


def test_runs_of_one_name_are_told_apart(runs: Path) -> None:
    for name in ("slow", "fast"):
        (runs / name).rename(runs.parent / f"{name}-seeds")
        (runs.parent / f"{name}-seeds/seed-0").mkdir()
        for path in list((runs.parent / f"{name}-seeds").iterdir()):
            if path.name != "seed-0":
                path.rename(runs.parent / f"{name}-seeds/seed-0" / path.name)
    targets = [runs.parent / f"{name}-seeds/seed-0" for name in ("slow", "fast")]
    data = runs_data(targets, QUIET)
    assert [run["name"] for run in data["runs"]] == ["slow-seeds/seed-0", "fast-seeds/seed-0"]


def test_show_of_a_list_and_of_a_folder_write_the_page_of_runs(runs: Path) -> None:
    page = paint.show([runs / "slow", runs / "fast"], open=False, out=runs / "two.html")
    text = page.path.read_text()
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert [run["name"] for run in data["runs"]] == ["slow", "fast"]
    assert paint.show(runs, open=False).path == runs / "show.html"
    with pytest.raises(ConfigError, match="are for a run"):
        paint.show(runs, steps=[1], open=False)
    with pytest.raises(ConfigError, match="validation holds no run"):
        paint.show(runs / "fast/validation", watch=True, open=False)
    with pytest.raises(ConfigError, match="validation holds no run"):
        paint.show([runs / "slow", runs / "fast/validation"], open=False)


@pytest.mark.slow
def test_page_of_runs_draws_hides_smooths_and_adds(browser: Any, runs: Path) -> None:
    with opened(browser, show_targets([runs], QUIET)) as at:
        kl = at.locator("figure[data-chart=kl]")
        assert kl.locator("path.line").count() == 2
        assert kl.locator(".key").all_inner_texts() == ["fast", "slow"]
        assert at.locator("path.raw").count() == 0
        heads = at.locator("#runs th").all_inner_texts()
        assert heads == ["", "state", "train.learning_rate"]
        assert "0.0001" in at.locator("#runs tr[data-run=slow]").inner_text()
        assert at.locator("p[data-run=slow]").inner_text().startswith("slow")

        at.evaluate("smooth.value = 0.5; smooth.dispatchEvent(new Event('input'))")
        assert kl.locator("path.raw").count() == 2
        found = at.evaluate("smoothed([1, null, 3])")
        assert found == pytest.approx([1, None, (0.25 * 1 + 0.5 * 3) / 0.75])
        at.uncheck("#runs tr[data-run=slow] input")
        assert kl.locator("path.line").count() == 1
        assert kl.locator("g.s0").count() == 1  # in its colour
        at.select_option("#add", "gradient_norm")
        at.click("button[aria-label='remove kl']")
        assert kl.count() == 0
        at.reload()  # the address has it all
        at.wait_for_selector("figure[data-chart=gradient_norm]")
        assert kl.count() == 0
        assert at.locator("figure[data-chart=gradient_norm] path.line").count() == 1
        for width in (390, 1280):
            at.set_viewport_size({"width": width, "height": 860})
            assert at.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_page_that_is_watched_has_new_steps(
    browser: Any, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, page = runs / "slow/metrics.jsonl", runs / "show.html"
    row = list(read_jsonl(history, ""))[-1]

    def add_a_step(seconds: float) -> None:
        """Add a step, and end when the page that is open has it."""
        if "dots" in shown:
            shown["dots"].nth(3).wait_for(state="attached")
            raise KeyboardInterrupt
        at = shown["at"] = context.new_page()
        at.goto(f"{page.resolve().as_uri()}#metrics=kl")
        shown["dots"] = at.locator("figure[data-chart=kl] g.s1 circle")
        shown["dots"].first.wait_for()
        assert shown["dots"].count() == 3
        with history.open("a") as file:
            file.write(json.dumps(row | {"step": 4, "kl": 1.0, "new": 2.0}) + "\n")

    shown: dict[str, Any] = {}
    context = browser.new_context()
    monkeypatch.setattr("paint.lab.viewer.show.sleep", add_a_step)
    show_targets([runs], QUIET, live=True)
    assert shown["at"].evaluate("RUNS[1].metrics.new") == [None, None, None, 2.0]
    assert shown["at"].locator("figure").count() == 1  # of the metric that was chosen
    context.close()


def test_show_that_watches_ends_with_ctrl_c_and_writes_the_page(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paint.lab.viewer.show.sleep", interrupted)
    text = paint.show(runs, watch=True, open=False).path.read_text()
    assert '"live":false' in text
