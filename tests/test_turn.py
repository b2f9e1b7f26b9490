"""The turn machine: lists of events, and seeded random walks against its invariants."""

import random

import pytest

from antiphon.pipeline.events import (
    Action,
    Announce,
    Cancel,
    ClientAsked,
    ClientCancelled,
    ClientCleared,
    ClientCommitted,
    CommitTurn,
    Decode,
    DropTurn,
    Event,
    Interrupted,
    Patience,
    PlaybackEnded,
    PromptChanged,
    Refuse,
    Release,
    Respond,
    ResponseEnded,
    Speculate,
    SpeculationFailed,
    SpeechStarted,
    SpeechStopped,
    StartTurn,
    Tick,
    Transcript,
    TurnEndProbability,
    TurnPolicy,
)
from antiphon.pipeline.turn import Floor, TurnMachine


def play(machine: TurnMachine, *events: Event) -> list[Action]:
    return [action for event in events for action in machine.handle(event)]


def machine(**policy: object) -> TurnMachine:
    return TurnMachine(TurnPolicy(**policy))  # type: ignore[arg-type]


HEARD = (SpeechStarted(1.2, 0.7), SpeechStopped(2.03, 2.0))


def test_works_while_it_waits_and_releases_when_the_silence_is_long_enough():
    turn = machine()
    assert play(turn, *HEARD) == [StartTurn(0.7), Decode(1)]
    assert play(turn, Tick(2.1), Transcript(1, "what time is it")) == [Speculate(1)]
    assert play(turn, Tick(2.49)) == []
    assert play(turn, Tick(2.5)) == [CommitTurn(1, 2.0), Release(1)]
    assert (turn.floor, turn.active, turn.speculated) == (Floor.IDLE, 1, None)


def test_going_on_before_the_gate_opens_cancels_the_revision_and_keeps_the_turn():
    turn = machine()
    play(turn, *HEARD, Transcript(1, "what time"))
    assert play(turn, SpeechStarted(2.4, 2.1)) == [Cancel(1, "resumed")]
    assert play(
        turn, SpeechStopped(3.03, 3.0), Transcript(1, "what time"), Transcript(2, "what time is it")
    ) == [
        Decode(2),
        Speculate(2),
    ]
    assert play(turn, Tick(3.5)) == [CommitTurn(2, 3.0), Release(2)]


def test_a_transcript_after_the_gate_is_answered_at_once():
    turn = machine()
    play(turn, *HEARD)
    assert play(turn, Tick(2.5)) == [CommitTurn(1, 2.0)]
    assert play(turn, Transcript(1, "hello")) == [Respond(1)]


def test_without_words_nothing_is_answered():
    turn = machine()
    assert play(turn, *HEARD, Transcript(1, ""), Tick(2.5)) == [StartTurn(0.7), Decode(1), CommitTurn(1, 2.0)]
    turn = machine()
    assert play(turn, *HEARD, Tick(2.5), Transcript(1, ""))[-1] == CommitTurn(1, 2.0)


def test_serial_order_without_speculation():
    turn = machine(speculate=False)
    assert play(turn, *HEARD) == [StartTurn(0.7)]
    assert play(turn, Tick(2.5)) == [CommitTurn(1, 2.0), Decode(1)]
    assert play(turn, Transcript(1, "hello")) == [Respond(1)]


OVER_A_REPLY = (*HEARD, Transcript(1, "hello"), Tick(2.5), SpeechStarted(4.0, 3.6))


def test_words_over_a_reply_cancel_it():
    turn = machine()
    assert play(turn, *OVER_A_REPLY)[-1] == StartTurn(3.6, quiet=True)
    assert turn.doubt
    assert play(turn, Interrupted()) == [Announce(), Cancel(1, "turn_detected")]
    assert play(turn, Interrupted(), ResponseEnded(1)) == []
    assert (turn.active, turn.doubt) == (None, False)
    assert play(turn, SpeechStopped(5.03, 5.0), Transcript(2, "stop it")) == [Decode(2), Speculate(2)]


def test_the_whole_of_what_was_said_may_be_what_interrupts():
    turn = machine()
    play(turn, *OVER_A_REPLY)
    assert play(turn, SpeechStopped(5.03, 5.0), Tick(9.0)) == [Decode(2)]
    assert play(turn, Transcript(2, "stop")) == [Announce(), Cancel(1, "turn_detected"), Speculate(2)]
    assert play(turn, Tick(9.1)) == [CommitTurn(2, 5.0), Release(2)]


