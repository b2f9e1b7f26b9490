"""The languages that Whisper knows: their codes, their English names, and what else people call them. Data."""

from __future__ import annotations

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
    code: name
    for code, _, name in (
        line.strip().partition(" ")
        for line in """
        en english
        zh chinese
        de german
        es spanish
        ru russian
        ko korean
        fr french
        ja japanese
        pt portuguese
        tr turkish
        pl polish
        ca catalan
        nl dutch
        ar arabic
        sv swedish
        it italian
        id indonesian
        hi hindi
        fi finnish
        vi vietnamese
        he hebrew
        uk ukrainian
        el greek
        ms malay
        cs czech
        ro romanian
        da danish
        hu hungarian
        ta tamil
        no norwegian
        th thai
        ur urdu
        hr croatian
        bg bulgarian
        lt lithuanian
        la latin
        mi maori
        ml malayalam
        cy welsh
        sk slovak
        te telugu
        fa persian
        lv latvian
        bn bengali
        sr serbian
        az azerbaijani
        sl slovenian
        kn kannada
        et estonian
        mk macedonian
        br breton
        eu basque
        is icelandic
        hy armenian
        ne nepali
        mn mongolian
        bs bosnian
        kk kazakh
        sq albanian
        sw swahili
        gl galician
        mr marathi
        pa punjabi
        si sinhala
        km khmer
        sn shona
        yo yoruba
        so somali
        af afrikaans
        oc occitan
        ka georgian
        be belarusian
        tg tajik
        sd sindhi
        gu gujarati
        am amharic
        yi yiddish
        lo lao
        uz uzbek
        fo faroese
        ht haitian creole
        ps pashto
        tk turkmen
        nn nynorsk
        mt maltese
        sa sanskrit
        lb luxembourgish
        my myanmar
        bo tibetan
        tl tagalog
        mg malagasy
        as assamese
        tt tatar
        haw hawaiian
        ln lingala
        ha hausa
        ba bashkir
        jw javanese
        su sundanese
        yue cantonese
        """.strip().splitlines()
    )
}
"""English name by code, in the order of the model's vocabulary. Only newer models know Cantonese."""

_ALSO = {
    **{"burmese": "my", "valencian": "ca", "flemish": "nl", "haitian": "ht", "letzeburgesch": "lb"},
    **{"pushto": "ps", "panjabi": "pa", "moldavian": "ro", "moldovan": "ro", "sinhalese": "si"},
    **{"castilian": "es", "mandarin": "zh", "bokmål": "no", "farsi": "fa", "filipino": "tl"},
    **{"iw": "he", "in": "id", "nb": "no", "jv": "jw", "fil": "tl", "cmn": "zh", "zho": "zh", "eng": "en"},
    **{"deu": "de", "ger": "de", "fra": "fr", "fre": "fr", "spa": "es", "por": "pt", "ita": "it"},
    **{
        "jpn": "ja",
        "kor": "ko",
        "rus": "ru",
        "nld": "nl",
        "pol": "pl",
        "tur": "tr",
        "ara": "ar",
        "hin": "hi",
    },
}

_CODES: Mapping[str, str] = {**{name: code for code, name in NAMES.items()}, **_ALSO}


def code_of(said: str) -> str | None:
    """The code of a language named as "en", "en-US", "EN_us", "English" or "eng"; None for an unknown one."""
    name = said.strip().casefold()
    if name in _CODES:
        return _CODES[name]
    head = name.replace("_", "-").partition("-")[0]
    return head if head in NAMES else _ALSO.get(head)
