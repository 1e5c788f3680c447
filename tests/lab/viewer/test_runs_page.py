"""The page of several runs, and the server that appends their steps."""

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paint
from browser import opened
from paint.config.schema import ConfigError
from paint.core.display import Display
from paint.core.storage import read_jsonl
from paint.evaluation.evaluate import name_of_run
from paint.evaluation.grade import summarise
from paint.lab.viewer.run_evaluations import evaluations_of
from paint.lab.viewer.runs import runs_data
from paint.lab.viewer.show import show_targets
from paint.lab.viewer.watch import PageServer

QUIET = Display(enabled=False)


@pytest.fixture
def runs(run: Path, tmp_path: Path) -> Path:
    """A folder with two runs of three steps that differ in learning rate, one without validation;
    the other one is evaluated.
    """
    folder = tmp_path / "experiment"
    for name, rate in (("slow", 1e-4), ("fast", 1e-3)):
        made = shutil.copytree(run, folder / name)
        facts = json.loads((made / "run.json").read_text())
        facts["config"]["train"]["learning_rate"] = rate
        facts["config"]["log"]["name"] = name
        (made / "run.json").write_text(json.dumps(facts))
    shutil.rmtree(folder / "slow/validation")
    evaluated = tmp_path / "evals/mine"
    steps = {"base": 0, f"{name_of_run(folder / 'slow')}-step-000003": 3}
    for policy, step in steps.items():
        shutil.copytree(
            run / f"validation/step-{step:06}/held_out", evaluated / policy / "held_out"
        )
    summarise([evaluated], evaluated, QUIET)
    return folder


def test_runs_data_has_settings_that_differ_and_evaluations(runs: Path) -> None:
    data = runs_data([runs], runs / "show.html", QUIET)
    fast, slow = data["runs"]
    assert [fast["name"], slow["name"]] == ["fast", "slow"]
    assert [run["settings"] for run in (fast, slow)] == [
        {"train.learning_rate": 1e-3},
        {"train.learning_rate": 1e-4},
    ]
    assert slow["metrics"]["step"] == [1, 2, 3]
    assert [point["step"] for point in fast["validation"]] == [0, 2, 3]
    assert fast["evaluations"] == []
    assert "not validated" not in slow["change"]
    [found] = slow["evaluations"]
    assert found["text"].startswith("Accuracy on held_out ")
    assert "points over base" in found["text"]
    assert found["link"] is None  # its page was not written
    show_targets([runs.parent / "evals/mine"], QUIET)
    again = runs_data([runs], runs / "show.html", QUIET)["runs"][1]["evaluations"]
    assert again[0]["link"] == "../evals/mine/show.html"


def test_evaluations_of_other_weights_are_not_those_of_a_run(runs: Path) -> None:
    assert len(evaluations_of(runs / "slow", runs)) == 1
    [settings] = (runs.parent / "evals/mine").glob("slow-*/held_out/settings.json")
    settings.write_text(settings.read_text().replace('"adapter": "', '"adapter": "0'))
    assert evaluations_of(runs / "slow", runs) == []


def test_runs_of_one_name_are_told_apart(runs: Path) -> None:
    for name in ("slow", "fast"):
        (runs / name).rename(runs.parent / f"{name}-seeds")
        (runs.parent / f"{name}-seeds/seed-0").mkdir()
        for path in list((runs.parent / f"{name}-seeds").iterdir()):
            if path.name != "seed-0":
                path.rename(runs.parent / f"{name}-seeds/seed-0" / path.name)
    targets = [runs.parent / f"{name}-seeds/seed-0" for name in ("slow", "fast")]
    data = runs_data(targets, runs / "show.html", QUIET)
    assert [run["name"] for run in data["runs"]] == ["slow-seeds/seed-0", "fast-seeds/seed-0"]