def test_a_cough_and_a_hum_leave_the_reply_alone():
    turn = machine()
    play(turn, *OVER_A_REPLY, SpeechStopped(4.33, 4.3))
    assert play(turn, Transcript(2, "mm-hm", interrupts=False)) == [DropTurn()]
    assert (turn.active, turn.doubt, turn.floor) == (1, False, Floor.IDLE)
    assert play(turn, Tick(9.0)) == []
    assert play(turn, SpeechStarted(10.0, 9.7)) == [StartTurn(9.7, quiet=True)]


def test_a_reply_that_ends_while_in_doubt_leaves_a_turn_like_any_other():
    turn = machine()
    play(turn, *OVER_A_REPLY)
    assert play(turn, ResponseEnded(1)) == [Announce()]
    play(turn, SpeechStopped(5.03, 5.0), Transcript(2, "yes", interrupts=False))
    assert play(turn, Tick(5.6)) == [CommitTurn(2, 5.0), Release(2)]


def test_a_reply_that_has_ended_and_is_still_played_may_come_back():
    turn = machine()
    play(turn, *HEARD, Transcript(1, "hello"), Tick(2.6))
    assert play(turn, ResponseEnded(1, playing=True)) == []
    assert play(turn, SpeechStarted(3.0, 2.7), SpeechStopped(3.5, 3.4)) == [
        StartTurn(2.7, quiet=True),
        Decode(2),
    ]
    assert play(turn, Tick(4.2), Transcript(2, "hello", interrupts=False)) == [DropTurn()]
    assert play(turn, SpeechStarted(5.0, 4.7), SpeechStopped(5.5, 5.4)) == [
        StartTurn(4.7, quiet=True),
        Decode(3),
    ]
    assert play(turn, Transcript(3, "no"), Tick(6.0)) == [
        Announce(),
        Speculate(3),
        CommitTurn(3, 5.4),
        Release(3),
    ]
    play(turn, ResponseEnded(3, playing=True), PlaybackEnded())
    assert play(turn, SpeechStarted(7.0, 6.7)) == [StartTurn(6.7)]


def test_a_reply_that_the_client_cancels_while_in_doubt_leaves_a_turn_like_any_other():
    turn = machine()
    assert play(turn, *OVER_A_REPLY, ClientCancelled())[-2:] == [Cancel(1, "client_cancelled"), Announce()]


def test_a_clear_while_in_doubt_forgets_the_sound():
    turn = machine()
    assert play(turn, *OVER_A_REPLY, ClientCleared(4.1))[-1] == DropTurn()
    assert (turn.active, turn.doubt) == (1, False)


def test_barge_in_before_the_owed_reply_began_forgets_it():
    turn = machine()
    play(turn, *HEARD, Tick(2.5), SpeechStarted(2.8, 2.5))
    assert play(turn, Transcript(1, "hello")) == []


def test_without_interruption_the_second_turn_is_refused_while_the_reply_runs():
    turn = machine(interrupt_response=False)
    play(turn, *HEARD, Transcript(1, "hello"), Tick(2.5))
    assert play(turn, SpeechStarted(4.0, 3.6), SpeechStopped(5.03, 5.0)) == [StartTurn(3.6), Decode(2)]
    assert play(turn, Transcript(2, "more")) == []
    assert play(turn, Tick(5.6)) == [CommitTurn(2, 5.0), Refuse("conversation_already_has_active_response")]


def test_without_interruption_the_second_turn_is_answered_when_the_reply_ended_in_time():
    turn = machine(interrupt_response=False)
    play(turn, *HEARD, Transcript(1, "hello"), Tick(2.5), SpeechStarted(4.0, 3.6), SpeechStopped(5.03, 5.0))
    play(turn, Transcript(2, "more"), ResponseEnded(1))
    assert play(turn, Tick(5.6)) == [CommitTurn(2, 5.0), Respond(2)]


def test_create_response_off_only_transcribes():
    turn = machine(create_response=False)
    assert play(turn, *HEARD, Transcript(1, "hello"), Tick(2.5)) == [
        StartTurn(0.7),
        Decode(1),
        CommitTurn(1, 2.0),
    ]


