"""Words from tokens: what is one word, and when it is spoken."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.asr.words import Timed, joint, words


def timed(*tokens: str | bytes) -> list[Timed]:
    """Token i is spoken from second i to second i + 1."""
    return [
        Timed(token if isinstance(token, bytes) else token.encode(), float(i), i + 1.0)
        for i, token in enumerate(tokens)
    ]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ((" And", " so", ",", " my", " fell", "ow", "."), ["And", "so,", "my", "fellow."]),
        ((" I", " don", "'t", " pay", " 3", ".", "5"), ["I", "don't", "pay", "3.5"]),
        ((" -", " Yes", " —", " no"), ["-Yes—", "no"]),
        ((" «", "voil", "à", "»", " !"), ["«voilà»!"]),
        (
            ("これは", "テスト", "です", "。", "「", "日", "本", "」"),
            [*"これはテストで", "す。", "「日", "本」"],
        ),
        (("コ", "ー", "ヒ", "ー", "人", "々"), ["コー", "ヒー", "人々"]),
        (("我", "说", "hello", " world"), ["我", "说", "hello", "world"]),
        ((" 안녕", "하세요", " 세계"), ["안녕하세요", "세계"]),
        (("สวัส", "ดี", "ครับ"), ["สวัส", "ดี", "ครับ"]),
        ((b"\xe6\x97", b"\xa5", b"\xff", " a"), ["日", "a"]),
        ((), []),
        ((" ", " ."), ["."]),
    ],
)
def test_words(tokens: tuple[str | bytes, ...], expected: list[str]) -> None:
    assert [word.text for word in words(timed(*tokens))] == expected


def test_times_are_the_tokens() -> None:
    [first, second] = words(timed(" fell", "ow", ",", " me"))
    assert (first.start, first.end) == (0.0, 2.0)  # a comma takes no time
    assert (second.start, second.end) == (3.0, 4.0)
    ja = words(timed("日本", "語"))
    assert [(word.start, word.end) for word in ja] == [(0.0, 0.5), (0.5, 1.0), (1.0, 2.0)]


@given(st.lists(st.tuples(st.binary(max_size=6) | st.text(max_size=4).map(str.encode), st.floats(0, 30))))
def test_times_never_decrease_and_words_hold_no_space(tokens: list[tuple[bytes, float]]) -> None:
    times = sorted(at for _, at in tokens)
    found = words(
        [Timed(data, a, b) for (data, _), a, b in zip(tokens, times, [*times[1:], 30.0], strict=False)]
    )
    assert all(word.start <= word.end for word in found)
    assert all(a.end <= b.start for a, b in pairwise(found))
    assert all(word.text and not any(c.isspace() for c in word.text) for word in found)


@pytest.mark.parametrize(
    ("before", "after", "between"),
    [
        ("one.", "two", " "),
        ("", "two", ""),
        ("one", "", ""),
        ("你好。", "再见", ""),
        ("你好", "再见", ""),
        ("です", "。", ""),
        ("안녕", "세계", " "),
        ("你好", "hello", " "),
        ("one ", "two", ""),
        ("สวัสดี", "ครับ", ""),
    ],
)
def test_what_joins_two_pieces(before: str, after: str, between: str) -> None:
    assert joint(before, after) == between
