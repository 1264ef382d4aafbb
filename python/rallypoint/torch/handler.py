"""The handlers that torchrun drives."""

from __future__ import annotations

import atexit
import os
import socket
import sys
from datetime import timedelta
from types import FrameType
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousHandler as _RendezvousHandler
from torch.distributed.elastic.rendezvous import api

from rallypoint import errors
from rallypoint._rallypoint import NODE_FINISHED, LocalServer, TorchRendezvous, TorchRound
from rallypoint.torch import _reason
from rallypoint.torch import errors as both
from rallypoint.torch._ends import Ends
from rallypoint.torch._log import logger
from rallypoint.torch._round_store import RoundStore
from rallypoint.torch._translated import translated
from rallypoint.torch.store import EtcdStore

# The others notice a node that says nothing when its lease ends: no reason to wait long for saying it.
_TO_SAY_GOODBYE = timedelta(seconds=2)
# For nodes that have met on our server to go away in good order.
_FOR_GUESTS = timedelta(seconds=10)
# The v2 protocol leaves connections open that nobody uses, so that their end cannot be waited for.
_FOR_GUESTS_ON_V2 = timedelta(seconds=1)


class RendezvousHandler(_RendezvousHandler):
    """One node's side of a run, as torchrun drives it.

    :func:`create_rdzv_handler` makes it.
    """

    def __init__(
        self,
        rendezvous: TorchRendezvous,
        backend: str,
        run_id: str,
        server: LocalServer | None = None,
        serves: bool = True,
    ) -> None:
        self._rendezvous = rendezvous
        self._backend = backend
        self._run_id = run_id
        self._server = server
        # Whether this node serves the store that the workers meet at, if it has rank 0.
        self._serves = serves
        self._round: TorchRound | None = None
        self._store: RoundStore | None = None
        self._ends = Ends()
        # What was told of why this round is over.
        self._told = ""
        # torchrun does not shut a handler down when it is told to end by a signal, so as not to close the run.
        atexit.register(self._leave)

    def get_backend(self) -> str:
        """The name of the backend."""
        return self._backend

    def get_run_id(self) -> str:
        """The run that this node belongs to."""
        return self._run_id

    @property
    def _node(self) -> str:
        """How ``rallypoint status`` and the other nodes call this one: several may be on one machine."""
        return self._rendezvous.node_name() or socket.gethostname()

    @property
    def use_agent_store(self) -> bool:
        """Whether an agent serves the store that the workers meet at. The one with rank 0 decides, and says so."""
        # torchrun asks when it starts its workers: when nodes have agreed on ranks, the one with rank 0 is ready.
        agreed = os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL") != "1"
        if self._round is None or (self._round.rank != 0 and not agreed):
            return self._serves
        try:
            return self._round.is_served()
        except errors.RallypointError as error:
            logger.warning("run %r: it is not known who serves the workers' store: %s", self._run_id, error)
            return self._serves

    @translated
    def next_rendezvous(self) -> Any:
        """Meets the others: waits until a round with this node in it is complete."""
        before, self._round = self._round, None
        if before is not None:
            # The port may be wanted again. Workers of other nodes, which may not have stopped yet, are still served.
            before.close_port()
            self._tell_why(before, sys._getframe(1))
        # Those of the last round have ended.
        told, self._ends, self._told = self._told, Ends(), ""
        self._round = round = self._rendezvous.next_rendezvous(self._serves)
        if round is None:
            raise self._not_needed(sys._getframe(1))
        if before is not None:
            before.stop()
            gone = self._rendezvous.gone()
            if gone is not None and gone not in told:
                # Workers fail as soon as one of another node is gone. Why that was turns out when its lease ends.
                logger.warning("run %r: the nodes have met again, as %s", self._run_id, gone)
        # Kept until the next round has begun: torch's C++ does not keep the Python half.
        self._store = RoundStore.of(round, self._run_id)
        logger.info(
            "run %r: round %d, rank %d of %d, workers meet at %s:%d",
            *(self._run_id, round.round, round.rank, round.world_size, round.master_addr, round.master_port),
        )
        where = api.RendezvousStoreInfo(round.master_addr, round.master_port)
        return api.RendezvousInfo(self._store, round.rank, round.world_size, where)

    def _not_needed(self, caller: FrameType | None) -> BaseException:
        """How a spare ends whose run has ended well."""
        text = f"run {self._run_id!r} has ended well; this node stood by as a spare and was not needed"
        logger.info("%s", text)
        while caller is not None:
            # torch's own agent, which catches the other one, has no result then, and fails for that.
            if caller.f_code.co_filename.endswith("torch/distributed/run.py"):
                return SystemExit(0)
            caller = caller.f_back
        return both.RendezvousGracefulExitError(text)

    @translated
    def is_closed(self) -> bool:
        """Whether the run is closed."""
        return self._rendezvous.is_closed()

    @translated
    def set_closed(self) -> None:
        """Ends the run for all nodes, for good."""
        self._rendezvous.set_closed(f"{self._node} closed it")

    @translated
    def num_nodes_waiting(self) -> int:
        """How many nodes wait to get in; also not 0 when a member is gone, so that torchrun meets again, and when
        somebody has closed the run, so that it stops its workers and is told why."""
        # torchrun asks while its workers are well.
        self._ends.watch()
        if self._round is not None:
            self._round.all_is_well()
        try:
            waiting = self._rendezvous.num_nodes_waiting()
            if waiting and self._round is not None:
                # It stops them for that; it does not say so.
                self._round.stops(self._node)
                self._tell_change()
            return waiting
        except errors.RendezvousConnectionError as error:
            # A group at work outlives an etcd that is away.
            logger.warning("run %r: %s", self._run_id, error)
            return 0

    def shutdown(self) -> bool:
        """Ends this node's part: a member closes the run, with the failure that came first, others just leave."""
        atexit.unregister(self._leave)
        error = _reason.error_in(sys._getframe(1))
        try:
            if error is None and self._store is not None and self._store.others_go_on:
                self._rendezvous.leave(_TO_SAY_GOODBYE)
                return True
            return self._rendezvous.shutdown(NODE_FINISHED if error is None else self._words_of(error))
        except errors.RallypointError as error:
            logger.warning("run %r: cannot leave in good order: %s", self._run_id, error)
            return False
        finally:
            self._stop_servers()

    def _words_of(self, error: BaseException) -> str:
        """What ended the run: this error, or what came before it on another node, of which it is told, too."""
        failure = _reason.failure_of(error, self._node, self._ends.of)
        if failure is None or self._round is None:
            return _reason.of(error, self._node)
        first = self._round.first_failure(failure)
        if not first.startswith(f"rank {failure.rank} on {failure.host} "):
            _add(error, f"what failed here followed from this: {first}")
        return first

    def _tell_why(self, round: TorchRound, frame: FrameType) -> None:
        """Why this node asks for another round."""
        failure = _reason.failure_before(frame, self._node, self._ends.of)
        if failure is not None:
            round.tell(failure)
        else:
            round.answer()

    def _tell_change(self) -> None:
        """Says once why torchrun stops the workers of this round: by itself it does so only at ``LOGLEVEL=INFO``."""
        change = None if self._told else self._rendezvous.change()
        if change is not None:
            self._told = change
            logger.warning("run %r: %s; the workers stop, and the nodes meet again", self._run_id, change)

    def _leave(self) -> None:
        try:
            if self._round is not None:
                self._round.answer()
            if self._server is not None:
                # Nobody can go on without it.
                self._rendezvous.set_closed(f"{self._node} ended, and with it the server that the nodes had met on")
            self._rendezvous.leave(_TO_SAY_GOODBYE)
        except errors.RallypointError as error:
            logger.info("run %r: cannot leave in good order: %s", self._run_id, error)
        self._stop_servers()

    def _stop_servers(self) -> None:
        if self._round is not None:
            self._round.stop()
        server, self._server = self._server, None
        if server is not None:
            server.stop(_FOR_GUESTS if self._backend == "rallypoint" else _FOR_GUESTS_ON_V2)