def test_manual_turn_waits_for_its_transcript():
    turn = machine()
    assert play(turn, ClientCommitted(3.0)) == [CommitTurn(1, 3.0), Decode(1)]
    assert play(turn, ClientAsked()) == []
    assert play(turn, Transcript(1, "hello")) == [Respond(1)]


def test_manual_turn_without_words_is_answered_since_the_client_asked():
    turn = machine()
    assert play(turn, ClientCommitted(3.0), ClientAsked(), Transcript(1, ""))[-1] == Respond(1)


def test_commit_alone_creates_no_response():
    turn = machine()
    assert play(turn, ClientCommitted(3.0), Transcript(1, "hello")) == [CommitTurn(1, 3.0), Decode(1)]


def test_asking_twice_is_refused_without_side_effects():
    turn = machine()
    assert play(turn, ClientAsked()) == [Respond(1)]
    assert play(turn, ClientAsked()) == [Refuse("conversation_already_has_active_response")]
    assert play(turn, ResponseEnded(1), ClientAsked()) == [Respond(2)]


def test_cancelling_nothing_is_refused():
    assert play(machine(), ClientCancelled()) == [Refuse("response_cancel_not_active")]


def test_cancel_by_the_client():
    turn = machine()
    assert play(turn, ClientAsked(), ClientCancelled()) == [Respond(1), Cancel(1, "client_cancelled")]


def test_clear_drops_the_turn_and_its_speculation():
    turn = machine()
    play(turn, *HEARD, Transcript(1, "hello"))
    assert play(turn, ClientCleared(2.2)) == [Cancel(1, "cleared"), DropTurn()]
    assert play(turn, Tick(9.0)) == []


def test_asking_in_a_pause_keeps_the_turn_open():
    turn = machine()
    play(turn, *HEARD, Transcript(1, "hello"))
    assert play(turn, ClientAsked()) == [Cancel(1, "superseded"), Respond(2), Decode(3)]
    assert play(turn, ResponseEnded(2), Transcript(3, "hello"), Tick(2.6)) == [
        Speculate(3),
        CommitTurn(3, 2.0),
        Release(3),
    ]


@pytest.mark.parametrize("seed", range(200))
def test_invariants_under_random_walks(seed: int):
    walk(seed, 300)


@pytest.mark.parametrize("first", range(0, 10_000, 500))
def test_invariants_under_ten_thousand_random_walks(first: int):
    for seed in range(first, first + 500):
        walk(1000 + seed, 60)


def walk(seed: int, steps: int) -> None:
    """At most one active reply; one end a reply; every turn committed or dropped once; liveness at the end."""
    rng = random.Random(seed)
    turn = machine(
        speculate=rng.random() < 0.8,
        create_response=rng.random() < 0.8,
        interrupt_response=rng.random() < 0.7,
        patience=Patience() if rng.random() < 0.5 else None,
    )
    at = 0.0
    open_turn = quiet = False
    behind_gate: set[int] = set()
    active: int | None = None
    decodes: set[int] = set()
    answered: set[int] = set()

    def check(actions: list[Action]) -> None:
        nonlocal open_turn, quiet, active
        for action in actions:
            match action:
                case StartTurn():
                    assert not open_turn
                    open_turn, quiet = True, action.quiet
                    assert not quiet or active is not None or turn.playing
                case Announce():
                    assert open_turn
                    assert quiet
                    quiet = False
                case CommitTurn():
                    assert not quiet, "the client has heard of every turn that becomes an item"
                    open_turn = False
                case DropTurn():
                    open_turn = quiet = False
                case Decode(revision):
                    assert revision == max([*decodes, revision]), "revisions grow"
                    decodes.add(revision)
                case Speculate(revision):
                    assert not behind_gate
                    assert revision not in answered
                    answered.add(revision)
                    behind_gate.add(revision)
                case Respond(revision):
                    assert active is None
                    assert revision not in answered
                    answered.add(revision)
                    active = revision
                case Release(revision):
                    assert active is None
                    behind_gate.remove(revision)
                    active = revision
                case Cancel(revision, _):
                    if revision in behind_gate:
                        behind_gate.remove(revision)
                    else:
                        assert active == revision
                        active = None
                case Refuse():
                    pass
        assert turn.active == active
        assert behind_gate == ({turn.speculated} if turn.speculated is not None else set())

    for _ in range(steps):
        at += rng.uniform(0.0, 0.4)
        event: Event
        match rng.randrange(13):
            case 0 | 1:
                event = SpeechStarted(at, at - 0.3)
            case 2 | 3:
                event = SpeechStopped(at, at - 0.03)
            case 4 | 5 | 6 if decodes:
                words = rng.choice(["", "words", "more words"])
                event = Transcript(rng.choice(sorted(decodes)), words, interrupts=rng.random() < 0.5)
            case 7 if active is not None:
                event = ResponseEnded(active if rng.random() < 0.8 else active - 1, rng.random() < 0.5)
                if event.revision == active:
                    active = None
            case 12:
                revision = turn.revision
                event = rng.choice(
                    [Interrupted(), PlaybackEnded(), TurnEndProbability(revision, rng.random())]
                )
            case 8:
                event = rng.choice([ClientAsked(), ClientCancelled()])
            case 9:
                event = rng.choice([ClientCommitted(at), ClientCleared(at)])
                if isinstance(event, ClientCommitted):
                    open_turn = True
            case _:
                event = Tick(at)
        check(turn.handle(event))

    # Liveness: whatever happened, a later utterance is answered.
    turn.policy = TurnPolicy()
    check(turn.handle(ClientCleared(at)))
    if turn.owed is not None:
        check(turn.handle(Transcript(turn.owed, "every transcript comes")))
    if active is not None:
        ended, active = active, None
        check(turn.handle(ResponseEnded(ended)))
    check(turn.handle(SpeechStarted(at + 1, at + 0.7)))
    check(turn.handle(SpeechStopped(at + 2, at + 2)))
    check(turn.handle(Transcript(turn.revision, "hello")))
    check(turn.handle(Tick(at + 3)))
    assert active == turn.revision


