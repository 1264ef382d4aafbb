"""Makes the handlers that torchrun asks for by name."""

from __future__ import annotations

from torch.distributed.elastic.rendezvous import RendezvousParameters

from rallypoint._rallypoint import Rendezvous
from rallypoint.torch import _meeting
from rallypoint.torch._errors import translated
from rallypoint.torch.handler import RendezvousHandler

# Ours by the name that torchrun knows it by.
_BACKENDS = {"rallypoint": "rallypoint", "rallypoint-etcd": "etcd", "etcd": "etcd"}

# Options that mean TLS.
_SECURE = ("cacert", "ca_cert", "cert", "ssl_cert", "key", "ssl_cert_key")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def meeting_of(params: RendezvousParameters) -> _meeting.Meeting:
    """Where the nodes of this run meet; starts the embedded server where that is here and nothing listens."""
    config = params.config
    secure = config.get("protocol") == "https" or any(config.get(name) for name in _SECURE)
    return _meeting.find(params.endpoint or "", params.max_nodes, params.get_as_bool("is_host"), secure)


@translated
def create_rdzv_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Makes the handler that ``params.backend`` names.

    ``rallypoint`` is the native one; ``rallypoint-etcd``, and ``etcd``, the barrier that meets nodes of PyTorch's own
    ``etcd`` backend. The options are in ``docs/python.md``; one that there is not is refused by name.
    """
    if params.backend not in _BACKENDS:
        known = ", ".join(_BACKENDS)
        raise ValueError(f"there is no rendezvous backend {params.backend!r} here; there are: {known}")
    config = {name: _text(value) for name, value in params.config.items() if value is not None}
    config.pop("is_host", None)
    meeting = meeting_of(params)
    rendezvous = Rendezvous(
        _BACKENDS[params.backend],
        meeting.endpoint,
        params.run_id,
        params.min_nodes,
        params.max_nodes,
        # Younger than the oldest torch that this works with.
        getattr(params, "local_addr", None),
        config,
        meeting.patience,
    )
    return RendezvousHandler(rendezvous, params.backend, params.run_id, meeting.server)
