"""Stores that a worker reads exactly as Spark would: in the name of the same user, from the same endpoint.

Hadoop's file systems and Arrow's find credentials in different places. Where Hadoop was told nothing, both ask the
environment and the machine's role. Where it was told something that Arrow can be told too, workers are told the same,
with the stage that they run. Any other setting, of any file or session, only Hadoop follows, and a worker's own read
might be another user's: such a table is left to Spark. Reasons name settings, never values.

HDFS is read by Hadoop's own client in the worker, of the same user, with the settings of Spark's. PyArrow's file system
for HDFS is Hadoop's Java client behind its C library ``libhdfs``. So workers are handed Hadoop's settings themselves,
those of HDFS, and every one of them means to a worker what it means to Spark: name nodes that stand in for one another,
encryption of transfers, short-circuit reads. What cannot be handed over is who somebody is. Without Kerberos a name is
enough. With Kerberos Spark's executors have delegation tokens, which workers do not see; workers need a ticket cache.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpujoin.model.files import Store, StoreKind
from gpujoin.spark.catalyst.nodes import NotTranslatableError
from gpujoin.spark.jvm.compiled import shared_instance
from gpujoin.spark.jvm.gateway import names_of

CLIENT = "org.apache.hadoop.hdfs.DistributedFileSystem"
"""Hadoop's client of HDFS."""
KINDS = {
    **dict.fromkeys(("s3", "s3a", "s3n"), StoreKind.S3),
    "gs": StoreKind.GCS,
    **dict.fromkeys(("abfs", "abfss"), StoreKind.AZURE),
    "hdfs": StoreKind.HDFS,
}
"""Kinds of stores by the schemes of Spark's paths."""

_PROVIDER_PATH = "hadoop.security.credential.provider.path"
_HADOOPS_OWN = ("core-default.xml", "Set by Spark to default values")
_FROM_ENVIRONMENT = re.compile(r"Set by Spark on .* from AWS_\w+")
_FILE_SYSTEMS = {
    "s3": ("org.apache.hadoop.fs.s3a.S3AFileSystem",),
    "s3a": ("org.apache.hadoop.fs.s3a.S3AFileSystem",),
    "s3n": ("org.apache.hadoop.fs.s3a.S3AFileSystem",),
    "gs": ("com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem", "org.apache.hadoop.fs.gs.GoogleHadoopFileSystem"),
    "abfs": ("org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",),
    "abfss": ("org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",),
    "hdfs": (CLIENT,),
}
"""Hadoop's file systems, whose settings are known, by scheme."""

