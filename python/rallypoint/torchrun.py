"""torchrun, with two things that a plugin cannot give it: ``python -m rallypoint.torchrun ...`` for ``torchrun ...``.

- ``--standalone`` is one machine on Rallypoint's embedded server. torchrun's own is always ``c10d``, whatever
  ``--rdzv-backend`` says.
- torch 2.4 finds the backends too, which does not look for those of other packages.
"""

from __future__ import annotations

import uuid
from argparse import Namespace
from collections.abc import Sequence

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry

from rallypoint._plugin import create_rdzv_handler

BACKENDS = ("rallypoint", "rallypoint-etcd", "rallypoint-etcd-v2")
# What torchrun takes where no backend is named.
_NONE = "static"


def parse_args(args: Sequence[str] | None) -> Namespace:
    """torchrun's arguments; ``--standalone`` means Rallypoint, unless a backend of torch's is named."""
    parsed: Namespace = run.parse_args(args)
    if parsed.standalone and parsed.rdzv_backend in (*BACKENDS, _NONE):
        parsed.standalone = False
        if parsed.rdzv_backend == _NONE:
            parsed.rdzv_backend = BACKENDS[0]
        # As torchrun does, so that it always works: a server of its own, and a run of its own.
        parsed.rdzv_endpoint, parsed.rdzv_id = "localhost:0", str(uuid.uuid4())
    return parsed


def main(args: Sequence[str] | None = None) -> None:
    """Runs torchrun with these arguments; with those of this process, if there are none."""
    for name in BACKENDS:
        registry.register(name, create_rdzv_handler)
    record(run.run)(parse_args(args))


if __name__ == "__main__":
    main()
