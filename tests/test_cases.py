"""docs/cases.md has every case, and the tests it names are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+) \|$", (ROOT / "docs" / "cases.md").read_text(), re.MULTILINE)


def test_every_case_is_in_the_table() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 53))


@pytest.mark.parametrize(("number", "held"), [(number, held) for number, _, held in ROWS])
def test_the_tests_of_a_case_exist_or_there_is_a_reason(number: str, held: str) -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", held)
    assert named or held.startswith("Not yet: ")
    for file, test in named:
        assert re.search(rf"^(?:async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE), (file, test)


def test_every_test_of_a_case_is_in_its_row() -> None:
    rows = {int(number): held for number, _, held in ROWS}
    for path in sorted((ROOT / "tests").glob("test_cases_*.py")):
        for test, number in re.findall(
            r"^(?:async )?def (test_case_(\d\d)_\w+)\(", path.read_text(), re.MULTILINE
        ):
            assert f"`tests/{path.name}::{test}`" in rows[int(number)], test
