"""What is made of what Delta tells of a table, without Delta: how columns are found, and which tables are refused."""

from __future__ import annotations

from typing import Any

import pytest

from gpujoin.model.files import StoredField
from gpujoin.spark.catalyst.nodes import NotTranslatableError
from gpujoin.spark.query import delta

NAME, ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"


def column(name: str, dtype: Any, number: int) -> dict[str, Any]:
    return {"name": name, "type": dtype, "nullable": True, "metadata": {NAME: f"col-{number}", ID: number}}


def plain(name: str, dtype: Any) -> dict[str, Any]:
    return {"name": name, "type": dtype, "nullable": True, "metadata": {}}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


REFERENCE = column(
    "m",
    {
        "type": "map",
        "keyType": "string",
        "valueType": {
            "type": "array",
            "elementType": struct(column("a", "long", 2), column("b", struct(column("c", "string", 4)), 3)),
        },
    },
    1,
)
PRUNED = plain(
    "m",
    {
        "type": "map",
        "keyType": "string",
        "valueType": {"type": "array", "elementType": struct(plain("b", struct(plain("c", "string"))))},
    },
)
"""Of which a query reads one field."""


@pytest.mark.parametrize(
    ("key", "place"),
    [(NAME, lambda number: {"name": f"col-{number}"}), (ID, lambda number: {"field_id": number})],
    ids=["name", "id"],
)
def test_columns_are_found_at_each_depth(key: str, place: Any) -> None:
    inner = StoredField(**place(3), fields=(StoredField(**place(4)),))
    expected = StoredField(**place(1), fields=(StoredField(), StoredField(fields=(StoredField(fields=(inner,)),))))
    assert delta._stored_field(PRUNED, REFERENCE, key) == expected


def test_a_table_that_does_not_tell_names_is_refused() -> None:
    with pytest.raises(NotTranslatableError, match="not told what column m is called"):
        delta._stored_field(PRUNED, PRUNED, NAME)


@pytest.mark.parametrize(
    ("version", "features", "why"),
    [
        (1, [], None), (2, [], None), (3, ["columnMapping", "deletionVectors", "typeWidening"], None),
        (3, ["deletionVectors", "somethingNew"], "Delta's feature somethingNew, which is not known here"),
        (4, [], "version 4 of Delta's protocol"),
    ],
)  # fmt: skip
def test_readers_must_know_the_features_of_a_table(version: int, features: list[str], why: str | None) -> None:
    if why is None:
        delta._check_protocol(version, features)
    else:
        with pytest.raises(NotTranslatableError, match=why):
            delta._check_protocol(version, features)
