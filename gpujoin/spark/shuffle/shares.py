"""Packets that tell a task which share of a partition it computes.

The JVM knows the sizes of partitions when it makes the tasks of a stage, and puts such a packet before the blobs of a
task that computes a share. Other tasks get none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from gpujoin.model.stages import Share

_MAGIC = b"GPJS "
"""No blob starts with it."""
_PACKETS = {_MAGIC + share.name.encode(): share for share in Share if share is not Share.WHOLE}


def share_packets() -> dict[Share, str]:
    """Give the packet of each share of a heavy partition, as text of one byte a character."""
    return {share: packet.decode("ascii") for packet, share in _PACKETS.items()}


def share_and_blobs(packets: Iterable[bytes]) -> tuple[Share, Iterator[bytes]]:
    """Give the share that a task computes, by its first packet, and the blobs that follow."""
    rest = iter(packets)
    first = list(itertools.islice(rest, 1))
    share = _PACKETS.get(bytes(first[0])) if first and len(first[0]) <= _LONGEST else None
    return (Share.WHOLE, itertools.chain(first, rest)) if share is None else (share, rest)


_LONGEST = max(map(len, _PACKETS))
