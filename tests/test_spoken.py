"""What is said for what is written: the golden table, and promises for any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.tts.numbers import cardinal, number, ordinal, year
from antiphon.tts.spoken import spoken

GOLDEN = [
    # markdown
    ("**Bold**, *italic*, __strong__, _soft_, ~~gone~~.", "Bold, italic, strong, soft, gone."),
    ("***Both* and** more", "Both and more"),
    ("## A heading", "A heading"),
    ("- milk", "milk"),
    ("* [x] done", "done"),
    ("2. Preheat the oven.", "two, Preheat the oven."),
    ("> quoted", "quoted"),
    ("See [the docs](https://example.com/a_b(c)?x=1) now.", "See the docs now."),
    ("![A cat](cat.png)", "A cat"),
    ("Run `make test` first.", "Run make test first."),
    ("| Name | Age |", "Name, Age"),
    ("|------|:---:|", ""),
    ("---", ""),
    ("France[1] is[^2] big.", "France is big."),
    ("Roses &amp; violets<br>red <b>too</b>", "Roses and violets, red too"),
    # emoji
    ("Hello 😀👨‍👩‍👧 there 🇫🇷!", "Hello there!"),
    ("Press 1️⃣ now", "Press now"),
    ("👍🏽", ""),
    ("Good ❤️ :) day", "Good day"),
    # addresses
    ("Visit https://www.example.com/path?x=1.", "Visit example dot com."),
    ("Go to example.com/foo, then stop.", "Go to example dot com, then stop."),
    ("See <https://my-site.org>!", "See my dash site dot org!"),
    (
        "Mail john.doe+x@mail.example.com, please.",
        "Mail john dot doe plus x at mail dot example dot com, please.",
    ),
    # numbers
    ("I have 3 cats and 21 dogs.", "I have three cats and twenty-one dogs."),
    ("1,234,567 people", "one million two hundred thirty-four thousand five hundred sixty-seven people"),
    ("Pi is 3.14159.", "Pi is three point one four one five nine."),
    ("It fell to -5.", "It fell to minus five."),
    ("Agent 007", "Agent zero zero seven"),
    ("the 1st, 2nd, 3rd, 12th and 100th", "the first, second, third, twelfth and one hundredth"),
    (
        "In 1999, 1905, 2005 and 2024.",
        "In nineteen ninety-nine, nineteen oh five, two thousand five and twenty twenty-four.",
    ),
    ("the 1990s and the '80s", "the nineteen nineties and the eighties"),
    ("1/2 cup, 3/4, 2½ cups", "one half cup, three quarters, two and one half cups"),
    ("50% of 3-5%", "fifty percent of three to five percent"),
    ("pages 3-5, 1990–1995", "pages three to five, nineteen ninety to nineteen ninety-five"),
    ("version 1.2.3", "version one point two point three"),
    ("H100 and GPT-4", "H one hundred and GPT four"),
    # money
    (
        "$5.50, €3, £1.01, $0.99",
        "five dollars and fifty cents, three euros, one pound and one penny, ninety-nine cents",
    ),
    (
        "$3.5 million, $20k, -$5, 5€",
        "three point five million dollars, twenty thousand dollars, minus five dollars, five euros",
    ),
    ("It costs $1,000.", "It costs one thousand dollars."),
    # times and dates
    ("It is 10:30.", "It is ten thirty."),
    ("10:05 a.m., 9:00, 5pm", "ten oh five A.M., nine o'clock, five PM"),
    ("On 2024-03-05 we met.", "On March fifth, twenty twenty-four we met."),
    ("March 5, 2024 and 5 March", "March fifth, twenty twenty-four and fifth of March"),
    ("Here I am. It is 5 March.", "Here I am. It is fifth of March."),
    ("From 9:00-17:00", "From nine o'clock to seventeen hundred"),
    ("Dec. 25th", "December twenty-fifth"),
    # phones
    ("Call 555-1234.", "Call five five five, one two three four."),
    ("+1 (415) 555-2671", "plus one, four one five, five five five, two six seven one"),
    # units
    ("120 km/h at -5 °C", "one hundred twenty kilometers per hour at minus five degrees Celsius"),
    ("1 kg, 2.5 kg, 5 m²", "one kilogram, two point five kilograms, five square meters"),
    (
        "$100/month for H₂O at .5 km/h",
        "one hundred dollars per month for H two O at zero point five kilometers per hour",
    ),
    ("a 5-year-old of 6'2\"", "a five year-old of six feet two"),
    ("16 GB at 3.5 GHz", "sixteen gigabytes at three point five gigahertz"),
    ("6 ft and 65 mph", "six feet and sixty-five miles per hour"),
    # abbreviations
    ("Dr. Smith met Mrs. Jones.", "Doctor Smith met Missus Jones."),
    ("Main St. in St. Louis", "Main Street in Saint Louis"),
    ("fruits, e.g. apples, i.e. fruit, etc.", "fruits, for example apples, that is fruit, et cetera."),
    ("cats vs. dogs, approx. five", "cats versus dogs, approximately five"),
    ("The U.S. is big.", "The U.S. is big."),
    ("No. 5 is no.", "number five is no."),
    # symbols
    ("A & B + C = D @ E", "A and B plus C equals D at E"),
    ("2 + 2 = 4, 2 * 3, 10 - 3", "two plus two equals four, two times three, ten minus three"),
    ("#1 and #winning and C#", "number one and hashtag winning and C sharp"),
    ("x < 5 and y >= 3", "x is less than five and y is at least three"),
    ("and/or TCP/IP", "and or TCP IP"),
    ("snake_case in /etc/hosts", "snake case in slash etc slash hosts"),
    ("10^6 and x²", "ten to the power of six and x squared"),
    ("A → B", "A to B"),
    ("Wait... what?", "Wait… what?"),
    # nothing to say
    ("", ""),
    (" \n ", ""),
    ("...", ""),
    ("\ud800 hi\x00", "hi"),
]


@pytest.mark.parametrize(("raw", "said"), GOLDEN)
def test_golden(raw: str, said: str) -> None:
    assert spoken(raw) == said


@given(st.text(st.characters(), max_size=200), st.booleans(), st.booleans())
def test_any_text_is_speakable(text: str, line_start: bool, block: bool) -> None:
    said = spoken(text, line_start=line_start, block=block)
    assert not set(said) & set("0123456789*`\n\t#<>[]{}|\\")
    assert said == said.strip()
    said.encode()
    assert not said or any(c.isalnum() for c in said)


@given(st.text("0123456789.,:/-$€%+() kmhst°C", max_size=60))
def test_any_number_is_words(text: str) -> None:
    assert not any(c.isdecimal() for c in spoken(text))


def test_marks_of_blocks_only_at_the_start_of_a_line() -> None:
    assert spoken("1. May", line_start=True) == "one, May"
    assert spoken("7) and", line_start=False) == "seven) and"
    assert spoken("- and", line_start=False) == "and"


def test_a_block_ends_with_a_stop() -> None:
    assert spoken("- milk\n", block=True) == "milk."
    assert spoken("Is it?\n", block=True) == "Is it?"


def test_number_words() -> None:
    assert cardinal(0) == "zero"
    assert cardinal(1_000_001) == "one million one"
    assert ordinal(21) == "twenty-first"
    assert ordinal(40) == "fortieth"
    assert ordinal(112) == "one hundred twelfth"
    assert year(1900) == "nineteen hundred"
    assert year(2010) == "twenty ten"
    assert year(3000) == "three thousand"
    assert number("1,250.05") == "one thousand two hundred fifty point zero five"
    assert number("9" * 16) == " ".join(["nine"] * 16)
