"""When nobody has spoken for a while. Pure; times are seconds of audio received."""

from __future__ import annotations

SILENCE = "(silence)"
"""What the language model is told that the user said."""


class Idle:
    """One conversation's silence, counted from the end of the agent's last reply, as it is heard."""

    def __init__(self) -> None:
        self._since: float | None = None

    def begin(self, at: float) -> None:
        """The agent is heard to the end at `at`, which may be to come."""
        self._since = at

    def stir(self, at: float) -> None:
        """Somebody has the floor: it is not before `at` that a silence begins."""
        if self._since is not None:
            self._since = max(self._since, at)

    def over(self, at: float, timeout: float | None) -> float | None:
        """The silence's beginning, once, when it has lasted for `timeout`; None for never."""
        if timeout is None or self._since is None or at - self._since < timeout:
            return None
        since, self._since = self._since, None
        return since
