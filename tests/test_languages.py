"""The names of languages."""

import pytest

from antiphon.asr.languages import NAMES, code_of


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("en", "en"),
        ("en-US", "en"),
        ("EN_us", "en"),
        ("English", "en"),
        (" english ", "en"),
        ("eng", "en"),
        ("zh-Hant-TW", "zh"),
        ("Mandarin", "zh"),
        ("Haitian Creole", "ht"),
        ("nb-NO", "no"),
        ("jw", "jw"),
        ("xx", None),
        ("", None),
        ("englisch", None),
    ],
)
def test_what_people_call_them(said: str, code: str | None) -> None:
    assert code_of(said) == code


def test_every_language_is_known_by_its_code_and_its_name() -> None:
    assert len(NAMES) == 100
    assert all(code_of(code) == code and code_of(name.title()) == code for code, name in NAMES.items())
