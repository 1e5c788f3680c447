"""The pages in a real browser: true values, keys, links, dark mode, nothing from the network."""

import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import paint
from browser import opened
from conftest import SHOWN
from paint.config.run_folder import read_run
from paint.config.schema import ConfigError, GradingConfig
from paint.core import storage
from paint.core.display import Display
from paint.core.extensions import spec_of
from paint.data.problems import Problem
from paint.evaluation.frame import Chart, Report, Table, to_measurement, write_report
from paint.evaluation.grade import grade
from paint.evaluation.intervals import Interval
from paint.evaluation.store import reopen_store
from paint.grading.contract import Grade, Grader, Item
from paint.lab.viewer.run import PageSpec
from paint.lab.viewer.show import show_targets
from paint.models.policy import Policy, load_policy
from paint.models.teacher import open_teacher
from paint.objective.anchors import contains
from paint.objective.loss import paint_loss
from paint.training.token_log import read_tokens, tokens_path
from reports import evaluated
from runs import Sections, changed, stored, train
from strictgrade.text import normalize

MINUS = "\u2212"

READ_TIPS = """count => {
  const found = [];
  const all = selector => [...tip.querySelectorAll(selector)];
  const exact = nodes => name => Object.fromEntries(
    nodes.map(e => [e.dataset[name], Number(e.dataset.exact)]));
  for (const row of ROWS.filter(r => r.step === 1)) {
    selectRow(row);
    document.querySelectorAll('#tokens .t').forEach((span, i) => {
      if (found.length >= count) return;
      span.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));
      found.push({
        row: row.row, i,
        values: exact(all('[data-value]'))('value'),
        shown: Object.fromEntries(all('[data-value]').map(
          e => [e.dataset.value, e.querySelector('b')?.textContent])),
        entries: all('[data-entry]').map(
          l => exact([...l.querySelectorAll('[data-view]')])('view')),
        clipped: all('[data-entry]').map(l => l.textContent.includes('clipped')),
        push: tip.querySelector('.push')?.textContent,
      });
    });
  }
  return found;
}"""


def exact(run: Path, policy: Policy, row: int) -> dict[str, Any]:
    """What paint_loss in float64 makes of a row of the first step, with the logits' gradient."""
    config, rollout = read_run(run), stored(run)[row]
    teacher = open_teacher(policy, config.teacher)
    ids = rollout["completion_ids"]
    with torch.no_grad():
        student = policy.lm_head(policy.hidden_states([rollout["prompt_ids"]], [ids]))
        with teacher.view():
            hidden = policy.hidden_states([rollout["teacher_prompt_ids"]], [ids])
            taught = policy.lm_head(hidden)
    assert student.dtype == torch.float64
    logits = student.clone().requires_grad_()
    tokens = torch.tensor(ids)
    clip, mode = config.objective.clip, config.objective.clip_mode
    loss = paint_loss(logits, taught, [len(ids)], tokens=tokens, clip=clip, clip_mode=mode)
    loss.value.backward()
    assert logits.grad is not None
    slope = logits.grad.gather(1, tokens[:, None])[:, 0] * len(ids)
    log_p, log_q = ((x / 1.1).log_softmax(-1) for x in (taught, student))
    target = 0.97 * log_p + 0.03 * log_q
    target = torch.where(loss.stats["selected"][:, None] > 0, target.log_softmax(-1), log_p)
    divergence = (target.exp() * (target - log_q)).sum(-1, keepdim=True)
    assert config.objective.clip_mode == "huber"
    return {
        "values": {"loss": loss.per_token, **loss.stats, "slope": slope},
        "probs": {"student": log_q.exp(), "teacher": log_p.exp(), "target": target.exp()},
        "clipped": divergence > config.objective.clip,
    }


