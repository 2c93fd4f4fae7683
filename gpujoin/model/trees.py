"""Values that are compared by what they say, and trees of nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import Protocol, Self, TypeVar


class Structure:
    """What a value says, as a key of dictionaries: its class and its fields, hashed once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, parts: Iterable[object]) -> None:
        self._parts = tuple(parts)
        self._hash = hash(self._parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Structure) and self._hash == other._hash and self._parts == other._parts


class Structural:
    """Base of frozen dataclasses that are equal if they say the same.

    They are compared by their :attr:`structure`, in which expressions stand as theirs: ``==`` of two expressions is
    an expression. Fields with ``compare=False`` do not count. What is cached of a value does not travel with it:
    hashes of texts are others in another process.
    """

    @cached_property
    def structure(self) -> Structure:
        """What the value says, after that of its parts, however deep they are."""
        pending: list[Structural] = [self]
        while pending:
            value = pending[-1]
            depth = len(pending)
            parts = [type(value), *[_part(part, pending) for part in value.compared]]
            if len(pending) == depth:
                pending.pop()
                value.__dict__["structure"] = Structure(parts)
        return self.__dict__["structure"]

    @property
    def compared(self) -> tuple[object, ...]:
        """The values of the fields that count."""
        kind: type = type(self)
        return tuple([getattr(self, name) for name in _compared_fields(kind)])

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Structural) and self.structure == other.structure)

    def __hash__(self) -> int:
        return hash(self.structure)

    def __getstate__(self) -> dict[str, object]:
        kind: type = type(self)
        return {name: getattr(self, name) for name in _field_names(kind)}


def _part(value: object, pending: list[Structural]) -> object:
    """What a field has to say; a part of it whose structure is not known yet goes to those that are pending."""
    if isinstance(value, Structural):
        structure: Structure | None = value.__dict__.get("structure")
        if structure is None:
            pending.append(value)
        return structure
    return tuple([_part(each, pending) for each in value]) if type(value) is tuple else value


@cache
def _compared_fields(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if field.compare)


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


class _Node(Protocol):
    @property
    def children(self) -> Sequence[Self]: ...


_T = TypeVar("_T", bound=_Node)


def preorder(root: _T, ends: Container[_T] = ()) -> Iterator[_T]:
    """Yield a node and all below it, parents first, in time linear in their number however deep the tree is.

    Nodes among ``ends`` are left out with what is below them.
    """
    pending = [root]
    while pending:
        node = pending.pop()
        if node not in ends:
            yield node
            pending.extend(reversed(node.children))
