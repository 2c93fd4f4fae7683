"""What Iceberg's own reader of S3 was told is told to workers, or the table is left to Spark."""

from __future__ import annotations

from typing import Any

import pytest

from gpujoin.model.files import Store, StoreKind
from gpujoin.spark.catalyst.nodes import NotTranslatableError
from gpujoin.spark.query.stores import store_of_s3_file_io

SECRET = "s3cr3t-v4lue"  # noqa: S105
KEYS = {"s3.access-key-id": "AKIA", "s3.secret-access-key": SECRET}
TOLD = (("access_key", "AKIA"), ("secret_key", SECRET))
NEVER = str(10**14)
ENDPOINT = "client.refresh-credentials-endpoint"
EXPIRY = "s3.session-token-expires-at-ms"
TEMPORARY = KEYS | {"s3.session-token": "t", EXPIRY: NEVER}
LOCATIONS = ["s3://sales/a/1.parquet", "s3://sales/b/2.parquet"]
FOLLOWED: dict[str, tuple[dict[str, str], list[dict[str, Any]], Store]] = {
    "nothing": ({"warehouse": "s3://sales", "uri": "http://catalog"}, [], Store(StoreKind.S3)),
    "keys": (KEYS, [], Store(StoreKind.S3, secrets=TOLD)),
    "a place": (
        KEYS | {"s3.endpoint": "http://store:9000", "s3.path-style-access": "true", "client.region": "eu"},
        [],
        Store(StoreKind.S3, (("endpoint_override", "store:9000"), ("scheme", "http"), ("region", "eu")), TOLD),
    ),
    "how it is read": (
        {"s3.retry.num-retries": "3", "s3.sse.type": "kms", "http-client.type": "apache", "s3.delete-enabled": "true"},
        [],
        Store(StoreKind.S3),
    ),
    "what is switched off": ({"s3.remote-signing-enabled": "false"}, [], Store(StoreKind.S3)),
    "the path style of Amazon": ({"s3.path-style-access": "true"}, [], Store(StoreKind.S3)),
    "tags and what signing would need": (
        {"s3.write.tags.Team_1": "x", "s3.signer.uri": "http://signer", "s3.access-grants.enabled": "false"},
        [],
        Store(StoreKind.S3),
    ),
    "credentials that expire, and are asked for anew": (
        {ENDPOINT: "http://catalog/credentials"},
        [{"prefix": "s3://sales/", "config": TEMPORARY}],
        Store(StoreKind.S3, (), (*TOLD, ("session_token", "t"))),
    ),
    "credentials that are never asked for anew": (
        KEYS | {ENDPOINT: "http://catalog/credentials", "client.refresh-credentials-enabled": "false"},
        [],
        Store(StoreKind.S3, secrets=TOLD),
    ),
    "credentials of a catalog": (
        {"client.region": "us-east-1"},
        [{"prefix": "s3://sales/", "config": KEYS | {"s3.session-token": "t"}}],
        Store(StoreKind.S3, (("region", "us-east-1"),), (*TOLD, ("session_token", "t"))),
    ),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_workers_can_be_told(name: str) -> None:
    properties, credentials, store = FOLLOWED[name]
    assert store_of_s3_file_io(properties, credentials, LOCATIONS) == store


@pytest.mark.parametrize(
    ("properties", "credentials", "why"),
    [
        ({"s3.remote-signing-enabled": "true"}, [], "s3.remote-signing-enabled, which"),
        ({"s3.sse.type": "custom", "s3.sse.key": SECRET}, [], "s3.sse.key, which"),
        ({"client.factory": "com.example.Factory"}, [], "client.factory, which"),
        ({"client.assume-role.arn": "arn:aws:iam::1:role/r"}, [], "client.assume-role.arn, which"),
        ({"http-client.proxy-endpoint": "http://proxy"}, [], "http-client.proxy-endpoint, which"),
        ({"s3.something-new": "1"}, [], "s3.something-new, which"),
        ({"s3.access-key-id": "AKIA"}, [], "s3.access-key-id without the other half"),
        ({"s3.session-token": SECRET}, [], "s3.session-token without the other half"),
        ({ENDPOINT: "http://catalog/credentials"}, [], f"asks for its credentials by {ENDPOINT}"),
        (KEYS | {ENDPOINT: "http://catalog/credentials"}, [], f"asks for its credentials by {ENDPOINT}"),
        (KEYS | {"s3.session-token": "t", ENDPOINT: "http://catalog"}, [], f"asks for its credentials by {ENDPOINT}"),
        (TEMPORARY | {EXPIRY: "1700000000000"}, [], "expire within 300 s"),
        ({}, [{"prefix": "s3://sales/a/", "config": KEYS}], "credentials for some of its files"),
        ({}, [{"prefix": "s3://sales/", "config": KEYS}, {"prefix": "gs", "config": {}}], "credentials for some"),
    ],
)
def test_what_is_left_to_spark(properties: dict[str, str], credentials: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(NotTranslatableError, match=why) as refused:
        store_of_s3_file_io(properties, credentials, LOCATIONS)
    assert SECRET not in str(refused.value)
