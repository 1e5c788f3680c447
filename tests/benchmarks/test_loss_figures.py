"""The loss beside its products and peers: a contender that dies costs its own figures."""

import json
from pathlib import Path

import pytest
import torch

import loss
from loss import Options, Size, make, products_of

FAKE = """
import json, sys
name, size, completions = json.loads(sys.argv[2])
with open({started!r}, "a") as file:
    print(size["name"], name, file=file)
print('{{"error": "no such package"}}' if name == "absent" else '{{"peak_bytes": 7}}', flush=True)
for question in sys.stdin:
    if name == "dies" and question == "seconds\\n":
        sys.exit(1)
    print({{"products": 3.0, "seconds": 0.5}}[question.strip()], flush=True)
"""


def test_main_contender_that_dies_or_is_absent_costs_its_own_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, started = tmp_path / "fake.py", tmp_path / "started"
    script.write_text(FAKE.format(started=str(started)))
    monkeypatch.setattr(loss, "__file__", str(script))
    names = ("products", "late", "dies", "absent", "good")
    monkeypatch.setattr(loss, "CONTENDERS", dict.fromkeys(names))
    monkeypatch.setattr(loss, "COMPILED", {"late"})
    monkeypatch.setattr(loss, "CPU", [Size("one", 8, 4, 1), Size("two", 8, 4, 1)])
    path = tmp_path / "figures.json"
    loss.main(Options(repeat=2, memory=(1,), json=path))

    sizes = json.loads(path.read_text())["sizes"]
    assert list(sizes["one"]["contenders"]) == ["products", "dies", "absent", "good", "late"]
    assert list(sizes["two"]["contenders"]) == ["products", "dies", "absent", "good"]
    for size in sizes.values():
        found = size["contenders"]
        assert found["dies"] == {"error": "ended without a word"}
        assert found["absent"] == {"error": "no such package"}
        sound = {"products": 3.0, "seconds": [0.5, 0.5], "ratios": [1.0, 1.0]}
        assert found["good"] == sound | {"peak_bytes": {"1": 7}}
    # Those that are compiled come last of the first size, and for it only.
    began = started.read_text().splitlines()
    assert began.index("one good") < began.index("one late") < began.index("two good")
    assert "two late" not in began


def test_products_of_sum_in_another_dtype_counts_its_multiplications() -> None:
    x = make(Size("one", 8, 4, 1, vocabulary=16), 1)
    states, head = (part.to("meta", torch.bfloat16) for part in (x.student.detach(), x.head))
    logits = torch.empty(4, 16, device="meta")

    def run() -> None:
        torch.addmm(logits, states, head.T, out_dtype=torch.float32, out=logits)

    assert products_of(run, x) == 1
