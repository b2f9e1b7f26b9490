"""The detector's rules on lists of probabilities, and the model on real sound."""

from pathlib import Path

import numpy as np
import pytest

from antiphon.asr.formats import decode_file
from antiphon.asr.vad import FRAME, FRAME_SECONDS, SileroVad, SpeechDetector, VadState
from antiphon.pipeline.events import SpeechStarted, SpeechStopped
from antiphon.pipeline.settings import load as load_settings
from antiphon.pipeline.weights import WeightStore

DATA = Path(__file__).parent / "data"


def play(detector: SpeechDetector, *runs: tuple[float, float]) -> list[SpeechStarted | SpeechStopped]:
    """Feed (probability, seconds) runs."""
    frames = [p for p, seconds in runs for _ in range(round(seconds / FRAME_SECONDS))]
    return [event for p in frames for event in detector.push(p)]


def test_speech_starts_after_min_speech_with_its_preroll_and_stops_at_the_first_silent_frame() -> None:
    started, stopped = play(SpeechDetector(), (0.0, 0.96), (0.9, 0.64), (0.0, 0.96))
    assert isinstance(started, SpeechStarted)
    assert started.start == pytest.approx(0.96 - 0.3)
    assert started.at == pytest.approx(0.96 + 0.224)  # seven frames are the first 0.2 s
    assert stopped == SpeechStopped(at=pytest.approx(1.632), end=pytest.approx(1.6))


def test_yes_is_found_and_a_click_is_not() -> None:
    assert len(play(SpeechDetector(), (0.0, 0.5), (0.95, 0.256), (0.0, 0.5))) == 2
    assert play(SpeechDetector(), (0.0, 0.5), (0.95, 0.16), (0.0, 0.5)) == []


def test_hysteresis_holds_on_to_weak_frames() -> None:
    kinds = [type(e) for e in play(SpeechDetector(), (0.9, 0.32), (0.4, 0.32), (0.3, 0.064))]
    assert kinds == [SpeechStarted, SpeechStopped]
    assert len(play(SpeechDetector(), (0.9, 0.32), (0.4, 0.32))) == 1


def test_what_never_gets_likely_is_no_speech() -> None:
    assert play(SpeechDetector(), (0.7, 3.0)) == []
    assert len(play(SpeechDetector(min_peak=0.0), (0.7, 3.0))) == 1


def test_preroll_stops_at_zero_and_at_the_turn_before() -> None:
    assert play(SpeechDetector(), (0.9, 0.32))[0] == SpeechStarted(at=pytest.approx(0.224), start=0.0)
    events = play(SpeechDetector(), (0.9, 0.64), (0.0, 0.128), (0.9, 0.64))
    assert isinstance(events[2], SpeechStarted)
    assert events[2].start == events[1].end  # type: ignore[union-attr]


def test_a_short_word_after_a_gap_resumes_and_later_it_is_a_click() -> None:
    speech, word = (0.9, 0.64), (0.9, 0.096)
    assert len(play(SpeechDetector(), speech, (0.0, 0.48), word)) == 3
    assert len(play(SpeechDetector(), speech, (0.0, 1.6), word)) == 2


def test_settled_a_pending_word_is_the_start_of_something_new_and_keeps_its_beginning() -> None:
    detector = SpeechDetector()
    _, stopped = play(detector, (0.0, 0.5), (0.9, 0.32), (0.0, 0.32))
    assert play(detector, (0.9, 0.032)) == []
    detector.settle()
    assert play(detector, (0.9, 0.096)) == []
    (started,) = play(detector, (0.9, 0.096))
    assert isinstance(stopped, SpeechStopped)
    assert started == SpeechStarted(
        at=pytest.approx(detector.seconds), start=pytest.approx(stopped.end + 0.02, abs=0.04)
    )


def test_configure_changes_what_a_session_may_change() -> None:
    detector = SpeechDetector()
    detector.configure(threshold=0.95, prefix_padding=0.5)
    assert play(detector, (0.9, 1.0)) == []
    for bad in ({"threshold": 1.0, "prefix_padding": 0.3}, {"threshold": 0.5, "prefix_padding": -0.1}):
        with pytest.raises(ValueError, match="must"):
            detector.configure(**bad)


