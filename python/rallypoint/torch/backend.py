"""The record of state that torch's dynamic rendezvous changes, kept in etcd."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal, cast

from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, Token

from rallypoint._rallypoint import StateBackend
from rallypoint.torch._translated import translated
from rallypoint.torch._options import DYNAMIC, checked
from rallypoint.torch.store import EtcdStore


class EtcdRendezvousBackend(RendezvousBackend):
    """A backend for torch's ``DynamicRendezvousHandler``, in etcd.

    Args:
        endpoint: The servers, comma-separated.
        run_id: The run; nodes with the same one meet.
        key_prefix: Where in etcd the state is.
        ttl: Seconds that the state stays after its last change; two hours where it is not given.
        api: ``"v2"``, whose state is that of PyTorch's own backend ``etcd-v2``, or ``"v3"``.
        name: What the backend says its name is.
        **options: How to connect: see :class:`rallypoint.Store`.
    """

    def __init__(
        self,
        endpoint: str,
        run_id: str,
        key_prefix: str | None = None,
        ttl: float | None = None,
        api: Literal["v2", "v3"] = "v2",
        *,
        name: str = "rallypoint-etcd-v2",
        **options: Any,
    ) -> None:
        ttl = ttl if ttl and ttl > 0 else None
        self._backend = translated(StateBackend)(endpoint, run_id, key_prefix, ttl, api, **options)
        self._name = name

    @property
    def name(self) -> str:
        """The name of the backend."""
        return self._name

    @translated
    def get_state(self) -> tuple[bytes, Token] | None:
        """The state and its token, or ``None``."""
        found = self._backend.get_state()
        return found and (found[0], int(found[1]))

    @translated
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Sets the state if ``token`` is the current one, or, without a token, if there is no state.

        Returns the state after the call, its token, and whether it was set.
        """
        changed = self._backend.set_state(state, None if token is None else str(token))
        return changed and (changed[0], int(changed[1]), changed[2])


@translated
def create_backend(
    params: RendezvousParameters, endpoint: str | None = None, patience: timedelta | None = None
) -> tuple[EtcdRendezvousBackend, EtcdStore]:
    """The backend and the store for these parameters, with the options of PyTorch's ``etcd-v2``.

    For ``patience`` it waits for an etcd that is not there yet. The option ``api=v3`` leaves PyTorch's nodes behind for an etcd of today.
    """
    config = checked(params, DYNAMIC)
    # Another one is refused where it is read.
    api = cast(Literal["v2", "v3"], config.pop("api", "v2"))
    endpoint = params.endpoint if endpoint is None else endpoint
    made = EtcdRendezvousBackend.__new__(EtcdRendezvousBackend)
    made._backend, store = StateBackend.create(api, endpoint, params.run_id, config, patience)
    made._name = params.backend
    return made, EtcdStore.over(store)