def test_show_of_a_list_and_of_a_folder_write_the_page_of_runs(runs: Path) -> None:
    page = paint.show([runs / "slow", runs / "fast"], open=False, out=runs / "two.html")
    text = page.path.read_text()
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert [run["name"] for run in data["runs"]] == ["slow", "fast"]
    assert "connect-src" not in text
    assert paint.show(runs, open=False).path == runs / "show.html"
    with pytest.raises(ConfigError, match="are for a run"):
        paint.show(runs, steps=[1], open=False)
    with pytest.raises(ConfigError, match="--watch is for runs"):
        paint.show(runs.parent / "evals/mine", watch=True, open=False)


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
        assert "(paint show" in at.locator("p[data-run=slow]").inner_text()

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


@pytest.fixture
def served(runs: Path) -> Iterator[PageServer]:
    """A server of both runs."""
    server = PageServer([runs], QUIET)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def answer_of(server: PageServer, place: str, host: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.putrequest("GET", place, skip_host=True)
    if host:
        connection.putheader("Host", host)
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


def test_page_server_answers_this_machine_alone(served: PageServer) -> None:
    assert served.server_address[0] == "127.0.0.1"
    for host in ("evil.example", f"evil.example:{served.port}", "127.0.0.1", ""):
        for place in ("/", "/events"):
            assert answer_of(served, place, host) == 403
    assert answer_of(served, "/", f"localhost:{served.port}") == 200
    assert answer_of(served, "/run.json", f"127.0.0.1:{served.port}") == 404


@pytest.mark.parametrize(
    "place", ["http://[::1", f"/events?from={'9' * 5000}", "http://[a]b/", "/?from=1,x"]
)
def test_page_server_malformed_request_is_answered_without_a_traceback(
    place: str, served: PageServer, capsys: pytest.CaptureFixture[str]
) -> None:
    status = answer_of(served, place, f"127.0.0.1:{served.port}")
    assert status == (200 if place == "/?from=1,x" else 400)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_page_server_appends_steps_and_makes_the_page_anew(
    browser: Any, runs: Path, served: PageServer
) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{served.url}#metrics=kl")
    dots = page.locator("figure[data-chart=kl] g.s1 circle")
    dots.first.wait_for()
    assert dots.count() == 3
    history = runs / "slow/metrics.jsonl"
    row = list(read_jsonl(history, ""))[-1]
    with history.open("a") as file:
        file.write(json.dumps(row | {"step": 4, "kl": 1.0, "new": 2.0}) + "\n")
    # The page's policy allows no evaluation of text, which wait_for_function needs.
    page.locator("#live").filter(has_text="slow did step 4").wait_for()
    assert dots.count() == 4
    assert page.evaluate("RUNS[1].metrics.new") == [None, None, None, 2.0]
    shutil.copytree(runs / "slow", runs / "third")  # another run: the page is made anew
    page.locator("#runs tr[data-run=third]").wait_for()
    assert page.locator("figure").count() == 1  # of the metric that was chosen
    assert not said
    context.close()


def test_page_server_events_go_on_where_a_page_stopped(runs: Path) -> None:
    with PageServer([runs], QUIET) as server:
        version = server.events([], "other")
        assert next(version).startswith("event: reload")
        current = runs_data([runs], runs / "show.html", QUIET, live=True)["version"]
        first = next(server.events([3, 1], current))
        assert first.startswith("id: 3,3\n")
        rows = json.loads(first.split("data: ")[1])
        assert [rows["run"], [row["step"] for row in rows["rows"]]] == [1, [2, 3]]
        assert next(server.events([5, 3], current)).startswith("event: reload")


def test_show_that_watches_ends_with_ctrl_c_and_writes_the_page(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: PageServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PageServer, "serve_forever", interrupted)
    begun = tmp_path / "begun"  # that holds nothing yet, as in the first seconds of a training
    shutil.copytree(runs / "slow", tmp_path / "hidden/slow")
    begin = threading.Timer(0.1, lambda: (tmp_path / "hidden/slow").rename(begun))
    begin.start()
    assert paint.show(begun, watch=True, open=False).path == begun / "show.html"
    begin.join()
    assert paint.show(runs, watch=True, open=False).path.exists()
    assert "http://127.0.0.1:" in capsys.readouterr().out
