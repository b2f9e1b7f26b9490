"""The open window: cadence, local agreement, long turns; and with the model, that streaming equals batch."""

import json
from pathlib import Path

import numpy as np
import pytest

from antiphon.asr.base import SAMPLE_RATE, Recognizer, Segment, Transcription, Window
from antiphon.asr.ctranslate2 import Whisper
from antiphon.asr.formats import decode_file
from antiphon.asr.streaming import LONGEST, SLACK, STRETCH, UNNOTICED, Utterance, stretch
from antiphon.pipeline.settings import load as load_settings
from antiphon.pipeline.weights import WeightStore

DATA = Path(__file__).parent / "data"


def audio(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * SAMPLE_RATE), np.float32)


def hear(utterance: Utterance, text: str, *, seconds: float = 0.6, final: bool = False) -> Window:
    """Speech goes on for `seconds`, and a window of all of it is decoded as `text`."""
    utterance.push(audio(seconds))
    window = utterance.window(final=final)
    utterance.accept(window, Transcription(text))
    return window


def test_a_partial_is_due_every_interval_of_audio() -> None:
    utterance = Utterance(partial_interval=0.6)
    due: list[float] = []
    for _ in range(60):
        utterance.push(audio(0.032))
        if utterance.due():
            due.append(round(utterance.seconds, 3))
            utterance.window(final=False)
    assert due == [0.608, 1.216, 1.824]


@pytest.mark.parametrize(
    ("decodes", "committed", "hypothesis"),
    [
        (["do you feel"], "", "do you feel"),
        (["do you feel", "do you feel as though you"], "do you feel", "as though you"),
        (["Do you feel.", "do you feel as though"], "do you feel", "as though"),
        (["do you fill", "do you feel as though you"], "do you", "feel as though you"),
        (["a b c d", "x b c d e f"], "", "x b c d e f"),
        (["a b c d", "a b x d e f", "a b c d e f g"], "a b", "c d e f g"),
        (["a b c d", "a b c d", "a b c d"], "a b", "c d"),
        (["a b c d", "", "a b c d e f"], "", "a b c d e f"),
    ],
)
def test_two_decodes_commit_what_they_agree_on(decodes: list[str], committed: str, hypothesis: str) -> None:
    utterance = Utterance()
    for text in decodes:
        hear(utterance, text)
    assert (utterance.committed, utterance.hypothesis) == (committed, hypothesis)
    assert utterance.text == f"{committed} {hypothesis}".strip()


def test_committed_words_are_the_next_prefix_without_the_mark_at_their_end() -> None:
    utterance = Utterance(language="en")
    hear(utterance, "I see. He")
    hear(utterance, "I see. He said")
    assert utterance.committed == "I see."
    window = utterance.window(final=False)
    assert (window.prefix, window.language, window.final) == ("I see", "en", False)
    assert utterance.window(final=True).prefix == ""


def test_a_text_with_a_forced_prefix_is_no_final_text() -> None:
    utterance = Utterance()
    hear(utterance, "I see. He")
    assert utterance.reaches(0.6)
    forced = hear(utterance, "I see. He said") and hear(utterance, "I see. He said that")
    assert forced.prefix
    assert not utterance.reaches(utterance.seconds)
    utterance.accept(utterance.window(final=True), Transcription("Icy. He said that."))
    assert utterance.reaches(utterance.seconds)
    assert utterance.text == "Icy. He said that."


def test_a_final_text_replaces_all_and_speech_may_go_on() -> None:
    utterance = Utterance()
    hear(utterance, "in the work house")
    hear(utterance, "in the work house and")
    hear(utterance, "In the workhouse.", final=True)
    assert utterance.text == utterance.committed == "In the workhouse."
    assert utterance.reaches(utterance.seconds)
    utterance.push(audio(1.0))
    assert not utterance.reaches(utterance.seconds)
    hear(utterance, "In the workhouse, he said then.")
    assert utterance.text == "In the workhouse, he said then."


def test_a_partial_in_flight_may_cover_the_end() -> None:
    utterance = Utterance()
    utterance.push(audio(1.0))
    window = utterance.window(final=False)
    utterance.push(audio(0.032))
    assert utterance.covers(window)
    utterance.accept(window, Transcription("yes"))
    assert utterance.reaches(1.032)
    utterance.push(audio(SLACK))
    assert not utterance.covers(window)
    assert not utterance.reaches(utterance.seconds)


def test_late_and_foreign_windows_change_nothing() -> None:
    utterance = Utterance()
    utterance.push(audio(1.0))
    early = utterance.window(final=False)
    hear(utterance, "the later text", final=True)
    utterance.accept(early, Transcription("the early text"))
    assert utterance.text == "the later text"
    with pytest.raises(ValueError, match="not one of"):
        utterance.accept(early, Transcription("again"))
    with pytest.raises(ValueError, match="not one of"):
        utterance.accept(Window(audio(1.0)), Transcription("foreign"))


class Scripted:
    """A recogniser that knows the time of every word of a long turn: one word each half second.

    The turn's samples hold the word's number as their value.
    """

    def __init__(self, *, flips: np.random.Generator | None = None, segment: int = 8) -> None:
        self._flips = flips
        self._segment = segment

    def transcribe(self, windows: list[Window]) -> list[Transcription]:
        return [self._one(window) for window in windows]

    def _one(self, window: Window) -> Transcription:
        assert window.seconds <= 30.0
        numbers = [int(n) for n in np.unique(window.samples) if n > 0]
        starts = {n: int(np.argmax(window.samples == n)) / SAMPLE_RATE for n in numbers}
        words = [f"w{n}" for n in numbers]
        if self._flips is not None and words and self._flips.random() < 0.5:
            words[-1] = "flip"
        segments: list[Segment] = []
        for at in range(0, len(words), self._segment):
            some = words[at : at + self._segment]
            end = starts[numbers[at + len(some) - 1]] + 0.5
            segments.append(Segment(starts[numbers[at]], min(end, window.seconds), " ".join(some)))
        return Transcription(" ".join(words), tuple(segments))


