"""Makes the handlers that torchrun asks for by name."""

from __future__ import annotations

from torch.distributed.elastic.rendezvous import RendezvousHandler as _RendezvousHandler
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from rallypoint._rallypoint import TorchRendezvous
from rallypoint.torch import _meeting
from rallypoint.torch._translated import translated
from rallypoint.torch._options import (
    BARRIER,
    DYNAMIC,
    checked,
    from_environment,
    has_token,
    join_timeout,
    of_server,
    only_connect,
    serves,
    without_access,
)
from rallypoint.torch.backend import create_backend
from rallypoint.torch.handler import DynamicHandler, RendezvousHandler

# The names that torchrun knows them by, and those of PyTorch's own that each stands in for.
_NATIVE = ("rallypoint",)
_BARRIER = ("rallypoint-etcd", "etcd")
_DYNAMIC = ("rallypoint-etcd-v2", "etcd-v2")


@translated
def create(params: RendezvousParameters) -> _RendezvousHandler:
    """Makes the handler that ``params.backend`` names."""
    if params.backend in _NATIVE:
        return _create(params, "rallypoint", None)
    if params.backend in _BARRIER:
        return _create(params, "etcd", BARRIER)
    if params.backend in _DYNAMIC:
        return _create_dynamic(params)
    known = ", ".join(_NATIVE + _BARRIER + _DYNAMIC)
    raise ValueError(f"there is no rendezvous backend {params.backend!r} here; there are: {known}")


_NO_TOKEN = (
    "RALLYPOINT_TOKEN or RALLYPOINT_TOKEN_FILE is set, and nodes of the rendezvous backend {!r} cannot show a token: "
    "unset it, or use the backend 'rallypoint', or name a server that is there with etcd:// before it"
)


def _meet(params: RendezvousParameters, config: dict[str, str]) -> _meeting.Meeting:
    native = params.backend in _NATIVE
    options = of_server(config) if native else {}
    refusal = None if native or not has_token() else _NO_TOKEN.format(params.backend)
    access = _meeting.Access(only_connect(config, native), options, refusal)
    is_host = params.get_as_bool("is_host")
    return _meeting.find(params.endpoint or "", params.max_nodes, is_host, access, join_timeout(config))


def _create(params: RendezvousParameters, ours: str, known: tuple[str, ...] | None) -> RendezvousHandler:
    config = checked(params, known)
    agent_serves = serves(config)
    # PyTorch's own barrier knows nothing of them.
    environment = from_environment(config) if params.backend in _NATIVE else {}
    config = {**environment, **config}
    meeting = _meet(params, config)
    if meeting.alone:
        # Nobody else is to be let in. All nodes have one prefix, wherever the server is.
        config = without_access(config)
    rendezvous = TorchRendezvous(
        ours,
        meeting.endpoint,
        params.run_id,
        params.min_nodes,
        params.max_nodes,
        # Younger than the oldest torch that this works with.
        getattr(params, "local_addr", None) or meeting.address,
        config,
        meeting.patience,
    )
    return RendezvousHandler(rendezvous, params.backend, params.run_id, meeting.server, agent_serves)


def _create_dynamic(params: RendezvousParameters) -> DynamicHandler:
    meeting = _meet(params, checked(params, DYNAMIC))
    backend, store = create_backend(params, meeting.endpoint, meeting.patience)
    return DynamicHandler(create_handler(store, backend, params), store, meeting.server)
