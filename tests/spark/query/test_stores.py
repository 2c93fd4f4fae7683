"""Object stores: whoever Hadoop was told to be, a worker is not somebody else."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from gpujoin.spark.query.stores import store_obstacle

pytestmark = pytest.mark.spark


@pytest.fixture
def configuration(spark: SparkSession) -> Any:
    """A copy of the session's Hadoop configuration, without credentials of the environment."""
    return spark._jvm.org.apache.hadoop.conf.Configuration(spark._jsparkSession.sessionState().newHadoopConf())


def test_a_configuration_that_says_nothing_is_no_obstacle(configuration: Any) -> None:
    for scheme in ("s3a", "s3", "s3n"):
        assert store_obstacle(scheme, configuration, local=False) is None


def test_settings_of_speed_are_no_obstacle(configuration: Any) -> None:
    for name in (
        "threads.max",
        "connection.maximum",
        "experimental.input.fadvise",
        "bucket.b.readahead.range",
    ):
        if not name.startswith("bucket"):
            configuration.set(f"fs.s3a.{name}", "1")
    assert store_obstacle("s3a", configuration, local=True) is None


@pytest.mark.parametrize(
    "key",
    [
        "fs.s3a.access.key",
        "fs.s3a.secret.key",
        "fs.s3a.session.token",
        "fs.s3a.aws.credentials.provider",
        "fs.s3a.assumed.role.arn",
        "fs.s3a.security.credential.provider.path",
        "fs.s3a.delegation.token.binding",
        "fs.s3a.encryption.key",
        "fs.s3a.server-side-encryption.key",
        "fs.s3a.endpoint",
        "fs.s3a.endpoint.region",
        "fs.s3a.path.style.access",
        "fs.s3a.connection.ssl.enabled",
        "fs.s3a.proxy.host",
        "fs.s3a.custom.signers",
        "fs.s3a.bucket.sales.access.key",
        "fs.s3a.bucket.sales.aws.credentials.provider",
        "fs.s3a.bucket.sales.endpoint",
        "fs.s3a.ext.anything",
        "fs.s3a.something.new",
        "hadoop.security.credential.provider.path",
    ],
)
def test_what_decides_who_reads_is_left_to_spark(configuration: Any, key: str) -> None:
    """The setting is named, its value is not."""
    configuration.set(key, "s3cr3t")
    for local in (False, True):
        obstacle = store_obstacle("s3a", configuration, local=local)
        assert obstacle is not None
        assert key in obstacle
        assert "s3cr3t" not in obstacle


def test_another_reader_of_the_scheme_is_left_to_spark(configuration: Any) -> None:
    configuration.set("fs.s3.impl", "com.amazon.ws.emr.hadoop.fs.EmrFileSystem")
    obstacle = store_obstacle("s3", configuration, local=True)
    assert obstacle is not None
    assert "EmrFileSystem" in obstacle


def test_credentials_of_the_drivers_environment_are_the_workers_in_local_mode_only(
    configuration: Any,
) -> None:
    configuration.set("fs.s3a.access.key", "a", "Set by Spark on host/10.0.0.1 from AWS_ACCESS_KEY_ID")
    assert store_obstacle("s3a", configuration, local=True) is None
    assert store_obstacle("s3a", configuration, local=False) is not None
