"""The store, as torch's C++ uses it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import torch.distributed as dist

import rallypoint
from rallypoint.torch._translated import translated

if TYPE_CHECKING:
    from typing_extensions import Self

# c10d writes "wait for ever" as zero.
FOR_EVER = timedelta(days=365 * 100)

# torch's C++ keeps a store by its C++ half alone, and without the Python half that is a store without methods: in
# `init_process_group(store=EtcdStore(...))` Python lets go of it at once. C++ says nothing when it lets go, so a
# store lives as long as the process.
_kept: list[EtcdStore] = []


class EtcdStore(dist.Store):  # pyright: ignore[reportPrivateImportUsage]
    """A ``torch.distributed.Store`` that is kept in etcd.

    It goes wherever torch takes a store: under a ``PrefixStore``, into ``init_process_group(store=...)``, beneath
    a process group. All stores with the same prefix share their data.

    Args:
        endpoint: The servers, comma-separated: ``"etcd1:2379,etcd2:2379"``.
        prefix: Where in etcd the keys are.
        timeout: How long operations wait: a ``timedelta``, or seconds. The default is torch's: five minutes.
        api: ``"v3"``, the fast one, or ``"v2"``, whose data are those of torch's own ``EtcdStore``.
        **options: How to connect: see :class:`rallypoint.Store`.

    A wait that times out raises an error that is a ``DistStoreError``, a ``LookupError`` and a ``TimeoutError``.

    Through a ``PrefixStore``, torch has no way to reach ``queue_push``, ``queue_pop``, ``queue_len`` and
    ``list_keys`` of a store written in Python; call them on this store itself.
    """

    def __init__(
        self,
        endpoint: str,
        prefix: str,
        timeout: timedelta | float | None = None,
        api: Literal["v3", "v2"] = "v3",
        **options: Any,
    ) -> None:
        super().__init__()
        self._take(translated(rallypoint.Store)(endpoint, prefix, timeout, api, **options))
        _kept.append(self)

    @classmethod
    def over(cls, store: rallypoint.Store) -> Self:
        """A store for torch, on the data of this one. Keep it for as long as torch has it."""
        made = cls.__new__(cls)
        dist.Store.__init__(made)  # pyright: ignore[reportPrivateImportUsage]
        made._take(store)
        return made

    def _take(self, store: rallypoint.Store) -> None:
        self._store = store
        self._seen = store.timeout
        super().set_timeout(self._seen)

    def _ready(self) -> rallypoint.Store:
        # torch sets the timeout in C++, past any method of a subclass.
        timeout: timedelta = self.timeout  # type: ignore[attr-defined]
        if timeout != self._seen:
            self._store.set_timeout(timeout or FOR_EVER)
            self._seen = timeout
        return self._store

    @translated
    def set(self, key: str, value: str | bytes) -> None:
        """Stores ``value`` under ``key``, over whatever was there."""
        self._ready().set(key, value)

    @translated
    def get(self, key: str) -> bytes:
        """The value of ``key``; waits for it to be there."""
        return self._ready().get(key)

    @translated
    def add(self, key: str, value: int) -> int:
        """Adds ``value`` to the number under ``key``, 0 if there is none, and returns the sum."""
        return self._ready().add(key, value)

    @translated
    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Stores ``desired_value`` if the value is ``expected_value``, or if there is none and that is empty.

        Returns the value after the call; where there is none, ``expected_value``.
        """
        return self._ready().compare_set(key, expected_value, desired_value)

    @translated
    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Waits until all of ``keys`` are there."""
        if timeout is not None and not timeout:
            timeout = FOR_EVER
        self._ready().wait(keys, timeout)

    @translated
    def check(self, keys: list[str]) -> bool:
        """Whether all of ``keys`` are there now."""
        return self._ready().check(keys)

    @translated
    def delete_key(self, key: str) -> bool:
        """Removes ``key``; says whether it was there."""
        return self._ready().delete_key(key)

    @translated
    def num_keys(self) -> int:
        """The number of keys."""
        return self._ready().num_keys()

    @translated
    def append(self, key: str, value: str | bytes) -> None:
        """Puts ``value`` at the end of the value of ``key``."""
        self._ready().append(key, value)

    @translated
    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The values of ``keys``, in their order; waits for all of them."""
        return self._ready().multi_get(keys)

    @translated
    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        """Stores each value under its key."""
        self._ready().multi_set(keys, values)

    @translated
    def list_keys(self) -> list[str]:
        """All keys, sorted."""
        return [key.decode(errors="surrogateescape") for key in self._ready().list_keys()]

    @translated
    def queue_push(self, key: str, value: str | bytes) -> None:
        """Puts ``value`` at the end of the queue ``key``."""
        self._ready().queue_push(key, value)

    @translated
    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Takes the value at the head of the queue ``key``; with ``block`` it waits for one."""
        return self._ready().queue_pop(key, block)

    @translated
    def queue_len(self, key: str) -> int:
        """The length of the queue ``key``."""
        return self._ready().queue_len(key)

    @translated
    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Waits until ``world_size`` callers have come to the barrier ``key``."""
        self._ready().barrier(key, world_size, timeout)

    def has_extended_api(self) -> bool:
        """Whether there are ``append``, ``multi_get`` and ``multi_set``: yes."""
        return True

    @translated
    def clone(self) -> EtcdStore:
        """Another handle on the same data, with a timeout of its own."""
        made = EtcdStore.over(self._ready().clone())
        _kept.append(made)
        return made

    # torch's C++ asks for these two by these names.
    deleteKey = delete_key
    getNumKeys = num_keys

    def __repr__(self) -> str:
        return repr(self._store).replace("rallypoint.Store", "rallypoint.torch.EtcdStore")
