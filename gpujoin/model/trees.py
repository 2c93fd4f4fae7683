"""Walking trees of nodes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Protocol, Self, TypeVar


class _Node(Protocol):
    @property
    def children(self) -> Sequence[Self]: ...


_T = TypeVar("_T", bound=_Node)


def preorder(root: _T, ends: Container[int] = frozenset()) -> Iterator[_T]:
    """Yield a node and all below it, parents first, in time linear in their number however deep the tree is.

    Nodes whose ``id()`` is among ``ends`` are left out with what is below them.
    """
    pending = [root]
    while pending:
        node = pending.pop()
        if id(node) not in ends:
            yield node
            pending.extend(reversed(node.children))
