"""Stores of files, objects or HDFS: of what kind one is, where, and in whose name it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class StoreKind(Enum):
    """Protocol of a store, by the scheme of its files' URIs."""

    S3 = "s3"
    GCS = "gs"
    AZURE = "abfs"
    HDFS = "hdfs"


@dataclass(frozen=True)
class Store:
    """How a store is opened: arguments of PyArrow's file system; what is not said, that finds by itself.

    Secrets are in no text that is made of it. They leave a process only where the value is pickled.
    """

    kind: StoreKind
    arguments: tuple[tuple[str, str | bool], ...] = ()
    """By name, such as an endpoint."""
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """By name, such as an account's key."""
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Hadoop's, by name, of HDFS, whose client is Hadoop's own."""

    @property
    def is_plain(self) -> bool:
        """Whether nothing is said but the kind."""
        return not self.arguments and not self.secrets and not self.settings
