"""The picture of a comparison names its runs, and draws an interval for each difference."""

from pathlib import Path

from comparison_plot import save_plot
from paint.lab.checkpoint_results import CheckpointResult
from paint.lab.comparison_report import Layout


def result(run: str, right: list[int]) -> CheckpointResult:
    exam = {"samples": 4, "problems": 3, "benchmark": "demo"}
    names = ["one", "two", "three"]
    config = {"train": {"steps": 2}}
    return CheckpointResult(run, 0, config, exam, "same", 2, 100, 1.0, names, right, 9.0)


def test_save_plot_names_each_run_and_the_difference_to_the_last(tmp_path: Path) -> None:
    results = [result("base", [1, 2, 1]), result("mine", [2, 2, 3]), result("last", [4, 3, 4])]
    for names, difference in ((["mine", "last"], "last less"), (["mine"], "mine less")):
        path = tmp_path / f"{len(names)}.svg"
        save_plot(path, Layout("Ours", names), results)
        text = path.read_text()
        assert all(f">{name}</text>" in text for name in ["base", *names])
        assert difference in text
    assert (tmp_path / "1.svg").read_bytes() != (tmp_path / "2.svg").read_bytes()
