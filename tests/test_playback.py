"""Where the listener is, and which words were heard."""

from itertools import pairwise

from antiphon.pipeline.playback import Playback, Spoken, heard


def test_position_follows_the_clock_up_to_what_was_sent():
    playback = Playback()
    assert playback.position(5.0) == 0.0
    playback.add(10.0, 1.0)
    assert playback.position(10.4) == 0.40000000000000036
    assert playback.position(12.0) == 1.0


def test_after_running_dry_playback_goes_on_from_the_next_audio():
    playback = Playback()
    playback.add(10.0, 1.0)
    playback.add(15.0, 1.0)
    assert playback.position(15.5) == 1.5
    assert playback.position(16.5) == 2.0


def test_the_pace_keeps_the_lead():
    playback = Playback()
    playback.add(10.0, 2.0)
    assert playback.wait(10.0, lead=0.5) == 1.5
    assert playback.wait(11.5, lead=0.5) == 0.0


CLAUSES = [Spoken("Paris is", 0.0, 1.0), Spoken(" the capital of France.", 1.0, 3.0)]


def test_heard_is_cut_at_a_word():
    assert heard(CLAUSES, 0.0) == ""
    assert heard(CLAUSES, 0.9) == "Paris"
    assert heard(CLAUSES, 1.0) == "Paris is"
    assert heard(CLAUSES, 2.2) == "Paris is the capital"
    assert heard(CLAUSES, 3.0) == heard(CLAUSES, 99.0) == "Paris is the capital of France."


def test_heard_grows_with_the_position():
    prefixes = [heard(CLAUSES, at / 20) for at in range(70)]
    assert all(later.startswith(earlier) for earlier, later in pairwise(prefixes))
