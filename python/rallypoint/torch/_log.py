"""Where the messages go: with those of torchrun."""

from torch.distributed.elastic.utils.logging import get_logger

logger = get_logger("torch.distributed.elastic.rendezvous.rallypoint")
