"""Stores: whoever Hadoop was told to be, a worker is that one, or the table is left to Spark."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gpujoin.model.files import Store, StoreKind
from gpujoin.spark.catalyst.nodes import NotTranslatableError
from gpujoin.spark.query.stores import store_of

SECRET = "s3cr3t-v4lue"  # noqa: S105
ACCOUNT = "sales.dfs.core.windows.net"
CLIENT = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
pytestmark = pytest.mark.spark


@pytest.fixture
def configuration(spark: SparkSession) -> Any:
    """A copy of the session's Hadoop configuration, without credentials of the environment."""
    names: Any = spark._jvm
    return names.org.apache.hadoop.conf.Configuration(spark._jsparkSession.sessionState().newHadoopConf())


def told(configuration: Any, settings: dict[str, str]) -> Any:
    for name, value in settings.items():
        configuration.set(name, value)
    return configuration


def store(scheme: str, authority: str, configuration: Any, *, local: bool = False) -> Store:
    return store_of(scheme, authority, configuration, local=local)[0]


def test_a_configuration_that_says_nothing_is_followed_by_asking_the_environment(configuration: Any) -> None:
    for scheme in ("s3a", "s3", "s3n"):
        assert store(scheme, "b", configuration) == Store(StoreKind.S3)


def test_settings_of_speed_are_no_obstacle(configuration: Any) -> None:
    names = ("threads.max", "connection.maximum", "experimental.input.fadvise", "bucket.b.readahead.range")
    told(configuration, {f"fs.s3a.{name}": "1" for name in names})
    assert store("s3a", "b", configuration, local=True) == Store(StoreKind.S3)


