"""The store of a round, in which torchrun's agents wait for each other at the end."""

from __future__ import annotations

from datetime import timedelta

from rallypoint._rallypoint import TorchRound
from rallypoint.torch._log import logger
from rallypoint.torch._translated import translated
from rallypoint.torch.store import FOR_EVER, EtcdStore

# How many agents have finished, and that all have, by torchrun's names.
_ARRIVED = "torchelastic/agent/terminal_state/num_members"
_PASSED = "torchelastic/agent/terminal_state/last_member"


class RoundStore(EtcdStore):
    """A store that does not let torchrun wait for agents that are gone: torchrun would, for five minutes."""

    # Others go on with the run, without this node.
    others_go_on = False
    _round: TorchRound
    _run_id: str

    @classmethod
    def of(cls, round: TorchRound, run_id: str) -> RoundStore:
        """The store of this round."""
        made = cls.over(round.store)
        made._round, made._run_id = round, run_id
        return made

    @translated
    def add(self, key: str, value: int) -> int:
        """Adds ``value`` to the number under ``key``, 0 if there is none, and returns the sum."""
        if key == _ARRIVED:
            self._round.finishes()
        return super().add(key, value)

    @translated
    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Waits until all of ``keys`` are there; not for agents that are gone to finish."""
        if keys != [_PASSED]:
            return super().wait(keys, timeout)
        missed = self._round.all_finished(timeout or self.timeout or FOR_EVER)  # type: ignore[attr-defined]
        if missed is not None:
            words, self.others_go_on = missed
            logger.warning("run %r: the other nodes are not waited for: %s", self._run_id, words)