def test_random_walks_keep_the_order_of_events() -> None:
    random = np.random.default_rng(7)
    for _ in range(50):
        detector, last, open_ = SpeechDetector(), 0.0, False
        level = np.repeat(random.random(60), random.integers(1, 12, 60))
        for probability in np.clip(level + random.normal(0, 0.1, len(level)), 0, 1):
            for event in detector.push(float(probability)):
                assert isinstance(event, SpeechStarted) is not open_
                open_ = not open_
                edge = event.start if isinstance(event, SpeechStarted) else event.end
                assert last <= edge + 1e-9
                assert edge <= event.at
                last = edge if isinstance(event, SpeechStopped) else last


@pytest.fixture(scope="module")
def silero() -> SileroVad:
    settings = load_settings()
    store = WeightStore(settings.weights.root, offline=settings.weights.offline)
    path = store.fetch(settings.vad.model)
    return SileroVad(path / "silero_vad.onnx" if path.is_dir() else path)


def events_of(vad: SileroVad, samples: np.ndarray) -> list[SpeechStarted | SpeechStopped]:
    state, detector = VadState(), SpeechDetector()
    events: list[SpeechStarted | SpeechStopped] = []
    for frame in samples[: len(samples) // FRAME * FRAME].reshape(-1, 1, FRAME):
        probability, [state] = vad.probabilities(frame, [state])
        events += detector.push(float(probability[0]))
    return events


@pytest.mark.model
def test_a_batch_gives_what_each_session_gets_alone(silero: SileroVad) -> None:
    a, b = (decode_file(DATA / name)[: 20 * FRAME] for name in ("question.wav", "silly.flac"))
    together, alone = [VadState(), VadState()], [[VadState()], [VadState()]]
    for frames in zip(a.reshape(-1, FRAME), b.reshape(-1, FRAME), strict=True):
        batch, together = silero.probabilities(np.stack(frames), together)
        for row in range(2):
            single, alone[row] = silero.probabilities(frames[row][None], alone[row])
            assert batch[row] == pytest.approx(single[0], abs=1e-4)


@pytest.mark.model
def test_the_door_is_guarded(silero: SileroVad) -> None:
    for frames in (np.zeros((1, 480), np.float32), np.zeros((2, FRAME), np.float32), np.zeros((1, FRAME))):
        with pytest.raises(ValueError, match="frames must be float32"):
            silero.probabilities(frames, [VadState()])  # type: ignore[arg-type]


@pytest.mark.model
@pytest.mark.parametrize("name", ["question.wav", "nerves.flac", "doctor.flac", "silly.flac", "lady.flac"])
@pytest.mark.parametrize("gain", [1.0, 0.05])
def test_speech_is_found_loud_and_quiet(silero: SileroVad, name: str, gain: float) -> None:
    samples = np.pad(decode_file(DATA / name) * np.float32(gain), (0, 16_000))
    events = events_of(silero, samples)
    assert isinstance(events[0], SpeechStarted)
    assert isinstance(events[-1], SpeechStopped)


@pytest.mark.model
def test_silence_and_noise_are_no_speech(silero: SileroVad) -> None:
    random = np.random.default_rng(3)
    hum = 0.1 * np.sin(2 * np.pi * 100 * np.arange(80_000) / 16_000)
    for samples in (np.zeros(80_000), np.full(80_000, 0.9), random.normal(0, 0.1, 80_000), hum):
        assert events_of(silero, samples.astype(np.float32)) == []


@pytest.mark.model
@pytest.mark.parametrize("folder", ["background", "silence", "rir"])
def test_recorded_noise_is_no_speech(silero: SileroVad, shared_speech: Path, folder: str) -> None:
    paths = sorted((shared_speech / "noise" / folder).iterdir())
    assert paths
    assert {path.name for path in paths if events_of(silero, decode_file(path))} == set()