def test_a_failed_speculation_is_tried_again_when_the_gate_opens():
    turn = machine()
    play(turn, *HEARD, Transcript(1, "hello"), SpeculationFailed(1))
    assert play(turn, Tick(2.5)) == [CommitTurn(1, 2.0), Respond(1)]


def test_a_changed_prompt_starts_the_speculation_anew():
    turn = machine()
    assert play(turn, PromptChanged()) == []
    play(turn, *HEARD, Transcript(1, "hello"))
    assert play(turn, PromptChanged()) == [Cancel(1, "superseded"), Speculate(1)]
    assert play(turn, Tick(2.5)) == [CommitTurn(1, 2.0), Release(1)]


def test_going_on_after_asking_in_the_pause_interrupts_the_answer():
    turn = machine()
    play(turn, *HEARD, Transcript(1, "hello"), ClientAsked())
    assert play(turn, SpeechStarted(2.4, 2.1)) == [Cancel(2, "turn_detected")]


def test_a_sure_end_opens_the_gate_early_and_an_unsure_one_late():
    for probability, opens in ((0.95, 2.2), (0.725, 2.6), (0.1, 3.0)):
        turn = machine(patience=Patience())
        play(turn, *HEARD, Transcript(1, "hello"), TurnEndProbability(1, probability))
        assert play(turn, Tick(opens - 0.01)) == []
        assert play(turn, Tick(opens)) == [CommitTurn(1, 2.0), Release(1)]


def test_a_probability_that_comes_late_opens_the_gate_at_once():
    turn = machine(patience=Patience())
    play(turn, *HEARD, Tick(2.4), Transcript(1, "hello"))
    assert play(turn, TurnEndProbability(1, 0.95)) == [CommitTurn(1, 2.0), Release(1)]


def test_a_probability_that_comes_while_something_sounds_waits_for_the_silence_after_it():
    turn = machine(patience=Patience())
    play(turn, *HEARD, Tick(2.4), Transcript(1, "hello"))
    assert play(turn, TurnEndProbability(1, 0.95, sound=True)) == []
    assert play(turn, Tick(2.5)) == [CommitTurn(1, 2.0), Release(1)]


def test_without_a_probability_the_silence_decides_and_an_old_one_is_forgotten():
    turn = machine(patience=Patience(), silence=0.6)
    play(turn, *HEARD, Transcript(1, "hello"), TurnEndProbability(1, 0.1))
    play(turn, SpeechStarted(2.4, 2.1), SpeechStopped(3.03, 3.0))
    assert play(turn, TurnEndProbability(1, 0.95), Tick(3.5)) == []
    assert play(turn, Tick(3.6)) == [CommitTurn(2, 3.0)]
