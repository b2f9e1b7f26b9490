"""Text as it is written turned into text as it is said: a pure function, the same for every voice.

In order: unseen characters and emoji go, markdown gives up its marks and keeps its words, addresses become
"example dot com", abbreviations their long form, then numbers with what they count, symbols, bare numbers.
Each step is a table of (pattern, reading), tried from the most particular to the most general. What comes out
has no digits. Left to the voice: pronunciation, Roman numerals, stress. The readings are American English.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable
from re import Match

from .numbers import cardinal, digits, number, ordinal, plural, year

Rule = tuple[re.Pattern[str], str | Callable[[Match[str]], str]]

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
MONTH_OF = {name: name for name in MONTHS} | {name[:3]: name for name in MONTHS} | {"Sept": "September"}
MONTH = "|".join(sorted(MONTH_OF, key=len, reverse=True))

AMOUNT = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
SCALE = r"thousand|million|billion|trillion|bn|[kKmMBT](?![\w/²³])"
SCALES = {"k": "thousand", "m": "million", "b": "billion", "bn": "billion", "t": "trillion"}
MONEY = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
}
UNITS = {
    "km": "kilometer", "m": "meter", "cm": "centimeter", "mm": "millimeter", "nm": "nanometer",
    "kg": "kilogram", "g": "gram", "mg": "milligram", "lb": "pound", "lbs": "pound", "oz": "ounce",
    "mi": "mile", "yd": "yard", "l": "liter", "L": "liter", "ml": "milliliter", "mL": "milliliter",
    "s": "second", "sec": "second", "secs": "second", "ms": "millisecond", "min": "minute", "mins": "minute",
    "h": "hour", "hr": "hour", "hrs": "hour", "KB": "kilobyte", "kB": "kilobyte", "MB": "megabyte",
    "GB": "gigabyte", "TB": "terabyte", "W": "watt", "kW": "kilowatt", "MW": "megawatt",
    "kWh": "kilowatt hour", "V": "volt", "mAh": "milliamp hour", "cal": "calorie", "kcal": "kilocalorie",
    "km²": "square kilometer",
    "m²": "square meter", "m2": "square meter", "km2": "square kilometer", "m³": "cubic meter",
    "cm²": "square centimeter", "cm³": "cubic centimeter", "°": "degree",
}  # fmt: skip
FIXED_UNITS = {
    "ft": ("foot", "feet"),
    "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
}
PER = {
    "h": "hour", "hr": "hour", "s": "second", "sec": "second", "min": "minute", "day": "day", "week": "week",
    "kg": "kilogram", "km": "kilometer", "l": "liter", "L": "liter",
    "m²": "square meter", "m³": "cubic meter",
}  # fmt: skip
SPEEDS = {"mph": ("mile", "miles"), "kph": ("kilometer", "kilometers"), "kmh": ("kilometer", "kilometers")}
UNIT = "|".join(sorted(map(re.escape, UNITS | FIXED_UNITS | SPEEDS), key=len, reverse=True))

LONG_FORMS = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Dr": "Doctor", "Prof": "Professor", "Gen": "General",
    "Gov": "Governor", "Sen": "Senator", "Rep": "Representative", "Capt": "Captain", "Lt": "Lieutenant",
    "Col": "Colonel", "Sgt": "Sergeant", "Rev": "Reverend", "Hon": "Honorable", "Mt": "Mount", "Ft": "Fort",
    "St": "Saint",
}  # fmt: skip
"""Before a name."""

ABBREVIATIONS = {
    "e.g.": "for example", "i.e.": "that is", "etc.": "et cetera", "vs.": "versus",
    "approx.": "approximately", "a.k.a.": "also known as", "cf.": "compare", "et al.": "and others",
    "viz.": "namely", "Jr.": "Junior", "Sr.": "Senior", "Inc.": "Incorporated",
    "Ltd.": "Limited", "Co.": "Company", "Corp.": "Corporation",
    "Bros.": "Brothers", "Ave.": "Avenue", "Blvd.": "Boulevard", "Rd.": "Road", "St.": "Street",
    "dept.": "department", "Dept.": "Department", "incl.": "including", "excl.": "excluding",
    "resp.": "respectively", "Fig.": "Figure", "fig.": "figure", "Eq.": "Equation", "Ch.": "Chapter",
    "Vol.": "Volume", "w/o": "without", "w/": "with",
}  # fmt: skip
ENDS_SENTENCE = (
    "etc.",
    "Jr.",
    "Sr.",
    "Inc.",
    "Ltd.",
    "Co.",
    "Corp.",
    "Bros.",
    "Ave.",
    "Blvd.",
    "Rd.",
    "St.",
    "et al.",
)

CLEAN: list[Rule] = [
    (re.compile(r"[0-9#*]\ufe0f?\u20e3"), " "),
    (
        re.compile(
            "[\U0001f000-\U0001fbff\u2300-\u23ff\u25a0-\u27bf\u2b00-\u2bff\u3030\u303d\u00a9\u00ae\u2122"
            "\ufe00-\ufe0f\u200d\u20e3\U000e0000-\U000e007f]+"
        ),
        " ",
    ),
    (re.compile(r"(?<!\S)[:;]-?[()DP](?![\w(])"), " "),
    (re.compile(r"[‘’ʼ]"), "'"),
    (re.compile(r"[‐‑‒]"), "-"),
    (re.compile(r"\.{3,}"), "…"),
    (re.compile(r"[₀-₉]"), lambda m: unicodedata.normalize("NFKC", m[0])),
]

SCHEME = r"(?:https?|ftp)://"
DOMAIN = r"(?:[a-zA-Z0-9](?:[\w-]*[a-zA-Z0-9])?\.)+[a-zA-Z]{2,}"
TOP = "com|org|net|edu|gov|io|dev|app|ai|co|info|me|tv|uk|de|fr|eu|us|ca|au|jp|ch|nl|it|es"

MARKDOWN: list[Rule] = [
    (re.compile(r"!?\[([^\[\]]*)\]\((?:[^()\s]|\([^()]*\))*(?:\s+\"[^\"]*\")?\)?"), r"\1"),
    (re.compile(r"\[\^?\d+\](?!\()|\[\^[^\]]+\]"), ""),
    (re.compile(r"\[([^\[\]]+)\]\[[^\]]*\]"), r"\1"),
    (re.compile(rf"<({SCHEME}[^<>\s]+|[^<>\s@]+@[^<>\s@]+)>"), r"\1"),
    (re.compile(r"<br\s*/?>", re.IGNORECASE), ", "),
    (re.compile(r"<[/!]?[a-zA-Z][^<>]*>|<\|[^<>]*\|>|◁/?\w+▷|<[/|]*[a-zA-Z][\w|/]*$"), " "),
    (re.compile(r"`+"), ""),
    (re.compile(r"\*{2,}|~{2,}|(?<!\w)_+(?=\S)|(?<=\S)_+(?!\w)"), ""),
    (re.compile(r"(?<![\w)\s])\*(?=\S)|(?<=\s)\*(?=[^\s\d])|^\*(?=\S)|(?<=[^\s\d])\*(?![\w(])"), ""),
    (re.compile(r"\\[()\[\]]|\$\$|\\(?=\W)"), " "),
]


def _host(match: Match[str]) -> str:
    return _dotted(match[1]) + match[2]


def _dotted(name: str) -> str:
    """The words of a host, an account or a file name."""
    name = re.sub(r"^www\.", "", name)
    for mark, word in ((".", "dot"), ("-", "dash"), ("_", "underscore"), ("+", "plus"), (":", "colon")):
        name = name.replace(mark, f" {word} ")
    return name


ADDRESSES: list[Rule] = [
    (re.compile(rf"(?<![\w.+-])([\w.+-]*\w)@({DOMAIN})"), lambda m: f"{_dotted(m[1])} at {_dotted(m[2])}"),
    (re.compile(rf"{SCHEME}(?:[^\s/@]*@)?([^\s/?#:<>()\[\]]*\w)\S*?([.,;:!?)\]}}\"']*(?=\s|$))"), _host),
    (re.compile(r"\b((?:www\.)(?:[\w-]+\.)*[\w-]*\w)(?:/\S*?)?([.,;:!?)\]\"']*(?=\s|$))"), _host),
    (re.compile(rf"(?<![\w.-])((?:[\w-]+\.)+(?:{TOP}))(?:/\S*?)?\b/?([.,;:!?)\]\"']*(?=\s|$))"), _host),
]


def _abbreviation(match: Match[str]) -> str:
    """The long form; the stop stays when it also ends the sentence."""
    short = match[0]
    rest = match.string[match.end() :].lstrip()
    stop = "." if short in ENDS_SENTENCE and not rest.lstrip("\"')*_ ") else ""
    return ABBREVIATIONS[short] + stop


_short = "|".join(sorted(map(re.escape, ABBREVIATIONS), key=len, reverse=True))
WORDS: list[Rule] = [
    (re.compile(rf"\b({'|'.join(LONG_FORMS)})\. (?=[A-Z])"), lambda m: f"{LONG_FORMS[m[1]]} "),
    (re.compile(r"\b(Mr|Mrs)\b\.?|\b(Ms|Dr)(?=\s+[A-Z])"), lambda m: LONG_FORMS[m[1] or m[2]]),
    (re.compile(rf"(?<![\w.])(?:{_short})(?![\w])"), _abbreviation),
    (re.compile(r"\b[Nn]os?\. ?(?=\d)|(?<![\w&])#(?=\d)"), "number "),
    (re.compile(r"\bp{1,2}\. ?(?=\d)"), "page "),
    (re.compile(r"\b([CF])#"), r"\1 sharp"),
    (re.compile(r"\bC\+\+"), "C plus plus"),
    (re.compile(r"(?<!\w)#(?=[A-Za-z])"), "hashtag "),
    (re.compile(r"\b([ap])\.m\.(?=\s|$)", re.IGNORECASE), lambda m: f"{m[1].upper()}.M."),
]


def _time(match: Match[str]) -> str:
    hour, minute, second, half = match.groups()
    if int(hour) > 24 or int(minute) > 59:
        return match[0]
    words = cardinal(int(hour))
    if int(minute):
        words += f" {'oh ' if int(minute) < 10 else ''}{cardinal(int(minute))}"
    elif not half:
        words += " o'clock" if 0 < int(hour) <= 12 else " hundred"
    if second:
        words += f" and {_count(second, 'second', 'seconds')}"
    return words + (_half(half) if half else "")


def _half(text: str) -> str:
    return f" {text[0].upper()}.M." if text.endswith(".") else f" {text[0].upper()}M"


def _date(month: int, day: int, in_year: str | None) -> str | None:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return f"{MONTHS[month - 1]} {ordinal(day)}" + (f", {year(int(in_year))}" if in_year else "")


def _month_day(match: Match[str]) -> str:
    month = MONTHS.index(MONTH_OF[match[1]]) + 1
    return _date(month, int(match[2]), match[3]) or match[0]


def _day_month(match: Match[str]) -> str:
    day = int(match[1])
    in_year = f", {year(int(match[3]))}" if match[3] else ""
    return f"{ordinal(day)} of {MONTH_OF[match[2]]}{in_year}" if 1 <= day <= 31 else match[0]


def _phone(match: Match[str]) -> str:
    groups = re.findall(r"\d+", match[0])
    return ("plus " if match[0].startswith("+") else "") + ", ".join(map(digits, groups))


def _count(amount: str, one: str, many: str) -> str:
    return f"{number(amount)} {one if amount == '1' else many}"


def _money(match: Match[str]) -> str:
    sign, symbol, amount, scale = match.groups()
    one, many, cent, cents = MONEY[symbol]
    minus = "minus " if sign else ""
    if scale:
        return f"{minus}{number(amount)} {SCALES.get(scale.lower(), scale)} {many}"
    whole, _, part = amount.partition(".")
    if len(part) != 2:
        return minus + _count(amount, one, many)
    said = [_count(whole, one, many)] if whole.strip("0,") or not int(part) else []
    if int(part):
        said.append(f"{cardinal(int(part))} {cent if int(part) == 1 else cents}")
    return minus + " and ".join(said)


def _unit(match: Match[str]) -> str:
    amount, unit, per = match.groups()
    if unit in SPEEDS:
        one, many, per = *SPEEDS[unit], "h"
    else:
        one, many = FIXED_UNITS.get(unit) or (UNITS[unit], f"{UNITS[unit]}s")
    return _count(amount, one, many) + (f" per {PER[per]}" if per else "")


def _fraction(match: Match[str]) -> str:
    whole, top, bottom = match.groups()
    if not 0 < int(top) < int(bottom) <= 10:
        return match[0].replace("/", " ")
    part = {2: "half", 4: "quarter"}.get(int(bottom)) or ordinal(int(bottom))
    words = f"{cardinal(int(top))} {part}" + ("" if top == "1" else "s")
    return f"{number(whole)} and {words}" if whole else words


NUMBERS: list[Rule] = [
    (
        re.compile(r"(\d?)([¼½¾⅓⅔])"),
        lambda m: f"{m[1]} {unicodedata.normalize('NFKC', m[2]).replace('⁄', '/')}",
    ),
    (
        re.compile(r"\b(\d{4})-(\d{2})-(\d{2})(?:T(?=\d)|\b)"),
        lambda m: (_date(int(m[2]), int(m[3]), m[1]) or m[0]) + (" at " if m[0].endswith("T") else ""),
    ),
    (re.compile(r"\b(\d{1,2})/(\d{1,2})/(\d{4})\b"), lambda m: _date(int(m[1]), int(m[2]), m[3]) or m[0]),
    (re.compile(rf"\b({MONTH})\.? (\d{{1,2}})(?:st|nd|rd|th)?\b(?![:/-])(?:,? (\d{{4}})\b)?"), _month_day),
    (re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)? (?:of )?({MONTH})\b(?:,? (\d{{4}})\b)?"), _day_month),
    (
        re.compile(
            r"(?<![\w.])(?:\+\d{1,3}(?:[ .-]?\(?\d{1,4}\)?){2,5}"
            r"|(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}"
            r"|\d{3}-\d{4})(?![\w-])"
        ),
        _phone,
    ),
    (re.compile(r"\b911\b"), "nine one one"),
    (re.compile(r"(?<=[\d%])\s?–\s?(?=[$€£]?\d)|(?<=\d)-(?=[$€£]?\d)"), " to "),
    (re.compile(r"(?<=\d) - (?=\d)|(?<![\w)])[-−](?=\.?\d)|(?<=\d) ?− ?(?=\d)"), " minus "),
    (re.compile(r"'?\b([1-9]0|1[1-9]\d0|20\d0)'?s\b"), lambda m: plural(year(int(m[1])))),
    (re.compile(r"(?<!\w)~\s?(?=\d)|≈"), " about "),
    (re.compile(r"(?<![\w.])\+(?=\d)"), " plus "),
    (re.compile(r"(\d)'\s?(\d{1,2})(?:\"|”|'')"), r"\1 feet \2"),
    (re.compile(r"(?<![\w.])\.(?=\d)"), "0."),
    (re.compile(r"(?<=\d)/(?=(?:second|minute|hour|day|night|week|month|year|person)\b)"), " per "),
    (
        re.compile(
            r"(?<![\w.:])(\d{1,2}):(\d{2})(?::(\d{2}))?(?![\d:])(?:\s?([AaPp]\.[Mm]\.|[AaPp][Mm]\b))?"
        ),
        _time,
    ),
    (
        re.compile(r"(?<![\w.:])(\d{1,2})\s?([AaPp]\.[Mm]\.|[AaPp][Mm]\b)"),
        lambda m: cardinal(int(m[1])) + _half(m[2]),
    ),
    (re.compile(rf"(minus |-)?(?:US)?([$€£¥₹]) ?({AMOUNT})(?:\s?({SCALE}))?"), _money),
    (
        re.compile(rf"(minus )?({AMOUNT})\s?([€£₹])"),
        lambda m: f"{m[1] or ''}{_count(m[2], *MONEY[m[3]][:2])}",
    ),
    (re.compile(rf"(?<![\w.])({AMOUNT})\s?({UNIT})(?:/({'|'.join(PER)}))?(?![\w²³'])"), _unit),
    (re.compile(rf"({AMOUNT})\s?%"), lambda m: f"{number(m[1])} percent"),
    (re.compile(r"(?<![\w./])(?:(\d+) )?(\d{1,2})/(\d{1,2})(?![\w/])"), _fraction),
    (
        re.compile(r"\b(\d{1,3}(?:,\d{3}){1,3}|\d{1,12})(?:st|nd|rd|th)\b"),
        lambda m: ordinal(int(m[1].replace(",", ""))),
    ),
    (re.compile(r"(?<![\w.,])(1[1-9]\d\d|20\d\d)(?![\w,]*\d|\.\d)\b"), lambda m: year(int(m[1]))),
    (re.compile(r"(?<=\d)\s?[×x*]\s?(?=\d)"), " times "),
    (re.compile(r"(?<=\d)\s?÷\s?(?=\d)"), " divided by "),
    (re.compile(r"(?<=\d):(?=\d)"), " to "),
    (re.compile(r"\^\s?(?=\d)"), " to the power of "),
    (re.compile(r"\d+(?:\.\d+){2,}"), lambda m: " point ".join(map(number, m[0].split(".")))),
    (re.compile(r"(?<=[A-Za-z])-(?=\d)|(?<=\d)-(?=[A-Za-z])"), " "),
    (re.compile(rf"{AMOUNT}"), lambda m: f" {number(m[0])} "),
]

SYMBOLS: list[Rule] = [
    (re.compile(r"(?<=\w)\.(?=[a-z]\w)"), " dot "),
    (
        re.compile(r"(?<!\S)~?(?:/[\w.-]+)+/?|(?<!\S)[\w.-]+(?:/[\w.-]+){2,}"),
        lambda m: m[0].replace("/", " slash "),
    ),
    (re.compile(r"(?<=\w)/(?=\w)"), " "),
    (re.compile(r"\s/\s"), " slash "),
    (re.compile(r"\s*(?:[-=]>|[→⇒])\s*"), " to "),
    (re.compile(r"!=|≠"), " is not equal to "),
    (re.compile(r"<=|≤"), " is at most "),
    (re.compile(r">=|≥"), " is at least "),
    (re.compile(r"=+"), " equals "),
    (re.compile(r"(?<=\w) ?\+ ?(?=\w)|\+"), " plus "),
    (re.compile(r"(?<=\s)<(?=\s)"), " is less than "),
    (re.compile(r"(?<=\s)>(?=\s)"), " is greater than "),
    (re.compile(r"&"), " and "),
    (re.compile(r"@"), " at "),
    (re.compile(r"%"), " percent "),
    (re.compile(r"±"), " plus or minus "),
    (re.compile(r"×|(?<=\s)\*(?=\s)"), " times "),
    (re.compile(r"÷"), " divided by "),
    (re.compile(r"²"), " squared"),
    (re.compile(r"³"), " cubed"),
    (re.compile(r"√"), " square root of "),
    (re.compile(r"°"), " degrees "),
    (re.compile(r"\s+-{1,2}\s+|--+|\s+–\s+"), " — "),
    (re.compile(r"\s*\|\s*"), ", "),
    (re.compile(r"[<>*_^~`\\#{}\[\]$€£¥₹•·]+"), " "),
]

TIDY: list[Rule] = [
    (re.compile(r"\(\s*\)"), " "),
    (re.compile(r"\s+"), " "),
    (re.compile(r" +([,.;:!?…)])"), r"\1"),
    (re.compile(r"([,;:])(?:\s*[,;:])+"), r"\1"),
    (re.compile(r"(?<!\.[A-Z])([.!?…])\s*[,;:.]+"), r"\1"),
    (re.compile(r"^[\s,;:.!?…—)-]+"), ""),
]

LIST_NUMBER = re.compile(r"(\d{1,3})[.)]\s+")
BLOCK_MARK = re.compile(r"(?:#{1,6}\s+|>\s?|[-*+•]\s+(?:\[[ xX]\]\s+)?|\|)+")
RULE_LINE = re.compile(r"\s*(?:[-*_=]\s*){3,}$|[\s|:-]*-{2,}[\s|:-]*$|#{1,6}\s*$|[-*+•]\s*$")


def spoken(text: str, *, line_start: bool = True, block: bool = False) -> str:
    """What a voice is to say for `text`; "" when there is nothing to say.

    line_start: `text` begins a line, so a heading or list mark may stand there. block: it ends one of
    markdown's blocks, so speech that ends without a mark gets a full stop.
    """
    text = "".join(c if c.isspace() or unicodedata.category(c)[0] != "C" else _unseen(c) for c in text)
    text = _apply(CLEAN, html.unescape(text))
    lines = text.split("\n")
    said = [_line(line) if line_start or i else line for i, line in enumerate(lines)]
    text = " ".join(line for line in said if line)
    for table in (MARKDOWN, ADDRESSES, WORDS, NUMBERS, SYMBOLS, TIDY):
        text = _apply(table, text)
    text = text.strip()
    if not any(c.isalnum() for c in text):
        return ""
    if block and (text[-1].isalnum() or text[-1] in ",;"):
        return text.rstrip(",;") + "."
    return text


def _unseen(char: str) -> str:
    """Format, control and surrogate characters say nothing; joiners must still join what they joined."""
    return char if char == "\u200d" or "\U000e0000" <= char <= "\U000e007f" else ""


def _line(line: str) -> str:
    """A line without its block marks."""
    line = line.strip()
    if RULE_LINE.match(line):
        return ""
    if line.startswith("|"):
        line = line.rstrip("| ")
    line = line[mark.end() :] if (mark := BLOCK_MARK.match(line)) else line
    if item := LIST_NUMBER.match(line):
        line = f"{cardinal(int(item[1]))}, {line[item.end() :]}"
    return line


def _apply(rules: list[Rule], text: str) -> str:
    for pattern, reading in rules:
        text = pattern.sub(reading, text)
    return text