def _add(error: BaseException, words: str) -> None:
    """Lets the error say this too, at its end."""
    if sys.version_info >= (3, 11):
        error.add_note(words)
    else:
        logger.error(words)


class DynamicHandler(_RendezvousHandler):
    """torch's dynamic handler, and what must live as long as it does: its store, which torch's C++ does not keep
    whole, and the server, if this node started one."""

    def __init__(self, handler: _RendezvousHandler, store: EtcdStore, server: LocalServer | None) -> None:
        self._handler = handler
        self._store = store
        self._server = server

    def get_backend(self) -> str:
        """The name of the backend."""
        return self._handler.get_backend()

    def get_run_id(self) -> str:
        """The run that this node belongs to."""
        return self._handler.get_run_id()

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers meet on a store of torchrun's."""
        return self._handler.use_agent_store

    def next_rendezvous(self) -> Any:
        """Meets the others."""
        return self._handler.next_rendezvous()

    def is_closed(self) -> bool:
        """Whether the run is closed."""
        return self._handler.is_closed()

    def set_closed(self) -> None:
        """Ends the run for all nodes, for good."""
        self._handler.set_closed()

    def num_nodes_waiting(self) -> int:
        """How many nodes wait to get in."""
        return self._handler.num_nodes_waiting()

    def shutdown(self) -> bool:
        """Ends this node's part, and the run."""
        try:
            return self._handler.shutdown()
        finally:
            if self._server is not None:
                self._server.stop(_FOR_GUESTS_ON_V2)
