"""Numbers as English words, the American way and without commas: "one thousand two hundred thirty-four"."""

from __future__ import annotations

ONES = (
    *(
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
    ),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SCALES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
IRREGULAR = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
TOO_LONG = 15
"""More digits than this are read one by one: nobody follows quadrillions by ear."""


def cardinal(n: int) -> str:
    """24 -> "twenty-four". n is at least 0 and has at most TOO_LONG digits."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")
    size, name = next(scale for scale in SCALES if n >= scale[0])
    head, rest = divmod(n, size)
    return f"{cardinal(head)} {name}" + (f" {cardinal(rest)}" if rest else "")


def ordinal(n: int) -> str:
    """24 -> "twenty-fourth"."""
    words = cardinal(n)
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    head, last = words[:cut], words[cut:]
    if last in IRREGULAR:
        return head + IRREGULAR[last]
    return head + (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")


def year(n: int) -> str:
    """1999 -> "nineteen ninety-nine", 1905 -> "nineteen oh five", 2005 -> "two thousand five"."""
    century, rest = divmod(n, 100)
    if not 1100 <= n <= 2099 or (century == 20 and rest < 10):
        return cardinal(n)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def digits(text: str) -> str:
    """The digits of a string one by one; other characters are passed over."""
    return " ".join(ONES[int(c)] for c in text if c in "0123456789")


def number(text: str) -> str:
    """A written number: "1,250" and "3.14" as amounts, "007" and very long ones digit by digit."""
    whole, _, fraction = text.replace(",", "").partition(".")
    read_out = len(whole) > TOO_LONG or (len(whole) > 1 and whole.startswith("0"))
    words = digits(whole) if read_out else cardinal(int(whole or "0"))
    return f"{words} point {digits(fraction)}" if fraction else words


def plural(word: str) -> str:
    """The plural of a number word: "ninety" -> "nineties"."""
    if word.endswith("y"):
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith("x") else f"{word}s"