def run(recognizer: Recognizer, samples: np.ndarray, *, interval: float = 0.6) -> Utterance:
    """Stream a turn to its end as a session would."""
    utterance = Utterance(language="en", partial_interval=interval)
    for at in range(0, len(samples), 512):
        utterance.push(samples[at : at + 512])
        if utterance.due():
            window = utterance.window(final=False)
            utterance.accept(window, recognizer.transcribe([window])[0])
    upto = utterance.seconds
    while not utterance.reaches(upto):
        window = utterance.window(final=True)
        utterance.accept(window, recognizer.transcribe([window])[0])
    return utterance


@pytest.mark.parametrize("seconds", [3, 19, 21, 45, 120])
@pytest.mark.parametrize("interval", [0.6, 5.0])
def test_a_long_turn_loses_and_doubles_nothing(seconds: int, interval: float) -> None:
    words = [f"w{n}" for n in range(1, 2 * seconds + 1)]
    samples = np.repeat(np.arange(1, 2 * seconds + 1), SAMPLE_RATE // 2).astype(np.float32)
    assert run(Scripted(), samples, interval=interval).text.split() == words


def test_a_turn_without_partials_is_decoded_piece_by_piece() -> None:
    samples = np.repeat(np.arange(1, 141), SAMPLE_RATE // 2).astype(np.float32)
    assert run(Scripted(), samples, interval=1e6).text.split() == [f"w{n}" for n in range(1, 141)]


@pytest.mark.parametrize("seed", range(12))
def test_flipping_last_words_reach_no_final_text(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 120))
    samples = np.repeat(np.arange(1, count + 1), SAMPLE_RATE // 2).astype(np.float32)
    utterance = run(
        Scripted(flips=random, segment=int(random.integers(1, 9))), samples, interval=random.uniform(0.3, 3)
    )
    words = utterance.text.split()
    assert words[:-1] == [f"w{n}" for n in range(1, count)]
    assert words[-1] in (f"w{count}", "flip")


def test_a_window_stays_short_even_when_nothing_is_ever_heard() -> None:
    class Deaf:
        longest = 0.0

        def transcribe(self, windows: list[Window]) -> list[Transcription]:
            self.longest = max(self.longest, *(window.seconds for window in windows))
            return [Transcription("") for _ in windows]

    deaf = Deaf()
    assert run(deaf, audio(70.0)).text == ""
    assert 20.0 < deaf.longest <= LONGEST


# --- with the model -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whisper() -> Whisper:
    settings = load_settings()
    store = WeightStore(settings.weights.root, offline=settings.weights.offline)
    return Whisper(store.fetch(settings.asr.model), threads=2)


def errors(said: str, heard: str) -> tuple[int, int]:
    jiwer = pytest.importorskip("jiwer")
    normal = pytest.importorskip("whisper_normalizer.english").EnglishTextNormalizer()
    found = jiwer.process_words(normal(said), normal(heard))
    return found.substitutions + found.deletions + found.insertions, len(normal(said).split())


def clips() -> list[tuple[Path, str]]:
    rows = [json.loads(line) for line in (DATA / "manifest.jsonl").read_text().splitlines()]
    return [(DATA / row["path"], row["text"]) for row in rows]


@pytest.mark.model
@pytest.mark.slow
def test_streaming_is_as_good_as_one_shot(whisper: Whisper) -> None:
    streamed = batch = words = 0
    for path, text in clips():
        samples = decode_file(path)
        wrong, count = errors(text, run(whisper, samples).text)
        once, _ = errors(text, whisper.transcribe([Window(samples, language="en")])[0].text)
        streamed, batch, words = streamed + wrong, batch + once, words + count
    assert streamed / words <= batch / words + 0.05
    assert streamed / words < 0.15


@pytest.mark.model
@pytest.mark.slow
def test_a_turn_longer_than_the_window_keeps_its_words(whisper: Whisper) -> None:
    pieces = [np.pad(decode_file(path), (0, 6_400)) for path, _ in clips()] * 2
    samples = np.concatenate(pieces)
    assert len(samples) > 35 * SAMPLE_RATE
    said = " ".join([text for _, text in clips()] * 2)
    wrong, words = errors(said, run(whisper, samples, interval=1.5).text)
    assert wrong / words < 0.2


def test_a_withheld_partial_neither_serves_as_the_final_nor_takes_words_back():
    turn = Utterance(language="en")
    turn.push(np.zeros(16_000, np.float32))
    turn.accept(turn.window(final=False), Transcription("yes please"))
    turn.push(np.zeros(8_000, np.float32))
    turn.accept(turn.window(final=False), Transcription("", withheld=True))
    assert turn.text == "yes please"
    assert not turn.reaches(turn.seconds)


def test_partials_come_less_often_under_load():
    waits = (0.0, UNNOTICED, UNNOTICED + 0.3, 9.0)
    assert [stretch(waited, 0.6) for waited in waits] == pytest.approx([1.0, 1.0, 2.0, STRETCH])
    utterance = Utterance(partial_interval=0.5)
    utterance.push(np.zeros(SAMPLE_RATE // 2, np.float32))
    assert utterance.due()
    assert not utterance.due(2.0)
    utterance.push(np.zeros(SAMPLE_RATE // 2, np.float32))
    assert utterance.due(2.0)
