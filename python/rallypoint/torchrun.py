"""torchrun, with Rallypoint's backends: ``python -m rallypoint.torchrun ...`` in place of ``torchrun ...``.

Only a torch before 2.5 needs it, which does not look for the backends of other packages. With a newer one it does what
``torchrun`` does.
"""

from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry
from torch.distributed.run import main as torchrun

from rallypoint.torch import create_rdzv_handler

BACKENDS = ("rallypoint", "rallypoint-etcd", "rallypoint-etcd-v2")


def main() -> None:
    """Runs torchrun with the arguments of this process."""
    for name in BACKENDS:
        registry.register(name, create_rdzv_handler)
    torchrun()


if __name__ == "__main__":
    main()
