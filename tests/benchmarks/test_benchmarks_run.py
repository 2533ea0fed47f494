"""Every benchmark runs and prints its table. How fast is for `make bench` to say, on a machine that has nothing else
to do."""

from __future__ import annotations

from importlib import import_module

import pytest

from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.models import FORTY_RULES, model_path
from benchmarks.report import Bar
from benchmarks.timing import Contender, Timing, interleaved
from policyquant import Inventory, load_policy, resolve

WITH_PEERS = ("exact_rules", "exclusion_list")
OURS = ("resolve", "Python", "build, none", "built", "policyquant layers", "operator")
"""What each table has a row or a column of."""


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name not in WITH_PEERS])
def test_a_benchmark_prints_its_table_and_its_bars(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for package in getattr(import_module(f"benchmarks.{name}"), "NEEDS", ()):
        pytest.importorskip(package)
    assert main(["--tiny", name]) == 0
    _is_complete(name, capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_PEERS)
def test_a_benchmark_with_a_peer_runs_that_peer(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for package in import_module(f"benchmarks.{name}").NEEDS:
        pytest.importorskip(package)
    assert main(["--tiny", name]) == 0
    text = capsys.readouterr().out
    _is_complete(name, text)
    assert {"exact_rules": "match_named_modules", "exclusion_list": "should_convert_module"}[name] in text


def _is_complete(name: str, text: str) -> None:
    assert text.startswith(f"{name}: ")
    assert any(word in text for word in OURS)
    assert "reached: " in text or "MISSED: " in text
    assert text.rstrip().endswith("bars reached")


def test_a_benchmark_whose_peer_is_missing_is_left_out_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("benchmarks.exact_rules")
    monkeypatch.setattr(module, "NEEDS", ("no_such_package",))
    assert main(["exact_rules"]) == 0
    assert capsys.readouterr().out.startswith("exact_rules: left out, no_such_package missing")


@pytest.mark.parametrize("model", ["DeepSeek-V3", "Kimi-K2-Instruct"])
def test_the_forty_rules_are_forty_and_sound(model: str) -> None:
    policy = load_policy(FORTY_RULES)
    plan = resolve(policy, Inventory.open(str(model_path(model))))
    assert len(policy.rules) == 40
    assert [finding for finding in plan.findings if finding.level != "note"] == []


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["speed"])
    assert stop.value.code == 2
    assert "no benchmark 'speed'" in capsys.readouterr().err


def test_a_missed_bar_is_the_answer_no(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module("benchmarks.import_cost")
    monkeypatch.setattr(module, "MOST_SECONDS", -1.0)
    monkeypatch.setattr(module, "interleaved", lambda contenders, rounds: interleaved(contenders, 1))
    assert main(["import_cost"]) == 1
    assert "MISSED: import policyquant adds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("direction", "value", "reached"),
    [("at most", 3.9, True), ("at most", 4.1, False), ("at least", 101, True), ("at least", 99, False)],
)
def test_a_bar_knows_its_side(direction: str, value: float, reached: bool) -> None:
    bar = Bar("it takes", value, direction, 4 if direction == "at most" else 100)  # type: ignore[arg-type]
    assert bar.reached is reached
    assert str(bar).startswith("reached" if reached else "MISSED")


def test_contenders_take_turns_and_each_round_gets_a_fresh_preparation() -> None:
    seen: list[str] = []
    prepared = iter(range(100))
    contenders = [
        Contender("a", lambda given: seen.append(f"a{given}"), lambda: next(prepared)),
        Contender("b", lambda _: seen.append("b")),
    ]
    first, second = interleaved(contenders, 3)
    assert seen == ["a0", "b", "b", "a1", "a2", "b"]
    assert len(first.seconds) == len(second.seconds) == 3


def test_the_minimum_and_the_median_of_a_timing() -> None:
    timing = Timing((3.0, 1.0, 2.5))
    assert (timing.minimum, timing.median) == (1.0, 2.5)
