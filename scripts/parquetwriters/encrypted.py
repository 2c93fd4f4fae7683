"""Writes samples with an encrypted footer, and with an encrypted column, by PyArrow."""

import base64

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
from rows import COLUMNS, FOLDER  # type: ignore[import-not-found]


class Keys(pe.KmsClient):  # type: ignore[misc]
    """Wraps keys by no secret: what they keep is no secret either."""

    def __init__(self, _config: pe.KmsConnectionConfig) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, _master: str) -> bytes:
        """Write a key as text."""
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, _master: str) -> bytes:
        """Read a key from its text."""
        return base64.b64decode(wrapped_key)


table = pa.table({"id": COLUMNS["id"], "text": COLUMNS["text"], "i32": pa.array(COLUMNS["i32"], pa.int32())})
for name, plain in (("footer", False), ("column", True)):
    config = pe.EncryptionConfiguration("footer", column_keys={"column": ["text"]}, plaintext_footer=plain)
    properties = pe.CryptoFactory(Keys).file_encryption_properties(pe.KmsConnectionConfig(), config)
    with pq.ParquetWriter(
        f"{FOLDER}/encrypted-{name}.parquet", table.schema, encryption_properties=properties
    ) as writer:
        writer.write_table(table)