def test_page_token_values_match_float64_loss(browser: Any, tmp_path: Path) -> None:
    """Values, likeliest tokens and pushes of 150 tokens, within 1e-4."""
    # Four rows, as the other tests' page has, are fewer tokens.
    all_rows: Sections = {"train": {"steps": 1}, "log": {"token_rows": "all"}}
    run = tmp_path / "run"
    train(changed("demo-paint", SHOWN, all_rows), run)
    page = show_targets([run], Display(enabled=False), out=tmp_path / "run.html")
    with opened(browser, page, "view=rollouts") as at:
        tips = at.evaluate(READ_TIPS, 200)
    assert len(tips) >= 150
    config = read_run(run)
    policy = load_policy(config.model, seed=config.train.seed)
    policy.model.double()
    known: dict[int, dict[str, Any]] = {}
    clipped = 0
    for tip in tips:
        if tip["row"] not in known:
            known[tip["row"]] = exact(run, policy, tip["row"])
        wanted, i = known[tip["row"]], tip["i"]
        for name, value in tip["values"].items():
            if name == "engine_log_prob":
                continue
            true = float(wanted["values"][name][i])
            bound = 1e-4 * max(1.0, abs(true)) if name == "entropy_ratio" else 1e-4
            assert value == pytest.approx(true, abs=bound), (name, tip["row"], i)
            if name != "slope":
                said = float(tip["shown"][name].replace(MINUS, "-"))
                assert said == pytest.approx(true, rel=1e-3, abs=1e-4), name

        for view, probs in wanted["probs"].items():
            given = sorted((entry[view] for entry in tip["entries"]), reverse=True)
            likeliest = probs[i].topk(5).values.tolist()
            assert given[:5] == pytest.approx(likeliest, abs=1e-4)
            sampled = probs[i, stored(run)[tip["row"]]["completion_ids"][i]]
            assert tip["entries"][0][view] == pytest.approx(float(sampled), abs=1e-4)
        assert any(tip["clipped"]) == bool(wanted["clipped"][i].any())
        clipped += any(tip["clipped"])
        slope = float(wanted["values"]["slope"][i])
        if abs(slope) > 1e-4:
            words = "less likely" if slope > 0 else "makes the sampled token likelier"
            assert words in tip["push"]
        assert "pull is cut" not in tip["push"]  # huber keeps each direction
    assert 0 < clipped < len(tips)


def test_page_hover_and_focus_show_token_details(browser: Any, page: Path) -> None:
    with opened(browser, page, "view=rollouts&step=1&row=2") as at:
        at.hover("#tokens .t >> nth=5")
        assert "token 5 of" in at.inner_text("#tip")
        assert at.locator("#tip [data-entry]").count() >= 5
        at.mouse.move(5, 5)
        assert at.is_hidden("#tip")
        at.focus("#tokens .t >> nth=0")
        at.keyboard.press("ArrowRight")
        at.keyboard.press("ArrowRight")
        assert "token 1 of" in at.inner_text("#tip")
        at.keyboard.press("Escape")
        assert at.is_hidden("#tip")


def test_page_keys_navigate(browser: Any, page: Path) -> None:
    with opened(browser, page, "view=rollouts&step=1&row=0") as at:
        at.keyboard.press("j")
        assert "row=1" in at.url
        at.keyboard.press("k")
        assert "row=0" in at.url
        at.keyboard.press("2")
        assert at.input_value("#quantity") == "loss"
        at.keyboard.press("1")
        at.keyboard.press("n")
        assert "token=" in at.url
        place = at.evaluate("Number(address.get().token)")
        highest = at.evaluate("series(current, quantity).map(Math.abs)")
        everything = sorted(at.evaluate("ROWS.flatMap(r => series(r, quantity).map(Math.abs))"))
        assert highest[place] >= everything[int(0.96 * len(everything))]
        at.keyboard.press("?")
        assert at.is_visible("dialog")


def test_page_link_opens_token_and_reports_missing_step(browser: Any, page: Path) -> None:
    with opened(browser, page, "view=rollouts&step=3&row=1&token=7&color=ht") as at:
        assert "Step 3, row 1" in at.inner_text("#rollout h2")
        assert at.input_value("#quantity") == "ht"
        assert "token 7 of" in at.inner_text("#tip")
        at.goto(f"{page.as_uri()}#view=rollouts&step=77")
        at.wait_for_function("document.querySelector('#rollout').innerText.includes('step 77')")


def test_page_rows_are_filtered_and_sorted(browser: Any, page: Path, run: Path) -> None:
    with opened(browser, page, "view=rollouts") as at:
        rows = at.locator("#rows tbody tr")
        everything = rows.count()
        assert everything == 12
        at.select_option("select[name=correct]", "wrong")
        wrong = sum(not row["correct"] for step in (1, 2, 3) for row in stored(run, step)[:4])
        assert rows.count() == wrong
        at.select_option("select[name=correct]", "")
        at.fill("input[name=kl]", "1000")
        assert rows.count() == 0
        at.fill("input[name=kl]", "")
        texts = [row["text"] for step in (1, 2, 3) for row in stored(run, step)[:4]]
        words = texts[5][-12:].upper()  # of a completion, in other letters
        at.fill("input[name=text]", words)
        assert rows.count() == sum(words in text.upper() for text in texts) < 12
        at.fill("input[name=text]", "")
        at.click("[data-sort=kl]")
        cells = at.locator("#rows tbody td:nth-child(4)").all_inner_texts()
        said = [float(text.replace(MINUS, "-")) for text in cells]
        assert said == sorted(said, reverse=True)