FOLLOWED = {
    "keys": (
        "s3a", "b", {"fs.s3a.access.key": "AKIA", "fs.s3a.secret.key": SECRET},
        {}, {"access_key": "AKIA", "secret_key": SECRET},
    ),
    "keys of an hour": (
        "s3a", "b",
        {
            "fs.s3a.access.key": "AKIA", "fs.s3a.secret.key": SECRET, "fs.s3a.session.token": "t0ken",
            "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
        },
        {}, {"access_key": "AKIA", "secret_key": SECRET, "session_token": "t0ken"},
    ),
    "nobody": (
        "s3a", "b", {"fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"},
        {"anonymous": True}, {},
    ),
    "an endpoint": (
        "s3a", "b", {"fs.s3a.endpoint": "http://store:9000/", "fs.s3a.endpoint.region": "eu"},
        {"endpoint_override": "store:9000", "scheme": "http", "force_virtual_addressing": True, "region": "eu"}, {},
    ),
    "an endpoint by path": (
        "s3a", "b",
        {
            "fs.s3a.endpoint": "store:9000", "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": "false",
        },
        {"endpoint_override": "store:9000", "scheme": "http"}, {},
    ),
    "a region's endpoint": (
        "s3a", "b", {"fs.s3a.endpoint": "s3.eu-west-1.amazonaws.com"},
        {
            "endpoint_override": "s3.eu-west-1.amazonaws.com", "scheme": "https", "force_virtual_addressing": True,
            "region": "eu-west-1",
        }, {},
    ),
    "a bucket's own": (
        "s3a", "b",
        {
            "fs.s3a.endpoint": "https://127.0.0.1:1", "fs.s3a.bucket.b.endpoint": "https://127.0.0.1:2",
            "fs.s3a.bucket.other.access.key": "X", "fs.s3a.bucket.b.access.key": "AKIA",
            "fs.s3a.bucket.b.secret.key": SECRET,
        },
        {"endpoint_override": "127.0.0.1:2", "scheme": "https"}, {"access_key": "AKIA", "secret_key": SECRET},
    ),
    "Google's defaults": ("gs", "b", {"fs.gs.auth.type": "APPLICATION_DEFAULT", "fs.gs.project.id": "p"}, {}, {}),
    "Google's nobody": (
        "gs", "b", {"fs.gs.auth.type": "unauthenticated", "fs.gs.storage.root.url": "http://127.0.0.1:4443/"},
        {"anonymous": True, "endpoint_override": "127.0.0.1:4443", "scheme": "http"}, {},
    ),
    "Azure's key": (
        "abfss", f"c@{ACCOUNT}",
        {f"fs.azure.account.key.{ACCOUNT}": SECRET, "fs.azure.account.key.other.dfs.core.windows.net": "x"},
        {"account_name": "sales"}, {"account_key": SECRET},
    ),
    "Azure's client": (
        "abfs", f"c@{ACCOUNT}",
        {
            "fs.azure.account.auth.type": "OAuth", "fs.azure.account.oauth.provider.type": CLIENT,
            "fs.azure.account.oauth2.client.id": "wrong", f"fs.azure.account.oauth2.client.id.{ACCOUNT}": "cl1ent",
            "fs.azure.account.oauth2.client.secret": SECRET,
            "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.com/ten-ant/oauth2/token",
        },
        {"account_name": "sales"}, {"tenant_id": "ten-ant", "client_id": "cl1ent", "client_secret": SECRET},
    ),
    "Azure's token": (
        "abfss", f"c@{ACCOUNT}", {"fs.azure.account.auth.type": "SAS", "fs.azure.sas.fixed.token": SECRET},
        {"account_name": "sales"}, {"sas_token": SECRET},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_workers_are_told(configuration: Any, name: str) -> None:
    scheme, authority, settings, arguments, secrets = FOLLOWED[name]
    described = store(scheme, authority, told(configuration, settings))
    assert (dict(described.arguments), dict(described.secrets)) == (arguments, secrets)
    for secret in secrets.values():
        assert secret not in f"{described!r} {described}"
    assert pickle.loads(pickle.dumps(described)) == described  # noqa: S301


@pytest.mark.parametrize(
    ("scheme", "authority", "key"),
    [
        *(
            ("s3a", "sales", f"fs.s3a.{key}")
            for key in (
                "access.key", "secret.key", "session.token", "aws.credentials.provider", "assumed.role.arn",
                "security.credential.provider.path", "delegation.token.binding", "encryption.key",
                "server-side-encryption.key", "path.style.access", "connection.ssl.enabled", "proxy.host",
                "custom.signers", "bucket.sales.access.key", "bucket.sales.aws.credentials.provider",
                "bucket.sales.proxy.host", "ext.anything", "something.new",
            )
        ),
        ("s3", "sales", "fs.s3.endpoint"),
        ("s3a", "sales", "hadoop.security.credential.provider.path"),
        ("gs", "sales", "fs.gs.auth.type"),
        ("gs", "sales", "fs.gs.proxy.address"),
        ("gs", "sales", "fs.gs.encryption.key"),
        ("gs", "sales", "fs.gs.requester.pays.mode"),
        ("abfss", f"c@{ACCOUNT}", "fs.azure.account.auth.type"),
        ("abfss", f"c@{ACCOUNT}", "fs.azure.account.keyprovider"),
        ("abfss", f"c@{ACCOUNT}", "fs.azure.encryption.key"),
    ],
)  # fmt: skip
def test_what_workers_cannot_be_told_is_left_to_spark(
    configuration: Any, scheme: str, authority: str, key: str
) -> None:
    """The setting is named, its value is not."""
    told(configuration, {key: SECRET})
    for local in (False, True):
        with pytest.raises(NotTranslatableError) as problem:
            store(scheme, authority, configuration, local=local)
        name = key.replace("bucket.sales.", "")
        assert name in str(problem.value)
        assert SECRET not in str(problem.value)


def test_an_account_without_a_key_and_other_clouds_are_left_to_spark(configuration: Any) -> None:
    for authority in (f"c@{ACCOUNT}", "c@sales.dfs.core.chinacloudapi.cn", "c"):
        with pytest.raises(NotTranslatableError, match="account"):
            store("abfss", authority, configuration)


def test_another_reader_of_the_scheme_is_left_to_spark(configuration: Any) -> None:
    configuration.set("fs.s3.impl", "com.amazon.ws.emr.hadoop.fs.EmrFileSystem")
    with pytest.raises(NotTranslatableError, match="EmrFileSystem"):
        store("s3", "b", configuration, local=True)


def test_credentials_of_the_drivers_environment_are_sent_to_clusters_only(configuration: Any) -> None:
    for name, variable in (("access", "AWS_ACCESS_KEY_ID"), ("secret", "AWS_SECRET_ACCESS_KEY")):
        configuration.set(f"fs.s3a.{name}.key", "a", f"Set by Spark on host/10.0.0.1 from {variable}")
    assert store("s3a", "b", configuration, local=True) == Store(StoreKind.S3)
    assert dict(store("s3a", "b", configuration).secrets) == {"access_key": "a", "secret_key": "a"}


NAME_NODES = {
    "dfs.nameservices": "sales", "dfs.ha.namenodes.sales": "a,b", "dfs.namenode.rpc-address.sales.a": "a:8020",
    "dfs.client.failover.proxy.provider.sales": "${dfs.nameservices}.Provider",
}  # fmt: skip
AUTHENTICATION, TICKETS = "hadoop.security.authentication", "hadoop.security.kerberos.ticket.cache.path"


def user_of(spark: SparkSession) -> Any:
    names: Any = spark._jvm
    return names.org.apache.hadoop.security.UserGroupInformation


def test_hdfs_is_read_by_the_same_user_with_hadoops_own_settings(spark: SparkSession, configuration: Any) -> None:
    user = user_of(spark).getCurrentUser().getUserName()
    assert store("hdfs", "nn:8020", configuration) == Store(
        StoreKind.HDFS, (("host", "hdfs://nn:8020"), ("user", user))
    ), "Hadoop's defaults need not be told"
    ldap = "hadoop.security.group.mapping.ldap.bind.password"
    told(configuration, {**NAME_NODES, "fs.s3a.secret.key": SECRET, ldap: SECRET})
    described = store("hdfs", "sales", configuration)
    assert dict(described.arguments) == {"host": "hdfs://sales", "user": user}
    assert dict(described.settings) == {**NAME_NODES, "dfs.client.failover.proxy.provider.sales": "sales.Provider"}
    assert "sales.Provider" not in repr(described)
    assert pickle.loads(pickle.dumps(described)) == described  # noqa: S301


def test_hdfs_in_anothers_name_is_left_to_spark(spark: SparkSession, configuration: Any) -> None:
    users = user_of(spark)
    real = users.getLoginUser()
    users.setLoginUser(users.createProxyUser("ann", real))
    try:
        with pytest.raises(NotTranslatableError, match=r"reads HDFS as ann by the proxy user "):
            store("hdfs", "nn", configuration)
    finally:
        users.setLoginUser(real)


def test_hdfs_without_a_name_node_is_the_default_file_system(configuration: Any) -> None:
    with pytest.raises(NotTranslatableError, match=r"fs.defaultFS is file:///"):
        store("hdfs", "", configuration)
    told(configuration, {"fs.defaultFS": "hdfs://nn:8020/home"})
    assert dict(store("hdfs", "", configuration).arguments)["host"] == "hdfs://nn:8020"


def test_with_kerberos_workers_need_a_ticket_cache(spark: SparkSession, configuration: Any) -> None:
    told(configuration, {AUTHENTICATION: "kerberos"})
    with pytest.raises(NotTranslatableError, match=f"workers have no ticket: set spark.hadoop.{TICKETS}"):
        store("hdfs", "nn", configuration)
    told(configuration, {TICKETS: "/tickets/ann"})
    described = store("hdfs", "nn", configuration)
    assert dict(described.arguments) == {
        "host": "hdfs://nn", "user": user_of(spark).getCurrentUser().getUserName(), "kerb_ticket": "/tickets/ann",
    }  # fmt: skip
    assert dict(described.settings) == {AUTHENTICATION: "kerberos"}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (AUTHENTICATION, "token", f"{AUTHENTICATION} is token"),
        ("dfs.some.password", SECRET, "Hadoop was told dfs.some.password, a secret"),
        ("fs.hdfs.impl", "com.example.OtherClient", "hdfs is read by com.example.OtherClient"),
    ],
)
def test_hdfs_that_workers_would_read_otherwise_is_left_to_spark(
    configuration: Any, name: str, value: str, reason: str
) -> None:
    told(configuration, {name: value})
    with pytest.raises(NotTranslatableError, match=reason) as problem:
        store("hdfs", "nn", configuration)
    assert SECRET not in str(problem.value)


def test_secrets_are_not_in_the_log_of_calls(configuration: Any, caplog: pytest.LogCaptureFixture) -> None:
    told(configuration, {"fs.s3a.access.key": "AKIA", "fs.s3a.secret.key": SECRET})
    with caplog.at_level(logging.DEBUG, "py4j"):
        caplog.clear()
        store("s3a", "b", configuration)
        assert caplog.records, "the log has the other calls"
        assert SECRET not in caplog.text
        configuration.get("fs.s3a.secret.key")
        assert SECRET in caplog.text, "the log would have it"
