"""What can go wrong. All of it is a :class:`RallypointError`, but for arguments that cannot work: those are a
:class:`ValueError` or a :class:`TypeError`."""


class RallypointError(Exception):
    """Something went wrong."""


class StoreError(RallypointError):
    """An operation of a store failed."""


class StoreTimeoutError(StoreError, LookupError, TimeoutError):
    """What was waited for did not come in time."""


class QueueEmptyError(StoreError, LookupError):
    """A pop that does not wait found an empty queue."""


class StoreValueError(StoreError, ValueError):
    """A value that cannot be stored, or cannot be added to."""


class StoreConnectionError(StoreError, ConnectionError):
    """The etcd cannot be reached, or does not let us in."""


class OutcomeUnknownError(StoreConnectionError):
    """The reply to a write was lost, and whether it was carried out can no longer be found out."""


class RendezvousError(RallypointError):
    """A rendezvous failed."""


class RendezvousClosedError(RendezvousError):
    """The run is over."""


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """No round was completed in time."""


class RendezvousConnectionError(RendezvousError, ConnectionError):
    """The etcd cannot be reached, or does not let us in."""


class RendezvousStateError(RendezvousError):
    """What stands in etcd is not what a rendezvous writes, or not what this node was started with."""


class RendezvousGracefulExitError(RendezvousError):
    """This node was told to leave while it waited."""


class ServerError(RallypointError):
    """No server could be started."""