def test_page_anchors_link_to_their_place(browser: Any, page: Path, run: Path) -> None:
    with opened(browser, page, "view=rollouts&step=1&row=0") as at:
        found = at.locator("button.chip.found").count()
        missing = at.locator(".chip.missing").count()
        overlap = stored(run)[0]["overlap"]
        assert found / (found + missing) == pytest.approx(overlap)
        assert found
        for chip in at.locator("button.chip.found").all():
            chip.click()
            text = "".join(at.locator(".t.met").all_inner_texts()).replace("·", " ")
            anchor = chip.get_attribute("data-anchor")
            assert anchor is not None
            assert contains(normalize(text), anchor)


def test_page_run_curves_read_step_and_link_rollouts(browser: Any, page: Path, run: Path) -> None:
    name = "figure[data-chart='Distance from the teacher (KL)']"
    with opened(browser, page, "view=run") as at:
        at.locator(f"{name} svg").hover(position={"x": 60, "y": 60})
        assert "step 1: kl" in at.inner_text(f"{name} .read")
        overlap = "figure[data-chart='Overlap with the solution']"
        assert at.is_hidden(f"{overlap} svg")  # folded, and reads the same step
        assert "step 1" in str(at.text_content(f"{overlap} .read"))
        at.click("#more summary")
        assert at.is_visible(f"{overlap} svg")
        at.locator(f"{name} svg").click(position={"x": 60, "y": 60})
        assert "Step 1, row 0" in at.inner_text("#rollout h2")


def test_page_numbers_are_rounded_as_in_tables(browser: Any, page: Path) -> None:
    values = [n / 80 for n in range(81)] + [0.1525, 0.3125, 1000.5, 1001.5, 0.0005, 2 / 3]
    with opened(browser, page) as at:
        shown = at.evaluate(
            "values => values.map(v => [percent(v), points(-v), number(v)])", values
        )
    for value, (share, difference, number) in zip(values, shown, strict=True):
        assert share == f"{100 * value:.1f} %"
        assert difference.lstrip(f"+{MINUS}") == f"{100 * value:.1f}"
        rounded = f"{value:,.0f}" if value >= 1000 else f"{float(f'{value:.3g}'):g}"
        assert number == rounded


