"""Packets that tell a task which share of a heavy partition it computes.

The JVM knows the sizes of partitions when it makes the tasks of a stage, and puts such a packet before the blobs of a
task that computes a share. Other tasks get none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from gpujoin.model.stages import Share

_MAGIC = b"GPJS "
"""No blob starts with it."""
_PACKETS = {_MAGIC + share.name.encode(): share for share in Share}


def share_packets() -> dict[Share, str]:
    """Give the packet of each share, as text of one byte a character."""
    return {share: packet.decode("ascii") for packet, share in _PACKETS.items()}


def with_share(packets: Iterable[bytes]) -> tuple[Share | None, Iterator[bytes]]:
    """Take the packet of a share, if there is one, from the first place."""
    rest = iter(packets)
    first = next(rest, None)
    if first is None:
        return None, rest
    share = _PACKETS.get(bytes(first)) if len(first) <= _LONGEST else None
    return share, rest if share is not None else itertools.chain((first,), rest)


_LONGEST = max(map(len, _PACKETS))