_HARMLESS_S3 = re.compile(
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
"""Settings of the manner in which a store is read, not of endpoints and credentials."""
_HARMLESS_GCS = re.compile(
    r"(application\.name|batch|block|bucket|copy|create|glob|grpc\.(?!directpath)|hierarchical|http|implicit|inputstream"
    r"|io|lazy|list|marker|max|metrics|outputstream|performance|project|reported|rewrite|status|tracelog|working)"
    r"[a-z.-]*|impl"
)
_HARMLESS_AZURE = re.compile(
    r"(abfs|always|analysis|apache|atomic|block|buffered|cluster|create|disable|enable\.(?!delegation)|io|list|perf|read"
    r"|readahead|readaheadqueue|shellkeyprovider|skip|tracing|user\.agent|write|writes)[a-z.-]*|impl|secure\.impl"
)

_SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
_TEMPORARY = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
_ANONYMOUS = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
_AWS_REGION = re.compile(r"s3[.-]([a-z]{2}[a-z0-9-]+-\d)\.amazonaws\.com(\.cn)?")
_CLIENT_CREDENTIALS = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
_TENANT = re.compile(r"https://login\.microsoftonline\.com/([^/]+)/oauth2(/v2\.0)?/token/?")
_AZURE_ACCOUNTS = ".dfs.core.windows.net"
_AZURE_HOST = re.compile(r"([a-z0-9]+)\.dfs\.core\.windows\.net")


@dataclass(frozen=True)
class _Settings:
    """What Hadoop was told of a store, beyond its own defaults, by name without the prefix."""

    prefix: str
    values: Mapping[str, str]

    def get(self, name: str) -> str | None:
        return self.values.get(name) or None

    def refuse(self, name: str) -> NotTranslatableError:
        return NotTranslatableError(f"Hadoop was told {self.prefix}{name}, which workers do not follow")

    def only(self, *names: str) -> None:
        """Raise ``NotTranslatableError`` if anything but some names is told."""
        for name in self.values:
            if name not in names:
                raise self.refuse(name)

    def require(self, name: str, because: str) -> str:
        value = self.get(name)
        if value is None:
            raise self.refuse(because)
        return value


def store_of(scheme: str, authority: str, configuration: Any, *, local: bool) -> tuple[Store, str]:
    """Describe the store that has files with a scheme and an authority as Hadoop reads it, and name the bucket.

    ``configuration`` is the session's, for Hadoop. ``local``: workers run on the driver's machine, in its
    environment. Raises ``NotTranslatableError`` if a worker might read it otherwise than Spark does.
    """
    implementation = configuration.get(f"fs.{scheme}.impl")
    if implementation is not None and implementation not in _FILE_SYSTEMS[scheme]:
        raise NotTranslatableError(
            f"{scheme} is read by {implementation}, whose users and endpoints workers do not know"
        )
    if KINDS[scheme] is StoreKind.HDFS:
        return hdfs_of(authority, configuration), authority
    if configuration.get(_PROVIDER_PATH):
        raise NotTranslatableError(f"Hadoop has credentials by {_PROVIDER_PATH}, which workers do not follow")
    match KINDS[scheme]:
        case StoreKind.S3:
            if scheme != "s3a":
                _read_settings(configuration, f"fs.{scheme}.", _HARMLESS_S3, local=local).only()
            settings = _read_settings(configuration, "fs.s3a.", _HARMLESS_S3, local=local)
            return _s3(_of_bucket(settings, authority)), authority
        case StoreKind.GCS:
            return _gcs(_read_settings(configuration, "fs.gs.", _HARMLESS_GCS, local=local)), authority
        case _:
            container, _, host = authority.rpartition("@")
            return _azure(_read_settings(configuration, "fs.azure.", _HARMLESS_AZURE, local=local), host), container


@contextmanager
def without_logs_of_calls() -> Iterator[None]:
    """Keep calls of this thread out of py4j's log, which at level DEBUG shows all arguments and results."""
    loggers = [logging.getLogger(f"py4j.{name}") for name in ("clientserver", "java_gateway")]
    own = threading.get_ident()

    def is_others(record: logging.LogRecord) -> bool:
        return record.thread != own

    for logger in loggers:
        logger.addFilter(is_others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_others)


def _read_settings(configuration: Any, prefix: str, harmless: re.Pattern[str], *, local: bool) -> _Settings:
    values = {}
    for name in _names(configuration, prefix):
        if harmless.fullmatch(name):
            continue
        sources = configuration.getPropertySources(prefix + name)
        if not all(_is_default(source, local=local) for source in sources or ()):
            with without_logs_of_calls():
                values[name] = str(configuration.get(prefix + name))
    return _Settings(prefix, values)


def _names(configuration: Any, prefix: str) -> list[str]:
    """What follows a prefix in the keys of a configuration."""
    text = str(configuration.getPropsWithPrefix(prefix).keySet().toString())
    return sorted(filter(None, text.strip("[]").split(", ")))


def _is_default(source: str, *, local: bool) -> bool:
    """Whether Hadoop and workers assume a value by themselves."""
    return source in _HADOOPS_OWN or (local and _FROM_ENVIRONMENT.fullmatch(source) is not None)


def _of_bucket(settings: _Settings, bucket: str) -> _Settings:
    """What S3A was told of one bucket: ``bucket.NAME.endpoint`` goes before ``endpoint``."""
    own = f"bucket.{bucket}."
    values = {name: value for name, value in settings.values.items() if not name.startswith("bucket.")}
    for name, value in settings.values.items():
        short = name.removeprefix(own)
        if name.startswith(own) and not _HARMLESS_S3.fullmatch(short):
            values[short] = value
    return _Settings(settings.prefix, values)


_HARMLESS_S3_FILE_IO = re.compile(
    r"s3\.(multipart|delete|write|retry|staging-dir|checksum|acl|preload-client|crt|analytics-accelerator|sse\.type"
    r"|use-arn-region|cross-region-access)[\w.-]*"
    r"|s3\.signer\.[a-z.-]*"  # of remote signing, which is refused where it is switched on
    r"|http-client\.(?!proxy)[a-z.-]*"
)
"""Properties of Iceberg's ``S3FileIO`` of the manner in which files are read and written."""
_EXPIRY = "s3.session-token-expires-at-ms"
_NEW_CREDENTIALS = "client.refresh-credentials-endpoint"
_FEWEST_SECONDS = 300
"""Credentials that expire sooner may do so while a query runs; Iceberg asks for new ones then, and workers do not."""
_S3_FILE_IO = {
    "s3.access-key-id": "access.key", "s3.secret-access-key": "secret.key", "s3.session-token": "session.token",
    "s3.endpoint": "endpoint", "client.region": "endpoint.region", "s3.path-style-access": "path.style.access",
}  # fmt: skip
"""Properties of endpoints and credentials, by those of Hadoop that mean the same."""
_S3_KEYS = tuple(_S3_FILE_IO)[:3]


def store_of_s3_file_io(
    properties: Mapping[str, str], credentials: Sequence[Mapping[str, Any]], locations: Iterable[str]
) -> Store:
    """Describe the store that has files as Iceberg's ``S3FileIO`` reads them.

    ``credentials`` are further properties for locations that begin in some way. Raises ``NotTranslatableError`` if a
    worker might read them otherwise, or any property of S3 is not known to be harmless.
    """
    if credentials:
        credential, *others = credentials
        if others or not all(location.startswith(credential["prefix"]) for location in locations):
            raise NotTranslatableError("Iceberg has credentials for some of its files alone")
        properties = {**properties, **credential["config"]}
    of_credentials = _check_s3_credentials(properties)
    values = {}
    for name, value in properties.items():
        if name in _S3_FILE_IO:
            values[_S3_FILE_IO[name]] = value
        elif (
            name.startswith(("s3.", "client.", "http-client."))
            and name not in of_credentials
            and not _HARMLESS_S3_FILE_IO.fullmatch(name)
            and not (name.endswith(("-enabled", ".enabled")) and value.lower() == "false")
        ):
            raise NotTranslatableError(f"Iceberg was told {name}, which workers do not follow")
    if "endpoint" not in values:
        values.pop("path.style.access", None)  # Amazon answers both ways
    return _s3(_Settings("fs.s3a.", values))


def _check_s3_credentials(properties: Mapping[str, str]) -> Collection[str]:
    """Check that workers have the identity that Iceberg has; gives the names of what else is told of its credentials.

    Iceberg begins with the keys that a catalog has given out, and asks for others once these expire. Without all of
    them it asks at once, whatever other keys there are. Raises ``NotTranslatableError``.
    """
    keys = [name for name in _S3_KEYS if properties.get(name)]
    if keys and not {*_S3_KEYS[:2]} <= set(keys):
        raise NotTranslatableError(f"Iceberg was told {keys[0]} without the other half of the key")
    expiry = properties.get(_EXPIRY)
    if expiry is not None and float(expiry) / 1000 < time.time() + _FEWEST_SECONDS:
        raise NotTranslatableError(f"the credentials that Iceberg has expire within {_FEWEST_SECONDS} s ({_EXPIRY})")
    refreshes = properties.get("client.refresh-credentials-enabled", "true").lower() != "false"
    if refreshes and properties.get(_NEW_CREDENTIALS) and (expiry is None or len(keys) < len(_S3_KEYS)):
        raise NotTranslatableError(f"Iceberg asks for its credentials by {_NEW_CREDENTIALS}, and workers do not")
    return _EXPIRY, _NEW_CREDENTIALS, "client.refresh-credentials-enabled"


def _s3(settings: _Settings) -> Store:
    keys = ("access.key", "secret.key", "session.token", "aws.credentials.provider")
    places = ("endpoint", "endpoint.region", "path.style.access", "connection.ssl.enabled")
    settings.only(*keys, *places)
    arguments: dict[str, str | bool] = _s3_place(settings)
    secrets: dict[str, str] = {}
    provider = settings.get("aws.credentials.provider")
    if provider == _ANONYMOUS:
        arguments["anonymous"] = True
    elif provider not in (None, _SIMPLE, _TEMPORARY):
        raise settings.refuse("aws.credentials.provider")
    elif provider is not None or any(settings.get(name) for name in keys[:3]):
        reason = next(name for name in reversed(keys) if settings.get(name))
        secrets = {
            "access_key": settings.require("access.key", reason),
            "secret_key": settings.require("secret.key", reason),
        }
        token = settings.require("session.token", reason) if provider == _TEMPORARY else settings.get("session.token")
        if token is not None and provider != _SIMPLE:
            secrets["session_token"] = token
    return Store(StoreKind.S3, tuple(arguments.items()), tuple(secrets.items()))


def _s3_place(settings: _Settings) -> dict[str, str | bool]:
    arguments: dict[str, str | bool] = {}
    region, endpoint = settings.get("endpoint.region"), settings.get("endpoint")
    if endpoint is not None:
        scheme, _, host = endpoint.rpartition("://")
        host = host.rstrip("/")
        plain = (settings.get("connection.ssl.enabled") or "true").lower() == "false"
        amazon = _AWS_REGION.fullmatch(host)
        region = region or (amazon[1] if amazon is not None else None)
        arguments |= {"endpoint_override": host, "scheme": scheme or ("http" if plain else "https")}
        by_path = (settings.get("path.style.access") or "false").lower() == "true"
        if not by_path and not _is_address(host):
            arguments["force_virtual_addressing"] = True
    else:
        for name in ("path.style.access", "connection.ssl.enabled"):
            if settings.get(name) is not None:
                raise settings.refuse(name)
    if region is not None:
        arguments["region"] = region
    return arguments


def _is_address(host: str) -> bool:
    """Whether a host is an IP address, with or without a port: buckets are not its subdomains."""
    try:
        ipaddress.ip_address(host.rpartition(":")[0] or host)
    except ValueError:
        return False
    return True


def _gcs(settings: _Settings) -> Store:
    settings.only("auth.type", "storage.root.url")
    arguments: dict[str, str | bool] = {}
    match (settings.get("auth.type") or "").upper():
        case "UNAUTHENTICATED":
            arguments["anonymous"] = True
        case "APPLICATION_DEFAULT":
            pass
        case _:
            # The connector then asks the machine alone, and Arrow the environment first.
            raise NotTranslatableError(
                "workers have Google's application default credentials, and fs.gs.auth.type is not APPLICATION_DEFAULT"
            )
    endpoint = settings.get("storage.root.url")
    if endpoint is not None:
        scheme, _, host = endpoint.rpartition("://")
        arguments |= {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}
    return Store(StoreKind.GCS, tuple(arguments.items()))


def _azure(settings: _Settings, host: str) -> Store:
    account = _AZURE_HOST.fullmatch(host)
    if account is None:
        raise NotTranslatableError(f"its account is {host!r}; workers know those under dfs.core.windows.net")
    # Settings of this account go before those of all; those of others do not matter.
    values = {name: value for name, value in settings.values.items() if not name.endswith(_AZURE_ACCOUNTS)}
    for name, value in settings.values.items():
        if name.endswith(f".{host}"):
            values[name.removesuffix(f".{host}")] = value
    own = _Settings(settings.prefix, values)
    readers: dict[str, Callable[[_Settings], dict[str, str]]] = {
        "SharedKey": _shared_key, "OAuth": _client_credentials, "SAS": _fixed_token,
    }  # fmt: skip
    kind = own.get("account.auth.type") or "SharedKey"
    if kind not in readers:
        raise own.refuse("account.auth.type")
    return Store(StoreKind.AZURE, (("account_name", account[1]),), tuple(readers[kind](own).items()))


def _shared_key(settings: _Settings) -> dict[str, str]:
    settings.only("account.auth.type", "account.key")
    if settings.get("account.key") is None:
        raise NotTranslatableError("Hadoop has no fs.azure.account.key for its account, and workers no other way")
    return {"account_key": settings.values["account.key"]}


def _client_credentials(settings: _Settings) -> dict[str, str]:
    names = [f"account.oauth2.client.{name}" for name in ("id", "secret", "endpoint")]
    provider = "account.oauth.provider.type"
    settings.only("account.auth.type", provider, *names)
    client, secret, endpoint = (settings.require(name, provider) for name in names)
    tenant = _TENANT.fullmatch(endpoint)
    if settings.get(provider) != _CLIENT_CREDENTIALS or tenant is None:
        raise settings.refuse(provider if tenant is not None else names[2])
    return {"tenant_id": tenant[1], "client_id": client, "client_secret": secret}


def _fixed_token(settings: _Settings) -> dict[str, str]:
    settings.only("account.auth.type", "sas.fixed.token")
    return {"sas_token": settings.require("sas.fixed.token", "account.auth.type")}


_PREFIXES = ("dfs.", "hadoop.kerberos.", "hadoop.rpc.", "hadoop.security.", "ipc.")
"""Beginnings of the client's settings."""
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
    user, real, *entries = str(reader.client(configuration, ",".join(_PREFIXES))).split("\0")
    if real:
        raise NotTranslatableError(f"Spark reads HDFS as {user} by the proxy user {real}, which workers cannot be")
    settings = {}
    for setting in entries:
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
