"""`paint doctor`: what a run would find, and libraries that do not fit."""

import json

import pytest

import paint
from codetrial import sandbox
from paint.cli import main
from paint.inference import machine


def test_doctor_sizes_and_recipe_are_those_of_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "demo-paint", "paint", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["memory"]["free"] <= found["memory"]["total"]
    assert found["packages"]["torch"]["fits"]
    assert "; fits" in found["recipes"]["demo-paint"]
    assert "config.json" in found["recipes"]["paint"]
    assert paint.doctor()["memory"]["total"] == found["memory"]["total"]


def test_doctor_library_that_does_not_fit_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs = ["torch<2", "nosuch>=1", "transformers", "peft", 'other>1; extra == "dev"']
    monkeypatch.setattr(machine, "requires", lambda name: needs)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "nosuch: not installed, and paint needs >=1" in said
    assert "and paint needs <2" in said
    assert "2 of 4 fit" in said


def test_doctor_says_what_tested_code_can_reach(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reached = ("the network", "your files")
    monkeypatch.setattr(sandbox, "find_reach", lambda way: reached)
    assert main(["doctor"]) == 0
    assert "code     warning: tested code can reach the network, your files" in (
        capsys.readouterr().out
    )
