"""`extends`: what is read, in which order, and what adds up."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from policyquant.errors import PolicyError
from policyquant.policy.load import load_policy
from policyquant.policy.policy import Policy


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(**texts: str) -> None:
    """Files by name (`_` stands for `/`), one policy each."""
    for name, text in texts.items():
        path = Path(name.replace("_", "/") + ".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def rules(policy: Policy) -> list[tuple[str, str]]:
    return [(rule.text, rule.origin) for rule in policy.rules]


def problems(path: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.usefixtures("folder")
class TestOrder:
    def test_rules_of_an_extended_policy_come_before_ones_own(self) -> None:
        write(base="layers: {a: fp8}", own="layers: {b: none}\nextends: base.yaml")
        assert rules(load_policy("own.yaml")) == [("a", "extended"), ("b", "own")]

    def test_a_preset_s_rules_come_before_ones_own(self) -> None:
        write(own="extends: fp8-dynamic\nlayers: {b: none}")
        assert rules(load_policy("own.yaml")) == [("kind: linear, moe", "preset"), ("b", "own")]

    def test_depth_first_and_left_to_right(self) -> None:
        write(
            a="layers: {a: fp8}",
            b="extends: a.yaml\nlayers: {b: fp8}",
            c="layers: {c: fp8}",
            own="extends: [b.yaml, c.yaml]\nlayers: {own: fp8}",
        )
        assert [rule.text for rule in load_policy("own.yaml").rules] == ["a", "b", "c", "own"]

    def test_each_file_is_read_once_where_it_is_first_met(self) -> None:
        write(
            a="layers: {a: fp8}",
            b="extends: a.yaml\nlayers: {b: fp8}",
            own="extends: [b.yaml, ./a.yaml, fp8-kv, b.yaml, fp8-kv]\nlayers: {own: fp8}",
        )
        policy = load_policy("own.yaml")
        assert [rule.text for rule in policy.rules] == ["a", "b", "kind: attention", "own"]
        assert policy.files == ("own.yaml", "b.yaml", "a.yaml", "fp8-kv")

    def test_paths_start_from_the_file_that_names_them(self) -> None:
        write(x_base="extends: ../y/deep.yaml\nlayers: {b: fp8}", y_deep="layers: {d: fp8}", own="extends: x/base.yaml")
        policy = load_policy("own.yaml")
        assert [rule.text for rule in policy.rules] == ["d", "b"]
        assert str(policy.rules[0].location).replace("\\", "/") == "x/../y/deep.yaml:1:10"

    def test_a_link_to_a_file_is_that_file(self) -> None:
        write(base="layers: {a: fp8}", own="extends: [base.yaml, link.yaml]")
        Path("link.yaml").symlink_to("base.yaml")
        assert len(load_policy("own.yaml").rules) == 1

    def test_json_and_yaml_extend_each_other(self) -> None:
        write(own="extends: base.json")
        Path("base.json").write_text('{"extends": "deep.yaml", "layers": {"b": "fp8"}}')
        write(deep="layers: {d: fp8}")
        assert [rule.text for rule in load_policy("own.yaml").rules] == ["d", "b"]

    def test_python_data_extends_from_the_working_directory(self) -> None:
        write(base="layers: {a: fp8}")
        assert [rule.text for rule in load_policy({"extends": "base.yaml", "layers": {"b": "fp8"}}).rules] == ["a", "b"]


@pytest.mark.usefixtures("folder")
class TestWhatHolds:
    def test_the_last_default_holds(self) -> None:
        write(a="default: fp8", b="default: int8", own="extends: [a.yaml, b.yaml]")
        default = load_policy("own.yaml").default
        assert default is not None
        assert default.fields.method == "int8"
        assert str(default.location) == "b.yaml:1:10"

    def test_ones_own_default_is_the_last(self) -> None:
        write(a="default: fp8", own="default: none\nextends: a.yaml")
        default = load_policy("own.yaml").default
        assert default is not None
        assert default.fields.method == "none"

    def test_the_last_protect_holds_whole(self) -> None:
        write(a="protect: [head]", b="protect: []", own="extends: [a.yaml, b.yaml]")
        policy = load_policy("own.yaml")
        assert policy.protect == frozenset()
        assert str(policy.protect_location) == "b.yaml:1:1"

    def test_the_last_untie_holds(self) -> None:
        write(a="untie: true", own="extends: a.yaml\nuntie: false")
        assert load_policy("a.yaml").untie
        assert not load_policy("own.yaml").untie

    def test_groups_add_up(self) -> None:
        write(a="groups: [[a, b]]", own="extends: a.yaml\ngroups: [[c, d]]")
        policy = load_policy("own.yaml")
        assert [[pattern.text for pattern in group] for group in policy.groups] == [["a", "b"], ["c", "d"]]
        assert [str(location) for location in policy.groups_locations] == ["a.yaml:1:10", "own.yaml:2:10"]

    def test_expectations_add_up(self) -> None:
        write(
            a='expect: {layers: {head: none}, bits_per_weight: "< 9"}',
            own='extends: a.yaml\nexpect: {layers: {head: none}, bits_per_weight: "> 4"}',
        )
        policy = load_policy("own.yaml")
        assert [each.location.file for each in policy.expected_layers] == ["a.yaml", "own.yaml"]
        assert [each.limit for each in policy.expected_bits] == [9.0, 4.0]

    def test_the_hash_is_that_of_all_texts_in_the_order_in_which_they_are_read(self) -> None:
        write(a="layers: {a: fp8}", own="extends: a.yaml")
        texts = Path("own.yaml").read_bytes() + Path("a.yaml").read_bytes()
        assert load_policy("own.yaml").sha256 == hashlib.sha256(texts).hexdigest()

    def test_a_change_of_an_extended_file_changes_the_hash(self) -> None:
        write(a="layers: {a: fp8}", own="extends: a.yaml")
        before = load_policy("own.yaml").sha256
        write(a="layers: {a: int8}")
        assert load_policy("own.yaml").sha256 != before


@pytest.mark.usefixtures("folder")
class TestProblems:
    def test_a_circle_shows_the_way_around(self) -> None:
        write(a="layers: {}\nextends: b.yaml", b="extends: [c.yaml]", c="extends: [fp8-dynamic, a.yaml]")
        assert problems("a.yaml") == ["c.yaml:1:24: `extends` goes in a circle: a.yaml → b.yaml → c.yaml → a.yaml"]

    def test_a_circle_that_one_is_not_part_of(self) -> None:
        write(own="extends: a.yaml", a="extends: b.yaml", b="extends: a.yaml")
        assert problems("own.yaml") == ["b.yaml:1:10: `extends` goes in a circle: a.yaml → b.yaml → a.yaml"]

    def test_a_policy_that_extends_itself(self) -> None:
        write(own="extends: ./own.yaml")
        assert problems("own.yaml") == ["own.yaml:1:10: `extends` goes in a circle: own.yaml → own.yaml"]

    def test_a_file_that_is_missing(self) -> None:
        write(base="layers: {}", own="extends: bas.yaml")
        assert problems("own.yaml") == ["own.yaml:1:10: no such file: 'bas.yaml'; did you mean 'base.yaml'?"]

    def test_a_preset_that_is_misspelled(self) -> None:
        write(own="extends: [fp8-dynamc]")
        assert problems("own.yaml") == [
            "own.yaml:1:11: no such file or preset: 'fp8-dynamc'; did you mean 'fp8-dynamic'?"
        ]

    def test_a_directory(self) -> None:
        write(x_base="layers: {}", own="extends: x/")
        assert problems("own.yaml") == ["own.yaml:1:10: expected a policy's file, found a directory: 'x'"]

    def test_a_name_that_no_file_can_have(self) -> None:
        write(own='extends: "a\\0b"')
        (problem,) = problems("own.yaml")
        assert problem.startswith("own.yaml:1:10: cannot be read: 'a\\x00b'")

    def test_problems_of_all_files_are_told_at_once(self) -> None:
        write(a="layers: {x: fp9}", b="layers: [", own="extends: [a.yaml, b.yaml, c.yaml]\nuntie: 3")
        places = [problem.split(": ")[0] for problem in problems("own.yaml")]
        assert places == ["own.yaml:1:27", "own.yaml:2:8", "a.yaml:1:13", "b.yaml:1:9"]

    def test_a_chain_that_is_longer_than_any(self) -> None:
        write(**{f"p{number}": f"extends: p{number + 1}.yaml" for number in range(200)}, p200="layers: {}")
        assert problems("p0.yaml") == ["p99.yaml:1:10: a policy extends more than 99 files"]
