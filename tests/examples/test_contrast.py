"""examples/contrast.py: the target is the contrast of the two contexts that it names."""

import importlib
import sys
from pathlib import Path

import pytest

from paint.config.run_folder import read_metrics
from paint.training.trainer import train
from runs import changed

SMALL = {
    "rollout": {"max_new_tokens": 24, "batch_size": 8},
    "train": {"steps": 1, "batch_size": 8, "micro_batch_size": 3},
}


@pytest.mark.slow
def test_contrast_of_strength_minus_one_is_the_other_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    contrast = importlib.import_module("contrast")
    monkeypatch.setitem(sys.modules, "contrast", contrast)
    monkeypatch.setattr(contrast, "AGAINST", "answer")
    method = {"train": {"method": "contrast:Contrast"}}
    kl = {}
    for strength in (0.0, -1.0):
        monkeypatch.setattr(contrast, "STRENGTH", strength)
        train(changed("demo-paint", SMALL, method), tmp_path / str(strength))
        kl[strength] = read_metrics(tmp_path / str(strength))[0]["kl"]
    for strength, source in ((0.0, "solution"), (-1.0, "answer")):
        train(changed("demo-paint", SMALL, {"context": {"source": source}}), tmp_path / source)
        expected = read_metrics(tmp_path / source)[0]["kl"]
        assert kl[strength] == pytest.approx(expected, rel=1e-4)
    assert kl[0.0] != pytest.approx(kl[-1.0], rel=0.1)