def test_page_run_shows_the_metric_of_a_collapse_warning(
    browser: Any, run: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(run, tmp_path / "collapsed")
    rows = list(storage.read_jsonl(folder / "metrics.jsonl", ""))
    rows.append(rows[-1] | {"step": len(rows) + 1})  # a warning is of the last three steps
    for row in rows[1:]:
        row["truncated_frac"] = rows[0]["truncated_frac"] + 0.5
    storage.write_jsonl(folder / "metrics.jsonl", rows)
    page = show_targets([folder], Display(enabled=False), PageSpec(again=False))
    with opened(browser, page, "view=run") as at:
        assert "truncated" in at.inner_text(".warnings")
        last = at.locator(".charts.large figure").last
        assert last.get_attribute("data-chart") == "Cut off, without an answer, repetitive"


@pytest.mark.parametrize("dark", [False, True])
def test_page_tokens_are_readable_without_network(browser: Any, page: Path, dark: bool) -> None:
    contrast = """() => usable.flatMap(q => { quantity = q; recolour(); return spans.map(s => {
      const parts = t => t.match(/[\\d.]+/g).slice(0, 3).map(Number);
      const style = getComputedStyle(s);
      const [a, b] = [style.color, style.backgroundColor].map(parts).map(luminance);
      return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    }); }).reduce((a, b) => Math.min(a, b))"""
    with opened(browser, page, "view=rollouts", dark=dark) as at:
        assert at.evaluate("isDark()") == dark
        assert at.evaluate(contrast) >= 4.5
        background = "getComputedStyle(document.body).backgroundColor"
        before = at.evaluate(background)
        at.click("#theme")
        assert at.evaluate("isDark()") != dark
        assert at.evaluate(background) != before
        assert at.evaluate(contrast) >= 4.5
        for tab in range(3):
            at.click(f"[role=tab] >> nth={tab}")


HOSTILE = (
    "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>\x1b[2J‮abc⁦\x00é\n"
)


def test_page_model_text_is_not_executed(browser: Any, run: Path, tmp_path: Path) -> None:
    """Also in problems, contexts and names: it neither runs, nor steers, nor turns around."""
    folder = shutil.copytree(run, tmp_path / "hostile")
    shutil.rmtree(folder / "tokens")
    policy = load_policy(read_run(run).model, seed=0)
    ids = policy.tokenizer.encode(HOSTILE, add_special_tokens=False)
    rows = stored(folder)
    for row in rows:
        row.update(completion_ids=ids, engine_log_probs=[-1.0] * len(ids), text=HOSTILE)
        row.update(problem=HOSTILE, answer=HOSTILE, source=HOSTILE, context=HOSTILE)
    storage.write_jsonl(folder / "rollouts/step-000001.jsonl", rows)
    page = show_targets([folder], Display(enabled=False), PageSpec(steps=[1]))
    assert page.read_text("utf-8").count("</script>") == 2
    with opened(browser, page, "view=rollouts&step=1&row=0&token=3") as at:
        text = at.inner_text("#tokens")
        assert "</script><script>" in text.replace("·", " ")
        assert "␛[2J" in text
        assert "E280AE" in text  # a mark in three tokens: each shows its byte
        assert "U+202E" in at.inner_text("#rollout")
        assert "␀" in text
        assert "‮" not in at.inner_text("body")
        assert "\x1b" not in at.inner_text("body")
        assert at.title() != "taken"
        assert at.locator("main img").count() == 0


def test_page_names_cannot_turn_text_around(browser: Any, run: Path, tmp_path: Path) -> None:
    """Direction marks in names of runs, policies and benchmarks are shown as such."""
    mark, quiet = "\u202e", Display(enabled=False)
    named = shutil.copytree(run, tmp_path / f"one{mark}")
    evals = tmp_path / f"evals{mark}"
    for step in ("step-000000", "step-000003"):
        made = run / f"validation/{step}/held_out"
        shutil.copytree(made, evals / f"{step}{mark}" / f"set{mark}")
    for target, spec in ((named, PageSpec(again=False)), (evals, PageSpec())):
        path = show_targets([target], quiet, spec, out=tmp_path / "page.html")
        with opened(browser, path) as at:
            assert mark not in at.title()
            for tab in range(at.locator("[role=tab]").count()):
                at.click(f"[role=tab] >> nth={tab}")
                text = at.inner_text("body")
                assert mark not in text
                assert "U+202E" in text


def test_page_of_a_baseline_shows_stored_values(browser: Any, tmp_path: Path) -> None:
    short: dict[str, Any] = {
        "rollout": {"max_new_tokens": 60},
        "train": {"steps": 1, "batch_size": 8, "checkpoint_every": 1},
    }
    train(changed("demo-grpo", short, {"model": {"lora_rank": 4, "lora_alpha": 8}}), tmp_path)
    page = show_targets([tmp_path], Display(enabled=False))
    with opened(browser, page, "view=rollouts&step=1&row=1") as at:
        ids = stored(tmp_path)[1]["completion_ids"]
        assert at.locator("#tokens .t").count() == len(ids)
        at.hover("#tokens .t >> nth=3")
        kept = read_tokens(tokens_path(tmp_path, 1))[1]
        said = at.get_attribute("#tip [data-value=student_entropy]", "data-exact")
        assert said is not None
        assert float(said) == pytest.approx(kept["student_entropy"][3], rel=1e-6)
        for tab in range(3):
            at.click(f"[role=tab] >> nth={tab}")


def half(completion: str, row: dict[str, Any]) -> paint.Grade:
    return paint.Grade(0.5, "1 of 2 tests passed", feedback="This test failed: assert add(1, 2)")


@pytest.mark.slow
def test_page_of_own_grader_shows_reason_and_feedback_and_no_mathematics(
    browser: Any, tmp_path: Path
) -> None:
    ratios = {"mask_ratio_wrong": 0.0, "mask_ratio_correct": 0.0}
    sections: dict[str, Any] = {
        "context": ratios,
        "grading": {"grader": spec_of(half)},
        "rollout": {"max_new_tokens": 16},
        "train": {"steps": 1, "batch_size": 2, "micro_batch_size": 2},
    }
    folder = tmp_path / "run"
    train(changed("demo-paint", sections), folder)
    page = show_targets([folder], Display(enabled=False), PageSpec())
    with opened(browser, page, "view=rollouts&step=1&row=0") as at:
        facts = at.inner_text("#rollout .facts")
        assert "reward 0.5" in facts
        assert "its box" not in facts
        assert "gold" not in facts
        assert at.inner_text("#rollout .reason") == "Reason: 1 of 2 tests passed"
        assert "assert add(1, 2)" in at.inner_text("#rollout .feedback")
        assert at.locator("#rollout .chip").count() == 0
        assert at.locator("text=The solution: nothing was hidden").count() == 1
        assert at.evaluate("COLUMNS.map(column => column[0])").count("reward") == 1


def test_page_of_evaluation_shows_failure_reason(browser: Any, run: Path, tmp_path: Path) -> None:
    page = show_targets([run / "validation"], Display(enabled=False), out=tmp_path / "e.html")
    with opened(browser, page, "view=problems") as at:
        assert at.locator("#problems tbody tr").count() == 4
        assert at.locator("#problems thead th").count() == 4  # the problem and three checkpoints
        at.click("#problems tbody tr >> nth=2")
        assert at.locator("#answers [data-policy]").count() == 2
        answers = at.locator("#answers [data-policy] >> nth=0").locator("details")
        assert answers.count() == 3
        right = sum("✓" in text for text in answers.locator("summary").all_inner_texts())
        line = at.inner_text("#problems tbody tr >> nth=2")
        assert f"{right}/3" in line
        at.click("[role=tab] >> nth=0")
        assert at.locator("figure").filter(has_text="Avg@3 on held_out").count() == 1
        assert at.locator("h2").filter(has_text="Other metrics").count() == 1


class Judge(Grader):
    """Rewards that a judge gives: by the completion's length, none of the texts "fails"."""

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        return [self.of(item.text) for item in items]

    def of(self, text: str) -> Grade:
        if text == "fails":
            return Grade(None, "HTTP 429", failed=True)
        remark, parts = f"{len(text)} letters. {HOSTILE}", {"tone": Grade(0.25)}
        return Grade(len(text) / 20, "judged", feedback=remark, parts=parts)


def judged(policy: Policy, folder: Path) -> Path:
    """An evaluation of two policies on 12 chats, two answers each; one has no grade."""
    asked = (("system", "Be kind."), ("user", HOSTILE))
    turns = (*asked, ("assistant", "Where?"), ("user", "Norway."))
    chats = [Problem("Norway.", "", "", f"chat {i}", turns=turns) for i in range(12)]
    for name, letters in (("base", 4), ("trained", 10)):
        texts = {
            (chat.id, n): "a" * (letters + i % 3 + n)
            for i, chat in enumerate(chats)
            for n in (0, 1)
        }
        if name == "base":
            texts |= {("chat 11", 0): "fails", ("chat 11", 1): "fails"}
        place = evaluated(policy, folder / name / "support", chats, texts)
        with reopen_store(place) as store:
            grade(store, Judge(), GradingConfig(grader=("code",)), Display(enabled=False))
    return folder


def test_page_of_a_judge_shows_chats_remarks_and_rewards_as_their_table(
    browser: Any, policy: Policy, tmp_path: Path
) -> None:
    page = show_targets([judged(policy, tmp_path)], Display(enabled=False))
    with opened(browser, page) as at:
        chart = at.locator("figure[data-chart='Mean reward on support']")
        drawn = {
            title.split(": ")[0]: title.split(": ")[1]
            for title in chart.locator("circle title").all_text_contents()
        }
        table = at.locator(".results").first
        rows = [row.inner_text().split("\t") for row in table.locator("tbody tr").all()]
        assert drawn == dict(rows)
        assert set(drawn) == {"base", "trained"}
        assert "1 of 12 problems have no reward" in chart.inner_text()
        assert "1 of 12 problems have no reward" in at.locator("h2").all_inner_texts()[2]
        assert "Avg@" not in at.inner_text("main")
        less = at.locator("figure[data-chart=support] circle title").text_content()
        assert less.split(": ")[1] in at.locator(".results").last.inner_text().replace("-", MINUS)

        at.click("[role=tab] >> nth=1")
        line = at.locator("#problems tbody tr").first.inner_text()
        assert [part.strip() for part in line.split("\t")] == ["chat 0", "0.23", "0.53"]
        assert at.locator("#problems .cells").count() == 0
        roles = [turn.get_attribute("data-role") for turn in at.locator("#answers .turn").all()]
        assert roles == ["system", "user", "assistant", "user"]
        assert "</script><script>" in at.locator("#answers .turn").nth(1).inner_text()
        first = at.locator("#answers [data-policy=trained] details").first
        assert "reward 0.5" in first.locator("summary").inner_text()
        assert "tone 0.25" in first.locator("summary").inner_text()
        assert first.locator(".remark").inner_text().startswith("Remark\n10 letters.")
        assert "✗" not in at.inner_text("#answers")
        assert "gold" not in at.inner_text("#answers")
        at.evaluate("""() => {
          const [problem] = set.problems;
          problem.answers.base[0].turns = [["assistant", "calls"], ["tool", "</script>42"]];
          choose(problem);
        }""")
        spoken = at.locator("#answers [data-policy=base] details").first.locator(".turn")
        assert [turn.get_attribute("data-role") for turn in spoken.all()] == ["assistant", "tool"]
        assert "</script>42" in spoken.last.inner_text()
        at.select_option("select[name=kind]", "ungraded")
        assert at.locator("#problems tbody tr").count() == 1
        at.click("#problems tbody tr")
        assert "not graded: HTTP 429" in at.inner_text("#answers")
        at.select_option("select[name=kind]", "")
        at.fill("input[name=text]", "AAAAAAAAAAAAA")  # of the completions
        assert at.locator("#problems tbody tr").count() == 4


def test_page_of_tables_draws_lines_intervals_and_cells(browser: Any, tmp_path: Path) -> None:
    rows = to_measurement("solution", "", "gradient", Interval(0.612, 0.3721, 0.756))
    rows += to_measurement("none", "", "gradient", Interval(0, 0, 0))
    rows += to_measurement("solution", "", "kl", Interval(0.0107, 0.007, 0.012))
    rows += to_measurement("solution", "", "leakage", Interval(0.25, 0, 1))
    charts = [
        Chart("Accuracy gradient", "gradient", "points"),
        Chart("KL a token", "kl"),
        Chart("Answer leakage", "leakage", "%"),
    ]
    table = Table("Risks", ["", "KL"], [["<img src=x onerror=alert(1)>", "0.1"]])
    report = Report(rows, [table], charts, ["train with --context.source solution"])
    write_report(tmp_path, "advice", report, ConfigError)
    page = show_targets([tmp_path], Display(enabled=False))
    with opened(browser, page) as at:
        assert at.inner_text("main li") == "train with --context.source solution"
        figures = at.locator("figure")
        titles = figures.locator("circle title").all_text_contents()
        assert titles == [
            "solution: +61.2 [+37.2, +75.6]",
            "none: +0.0 [+0.0, +0.0]",
            "solution: 0.0107 [0.007, 0.012]",
            "solution: 25.0 % [0.0 %, 100.0 %]",
        ]
        assert at.locator("td").all_text_contents() == table.rows[0]

        # A picture of 330 units on a telephone: its letters of 11 keep nearly that size.
        at.set_viewport_size({"width": 390, "height": 800})
        at.reload()
        at.wait_for_selector("figure svg")
        width = figures.locator("svg").first.bounding_box()["width"]
        drawn = float(str(figures.locator("svg").first.get_attribute("viewBox")).split()[2])
        assert width / drawn > 0.9
        assert figures.locator("circle title").all_text_contents() == titles


def test_pages_fit_their_window(browser: Any, page: Path, run: Path, tmp_path: Path) -> None:
    evaluation = show_targets([run / "validation"], Display(enabled=False), out=tmp_path / "e.html")
    for path in (page, evaluation):
        with opened(browser, path) as at:
            for width, tab in product((390, 1280), range(3)):
                at.set_viewport_size({"width": width, "height": 860})
                at.click(f"[role=tab] >> nth={tab}")
                assert at.evaluate("document.documentElement.scrollWidth") <= width
                scrolled = "[...document.querySelectorAll('.scroll')].filter(e => e.offsetParent)"
                assert not at.evaluate(f"{scrolled}.some(e => e.scrollWidth > e.clientWidth + 1)")
