"""Whisper on short windows: buckets and guards, purely; and with the model, words from speech only."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from antiphon.asr.base import SAMPLE_RATE, Reading, Transcription, Window
from antiphon.asr.ctranslate2 import FULL, MARGIN, STEP, Whisper, hollow
from antiphon.asr.formats import decode_file
from antiphon.pipeline.errors import BadRequest, EngineFailed
from antiphon.pipeline.settings import load as load_settings
from antiphon.pipeline.weights import WeightStore

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("text", "logprob", "no_speech", "made_up"),
    [
        ("Do you feel as though you could?", -0.3, 0.05, False),
        ("Mountain View.", -1.0, 0.27, False),
        ("Thank you.", -0.2, 0.05, False),
        ("Thank you.", -0.8, 0.05, True),
        ("You", -0.2, 0.5, True),
        ("1, 2, 3, 4", -0.7, 0.2, True),
        ("1 2 3 4", -0.2, 0.1, False),
        ("One two three four.", -0.7, 0.2, True),
        ("1、2、3、4", -0.7, 0.2, True),
        ("Something long and unlikely.", -1.2, 0.4, True),
        ("Steady hum as words.", -0.5, 0.9, True),
        (" ... ", -0.1, 0.0, True),
        ("♪", -0.1, 0.0, True),
        ("", 0.0, 0.0, True),
        ("да", -0.2, 0.1, False),
    ],
)
def test_what_counts_as_made_up(text: str, logprob: float, no_speech: float, made_up: bool) -> None:
    assert hollow(Transcription(text, avg_logprob=logprob, no_speech_prob=no_speech)) is made_up


def test_a_translation_may_be_less_sure() -> None:
    found = Transcription("The sand is white.", avg_logprob=-1.6, no_speech_prob=0.03)
    assert hollow(found)
    assert not hollow(found, 0.5)


def test_a_folder_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match=str(tmp_path)):
        Whisper(tmp_path)


@pytest.fixture(scope="module")
def store() -> WeightStore:
    settings = load_settings()
    return WeightStore(settings.weights.root, offline=settings.weights.offline)


@pytest.fixture(scope="module")
def whisper(store: WeightStore) -> Whisper:
    return Whisper(store.fetch("whisper-tiny.en"), threads=2)


def normal(text: str) -> list[str]:
    return pytest.importorskip("whisper_normalizer.english").EnglishTextNormalizer()(text).split()


def clip(name: str) -> np.ndarray:
    return decode_file(DATA / name)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * SAMPLE_RATE), np.float32)


@pytest.mark.model
def test_buckets_hold_the_window_and_its_margin(whisper: Whisper) -> None:
    for seconds in np.arange(0.0, 30.01, 0.37):
        frames = whisper.bucket(Window(silence(seconds)))
        assert frames == FULL or frames % STEP == 0
        assert frames >= min(FULL, seconds * 100 + MARGIN)
        assert frames // 2 not in (80, 128)  # CTranslate2 would take the encoder's output for features


@pytest.mark.model
def test_recorded_clips_are_understood(whisper: Whisper) -> None:
    wrong = words = 0
    jiwer = pytest.importorskip("jiwer")
    for row in map(json.loads, (DATA / "manifest.jsonl").read_text().splitlines()):
        [result] = whisper.transcribe([Window(clip(row["path"]), language="en")])
        found = jiwer.process_words(" ".join(normal(row["text"])), " ".join(normal(result.text)))
        wrong += found.substitutions + found.deletions + found.insertions
        words += len(normal(row["text"]))
        assert " ".join(segment.text for segment in result.segments) == result.text
        assert all(0 <= s.start <= s.end <= len(clip(row["path"])) / SAMPLE_RATE for s in result.segments)
    assert wrong / words < 0.15


@pytest.mark.model
def test_a_batch_gives_what_each_window_gives_alone(whisper: Whisper) -> None:
    windows = [
        Window(clip("question.wav")),
        Window(silence(1.0)),
        Window(clip("silly.flac")),
        Window(clip("nerves.flac"), prefix="How are your"),
        Window(clip("nerves.flac")),
    ]
    together = whisper.transcribe(windows)
    assert [t.text for t in together] == [whisper.transcribe([w])[0].text for w in windows]
    assert together[1].text == ""


@pytest.mark.model
def test_the_prefix_is_in_the_text_and_in_front(whisper: Whisper) -> None:
    samples = clip("question.wav")
    [free] = whisper.transcribe([Window(samples)])
    words = free.text.split()
    [forced] = whisper.transcribe([Window(samples, prefix=" ".join(words[:5]))])
    assert normal(forced.text) == normal(free.text)
    [other] = whisper.transcribe([Window(samples, prefix="Did you feel", final=False)])
    assert other.text.startswith("Did you feel")


@pytest.mark.model
def test_a_wrong_prefix_does_not_survive_a_bad_score(whisper: Whisper) -> None:
    nonsense = "banana " * 12
    [result] = whisper.transcribe([Window(clip("silly.flac"), prefix=nonsense)])
    assert "banana" not in result.text


@pytest.mark.model
def test_silence_and_noise_give_no_words(whisper: Whisper) -> None:
    random = np.random.default_rng(5)
    for seconds in (0.0, 0.4, 2.0, 5.0):
        count = round(seconds * SAMPLE_RATE)
        sounds = [np.zeros(count), np.full(count, 0.5), *(random.normal(0, a, count) for a in (1e-3, 0.05))]
        results = whisper.transcribe([Window(sound.astype(np.float32)) for sound in sounds])
        assert [result.text for result in results] == [""] * 4


@pytest.mark.model
def test_too_much_audio_is_refused(whisper: Whisper) -> None:
    with pytest.raises(BadRequest, match="30 s"):
        whisper.transcribe([Window(silence(30.1))])


@pytest.mark.model
def test_calls_leave_nothing_behind(whisper: Whisper) -> None:
    windows = [Window(clip(name)) for name in ("question.wav", "silly.flac", "nerves.flac")]
    alone = [whisper.transcribe([window])[0].text for window in windows]
    found: dict[int, str] = {}

    def decode(i: int) -> None:
        found[i] = whisper.transcribe([windows[i]])[0].text

    threads = [threading.Thread(target=decode, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(3)] == alone


@pytest.mark.model
@pytest.mark.slow
def test_recorded_noise_and_music_give_no_words(whisper: Whisper, shared_speech: Path) -> None:
    rows = map(json.loads, (shared_speech / "noise" / "manifest.jsonl").read_text().splitlines())
    said: dict[str, str] = {}
    for row in rows:
        if row["text"] == "" and "monkeys" not in row["path"]:
            samples = decode_file(shared_speech / "noise" / row["path"])[: 28 * SAMPLE_RATE]
            if text := whisper.transcribe([Window(samples)])[0].text:
                said[row["path"]] = text
    assert said == {}


@pytest.mark.model
@pytest.mark.slow
def test_other_languages_are_found_and_an_unknown_one_is_refused(
    store: WeightStore, shared_speech: Path
) -> None:
    base = Whisper(store.fetch("whisper-base"), threads=2)
    assert base.multilingual
    for path in sorted((shared_speech / "speech-multi").rglob("fleurs-??-000.*")):
        language = path.name[7:9]
        if language == "fr":
            continue  # at -62 dBFS
        [result] = base.transcribe([Window(decode_file(path)[: 28 * SAMPLE_RATE])])
        assert (result.language, bool(result.text)) == (language, True)
    with pytest.raises(BadRequest, match="'xx'"):
        base.transcribe([Window(clip("silly.flac"), language="xx")])


@pytest.mark.model
def test_a_reading_has_words_and_tokens_where_it_wants_them(whisper: Whisper) -> None:
    window = Window(clip("question.wav"), reading=Reading(align=True))
    [found], [plain] = whisper.transcribe([window]), whisper.transcribe([Window(clip("question.wav"))])
    assert found.text == plain.text
    assert [word.text for s in found.segments for word in s.words] == found.text.split()
    assert b"".join(t.data for s in found.segments for t in s.tokens).decode().split() == found.text.split()
    times = [at for s in found.segments for word in s.words for at in (word.start, word.end)]
    assert times == sorted(times)
    assert times[-1] <= window.seconds
    assert all(token.logprob <= 0 for s in found.segments for token in s.tokens)
    assert not any(s.words or s.tokens for s in plain.segments)


@pytest.mark.model
def test_a_prompt_of_any_length_leaves_room_for_the_text(whisper: Whisper) -> None:
    [plain] = whisper.transcribe([Window(clip("question.wav"), reading=Reading())])
    [told] = whisper.transcribe([Window(clip("question.wav"), reading=Reading(prompt="A talk. " * 500))])
    assert normal(told.text) == normal(plain.text)


@pytest.mark.model
def test_a_model_of_english_refuses_what_it_cannot_read(whisper: Whisper) -> None:
    samples = clip("question.wav")
    with pytest.raises(BadRequest) as caught:
        whisper.transcribe([Window(samples, reading=Reading(task="translate"))])
    assert caught.value.param == "model"
    with pytest.raises(BadRequest) as caught:
        whisper.transcribe([Window(samples, language="de", reading=Reading())])
    assert caught.value.param == "language"


@pytest.mark.model
def test_a_text_that_ends_before_its_speech_is_tried_again(whisper: Whisper) -> None:
    """Silence that is said to be speech: no try finds more in it, and the best of them stands."""
    samples = np.concatenate([clip("question.wav"), silence(3.0)])
    tried = 0
    attempt = whisper._attempt

    def counted(windows, frames, step):  # type: ignore[no-untyped-def]
        nonlocal tried
        tried += 1
        return attempt(windows, frames, step)

    whisper._attempt = counted  # type: ignore[method-assign]
    try:
        [usual] = whisper.transcribe([Window(samples, reading=Reading())])
        assert tried == 1
        [found] = whisper.transcribe([Window(samples, reading=Reading(), speech=len(samples) / SAMPLE_RATE)])
        assert tried > 2
    finally:
        del whisper._attempt
    assert normal(found.text) == normal(usual.text)
