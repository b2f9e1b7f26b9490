"""From what the engine samples to what a caller reads: thoughts, text and calls told apart, stops kept. Pure.

    pieces of text --> ThinkingSplitter --> ToolParser --> StopFilter --> Delta
                         thoughts            calls          text

Stop strings end the text, not thoughts or arguments. Each of the three may hold back the end of what it has
seen, and nothing but that, so the place of every token in the reply is known: its log probability is told
when its text is, and never when its text is cut off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..pipeline.events import Usage
from .base import CallDelta, Delta, FinishReason, TokenLogprob
from .stops import StopFilter
from .thinking import ThinkingSplitter
from .tools import Piece, ToolParser


class Reading:
    """One reply. stop: strings before which the text ends. None for thinking and tools: there are none."""

    def __init__(
        self,
        stop: Sequence[str] = (),
        *,
        thinking: ThinkingSplitter | None = None,
        tools: ToolParser | None = None,
    ) -> None:
        self._stop = StopFilter(stop)
        self._thinking = thinking
        self._tools = tools
        self._tokens: deque[tuple[int, int, TokenLogprob]] = deque()
        """Where each token begins and ends, in characters of the reply."""
        self._seen = 0
        self._told = 0
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[CallDelta] = []
        self._called = False

    @property
    def may_end(self) -> bool:
        """Whether it may be over before the engine is."""
        return self._stop.waits or (self._tools is not None and not self._tools.parallel)

    @property
    def over(self) -> bool:
        """Whatever follows will be dropped."""
        return self.cut or (self._tools is not None and self._tools.full)

    @property
    def cut(self) -> bool:
        """Whether a stop string ended it."""
        return self._stop.stopped

    def push(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> Delta | None:
        """The next of the reply, and of what tokens it is. None while there is nothing to tell."""
        if self.over:
            return None
        begin, self._seen = self._seen, self._seen + len(text)
        for token in logprobs:
            self._tokens.append((begin, self._seen, token))
        thoughts, rest = self._think(text)
        self._told += thoughts
        if rest:
            self._parse(self._tools.push(rest) if self._tools else [Piece(len(rest), rest)])
        delta = self._delta(self._certain())
        return delta if delta.text or delta.reasoning or delta.calls or delta.logprobs else None

    def finish(self, reason: FinishReason, usage: Usage) -> Delta:
        """The last delta. reason: the engine's, "stop" where it was told to stop."""
        if not self.over:
            if self._thinking:
                size, thoughts, rest = self._thinking.finish()
                self._told += size
                self._thoughts.append(thoughts)
                self._parse(self._tools.push(rest) if self._tools else [Piece(len(rest), rest)])
            if self._tools:
                self._parse(self._tools.finish())
            self._flush()
        if reason == "stop" and self._called:
            reason = "tool_calls"
        return self._delta(self._certain(everything=not self.cut), reason, usage)

    def _think(self, text: str) -> tuple[int, str]:
        if self._thinking is None:
            return 0, text
        size, thoughts, rest = self._thinking.push(text)
        self._thoughts.append(thoughts)
        return size, rest

    def _parse(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if self.cut:
                return
            if piece.text:
                text = self._stop.push(piece.text)
                self._text.append(text)
                self._told += len(text)
                continue
            self._flush()
            if self.cut:
                return
            self._told += piece.size
            if piece.call:
                self._calls.append(piece.call)
                self._called = True

    def _flush(self) -> None:
        """Text ends here, so what may have been the beginning of a stop string is none."""
        text = self._stop.flush()
        self._text.append(text)
        self._told += len(text)

    def _certain(self, *, everything: bool = False) -> tuple[TokenLogprob, ...]:
        """The tokens of what is told, with one that a stop string has cut in two."""
        tokens: list[TokenLogprob] = []
        while self._tokens:
            begin, end, token = self._tokens[0]
            if not (everything or (begin < self._told if self.cut else end <= self._told)):
                break
            tokens.append(token)
            self._tokens.popleft()
        return tuple(tokens)

    def _delta(
        self, tokens: tuple[TokenLogprob, ...], reason: FinishReason | None = None, usage: Usage | None = None
    ) -> Delta:
        text, thoughts, calls = "".join(self._text), "".join(self._thoughts), tuple(self._calls)
        self._text, self._thoughts, self._calls = [], [], []
        return Delta(text, reason, usage, calls, thoughts, tokens)
