"""Schemas of Parquet messages that parquet-mr writes as samples."""

OLD = {
    "impala": """message impala {
  required int64 id; optional binary text; optional int96 moment; optional int32 i8 (INT_8);
  optional fixed_len_byte_array(5) dec9 (DECIMAL(9, 2));
  optional group ints (LIST) { repeated int32 array; }
  optional group points (LIST) { repeated group bag { optional group array_element { optional int32 x;
  optional binary y (UTF8); } } }
  optional group pairs (LIST) { repeated group pairs_tuple { optional int32 x; } }
  optional group props (MAP) { repeated group map (MAP_KEY_VALUE) { required binary key (UTF8); optional int32 value;
  } }
  repeated int32 bare; repeated group loose { optional int32 x; }
}""",
    "converted": """message converted {
  required int64 id; required boolean flag; optional int32 t_ms (TIME_MILLIS); optional int64 ts_ms (TIMESTAMP_MILLIS);
  optional binary kind (ENUM); optional binary doc (JSON); optional binary bin (BSON);
  optional fixed_len_byte_array(12) span (INTERVAL);
  optional int32 u8 (UINT_8); optional int32 u16 (UINT_16); optional int32 u32 (UINT_32); optional int64 u64 (UINT_64);
  optional int64 i64 (INT_64); optional binary dec (DECIMAL(18, 3)); optional int32 day (DATE);
  optional fixed_len_byte_array(3) raw;
}""",
}
"""Messages that parquet-mr 1.6 writes too, by name."""
NEW = {
    "logical": """message logical {
  required int64 id; optional int64 t_us (TIME(MICROS,true)); optional int64 t_ns (TIME(NANOS,false));
  optional int64 ts_ns (TIMESTAMP(NANOS,true)); optional int64 ts_ntz (TIMESTAMP(MICROS,false));
  optional int64 ts_utc (TIMESTAMP(MILLIS,true));
  optional fixed_len_byte_array(16) uid (UUID); optional fixed_len_byte_array(2) half (FLOAT16);
  optional binary text (STRING);
  optional int32 small (INTEGER(8,false)); optional int32 nothing (UNKNOWN);
}""",
    "variant": """message variants {
  required int64 id; optional group v (VARIANT(1)) { required binary metadata; required binary value;
  } optional int32 i32;
}""",
    "geo": """message geo {
  required int64 id; optional binary shape (GEOMETRY(OGC:CRS84));
  optional binary place (GEOGRAPHY(OGC:CRS84,SPHERICAL)); optional int32 i32;
}""",
}  # fmt: skip
