"""Object stores that a worker reads exactly as Spark would: in the name of the same user, from the same endpoint.

Hadoop's file system and Arrow's find credentials in different places. Where Hadoop was told nothing, both ask the
environment and the machine's role. Where it was told something, by whatever file or setting, only Hadoop follows it,
and a worker's own read might be another user's: such a table is left to Spark. The values, secrets among them, are not
read.
"""

from __future__ import annotations

import re
from typing import Any

_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_PROVIDER_PATH = "hadoop.security.credential.provider.path"
_HADOOPS_OWN = "core-default.xml"
_SPARKS_OWN = "Set by Spark to default values"
_FROM_ENVIRONMENT = re.compile(r"Set by Spark on .* from AWS_\w+")
_HARMLESS = re.compile(
    r"""
    (acl | attempts | audit | block | buffer | change | committer | connection\.(?!ssl) | create | directory\.marker
    | downgrade | etag | executor | experimental | fast | input | list | max | metrics | multi | multipart | optimized
    | paging | performance | prefetch | readahead | rename | retry | select | socket | statistics | threads
    | user\.agent | vectored)
    [a-z.-]*
    | impl
    """,
    re.VERBOSE,
)
"""Settings of S3A that say in what pieces it reads and how often it tries, not whom it asks and in whose name."""


def store_obstacle(scheme: str, configuration: Any, *, local: bool) -> str | None:
    """Tell why a worker might read a store of the scheme ``s3a``, ``s3`` or ``s3n`` otherwise than Spark does.

    ``configuration`` is the session's, for Hadoop. ``local``: workers run on the driver's machine, in its
    environment.
    """
    implementation = configuration.get(f"fs.{scheme}.impl")
    if implementation not in (_S3A, None):
        return f"{scheme} is read by {implementation}, whose users and endpoints workers do not know"
    if configuration.get(_PROVIDER_PATH):
        return f"Hadoop has credentials by {_PROVIDER_PATH}, which workers do not follow"
    for prefix in dict.fromkeys(("fs.s3a.", f"fs.{scheme}.")):
        for name in _names(configuration, prefix):
            if _HARMLESS.fullmatch(name):
                continue
            sources = configuration.getPropertySources(prefix + name)
            if not all(_is_default(source, local=local) for source in sources or ()):
                return f"Hadoop was told {prefix}{name}, which workers do not follow"
    return None


def _names(configuration: Any, prefix: str) -> list[str]:
    """What follows a prefix in the keys of a configuration."""
    text = str(configuration.getPropsWithPrefix(prefix).keySet().toString())
    return sorted(filter(None, text.strip("[]").split(", ")))


def _is_default(source: str, *, local: bool) -> bool:
    """Whether a value is what Hadoop and workers assume by themselves."""
    if source in (_HADOOPS_OWN, _SPARKS_OWN):
        return True
    return local and _FROM_ENVIRONMENT.fullmatch(source) is not None
