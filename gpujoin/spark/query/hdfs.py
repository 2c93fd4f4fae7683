"""HDFS as Spark reads it: Hadoop's own client in the worker, of the same user, told what Spark's was told.

PyArrow's file system for HDFS is Hadoop's Java client behind its C library ``libhdfs``. So workers are handed
Hadoop's settings themselves, those of HDFS, and every one of them means to a worker what it means to Spark: name nodes
that stand in for one another, encryption of transfers, short-circuit reads. What cannot be handed over is who somebody
is. Without Kerberos a name is enough. With Kerberos Spark's executors have delegation tokens, which workers do not see;
workers need a ticket cache.
"""

from __future__ import annotations

from typing import Any

from gpujoin.model.stores import Store, StoreKind
from gpujoin.spark.catalyst.nodes import NotTranslatableError
from gpujoin.spark.jvm.compiled import shared_instance
from gpujoin.spark.jvm.gateway import names_of

CLIENT = "org.apache.hadoop.hdfs.DistributedFileSystem"
"""Hadoop's client."""
_PREFIXES = ("dfs.", "hadoop.kerberos.", "hadoop.rpc.", "hadoop.security.", "ipc.")
"""What the client is told begins with one of these."""
_OF_SERVERS = "hadoop.security.group.mapping."
"""Settings by which servers look up the groups of users, passwords among them."""
_AUTHENTICATION = "hadoop.security.authentication"
_TICKETS = "hadoop.security.kerberos.ticket.cache.path"
_DEFAULT_FILE_SYSTEM = "fs.defaultFS"


def hdfs_of(authority: str, configuration: Any) -> Store:
    """Describe the HDFS with some authority, a name node or the name of several, as Hadoop reads it in this session.

    Raises ``NotTranslatableError`` if a worker might read it as somebody else.
    """
    reader = shared_instance(names_of(configuration), "HadoopReader")
    user, real, *told = str(reader.client(configuration, ",".join(_PREFIXES))).split("\0")
    if real:
        raise NotTranslatableError(f"Spark reads HDFS as {user} by the proxy user {real}, which workers cannot be")
    settings = {}
    for setting in told:
        name, is_known, value = setting.partition("=")
        if name.startswith(_OF_SERVERS):
            continue
        if not is_known:
            raise NotTranslatableError(f"Hadoop was told {name}, a secret that workers are not told")
        settings[name] = value
    arguments: dict[str, str | bool] = {"host": _name_node(authority, configuration), "user": user}
    authentication = settings.get(_AUTHENTICATION, "simple").lower()
    if authentication == "kerberos":
        tickets = settings.pop(_TICKETS, "")
        if not tickets:
            raise NotTranslatableError(
                f"{_AUTHENTICATION} is kerberos, and workers have no ticket: set spark.hadoop.{_TICKETS} to a ticket "
                f"cache of {user} that the driver and all workers have at that path"
            )
        arguments["kerb_ticket"] = tickets
    elif authentication != "simple":
        raise NotTranslatableError(f"{_AUTHENTICATION} is {authentication}, which workers do not follow")
    return Store(StoreKind.HDFS, tuple(arguments.items()), settings=tuple(settings.items()))


def _name_node(authority: str, configuration: Any) -> str:
    """Give the URI by which the client connects."""
    if authority:
        return f"{StoreKind.HDFS.value}://{authority}"
    default = str(configuration.get(_DEFAULT_FILE_SYSTEM))
    scheme, _, rest = default.partition("://")
    authority = rest.partition("/")[0]
    if scheme != StoreKind.HDFS.value or not authority:
        raise NotTranslatableError(f"its files are on the default HDFS, and {_DEFAULT_FILE_SYSTEM} is {default}")
    return f"{scheme}://{authority}"
