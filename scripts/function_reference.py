"""Spark's functions by their names in SQL: why Spark computes those that islands leave to it, and calls of some.

What an island takes follows from the tables of `gpujoin.functions`, from those of aggregates and windows, and from what
Spark's optimizer makes of a call. `scripts/gen_functions.py` finds out by planning calls of every function, and writes
`docs/functions.md`; what it cannot find out is why a function is left to Spark. A reason is given for a function, or
for a section of Spark's reference, where it holds for whatever of that section is left.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpujoin.functions.maths import SPARK_ONLY


@dataclass(frozen=True)
class LeftToSpark:
    """Why some functions are left to Spark, wholly or for some operands."""

    why: str
    """The reason, for the users."""
    functions: tuple[str, ...] = ()
    """Names in SQL."""
    sections: tuple[str, ...] = ()
    """Sections of Spark's reference, as ``DESCRIBE FUNCTION`` names them."""


LEFT_TO_SPARK = (
    *(LeftToSpark(row.why, tuple(name.lower() for name in row.classes)) for row in SPARK_ONLY),
    LeftToSpark(
        "random: another run gives other values",
        ("rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle"),
    ),
    LeftToSpark(
        "depends on the task that computes it",
        (
            "monotonically_increasing_id", "spark_partition_id", "input_file_name", "input_file_block_length",
            "input_file_block_start",
        ),
    ),
    LeftToSpark("there to fail", ("assert_true", "raise_error")),
    LeftToSpark("calls code of the user's own", ("java_method", "reflect", "try_reflect")),
    LeftToSpark("AES of Java's security providers", ("aes_encrypt", "aes_decrypt", "try_aes_decrypt")),
    LeftToSpark(
        "patterns are constants of `%s`, `%d`, `%x` and `%f`, and no decimals, dates and timestamps are written",
        ("printf", "format_string"),
    ),
    LeftToSpark("the part and the name of a value are constants", ("parse_url", "try_parse_url")),
    LeftToSpark("formats of numbers are not written yet", ("to_number", "try_to_number", "to_char", "to_varchar")),
    LeftToSpark(
        "integers and decimals are exact; doubles are rounded by rules of Java's own, and patterns are Java's",
        ("format_number",),
    ),
    LeftToSpark("Java's rules of where sentences and words end", ("sentences",)),
    LeftToSpark(
        "not written yet",
        (
            "try_url_decode", "bitmap_count", "try_to_binary", "from_base32", "to_base32", "hmac",
            "jaro_winkler_similarity",
        ),
    ),
    LeftToSpark("fails for malformed text, by rules of its own", ("to_binary",)),
    LeftToSpark(
        "about texts that are no UTF-8, which islands leave to Spark",
        ("is_valid_utf8", "make_valid_utf8", "validate_utf8", "try_validate_utf8"),
    ),
    LeftToSpark(
        "patterns and replacements are constants, of the syntax that means the same in RE2",
        ("rlike", "regexp", "regexp_like", "regexp_extract", "regexp_replace", "regexp_substr", "regexp_instr"),
    ),
    LeftToSpark("the start is a constant", ("locate", "position")),
    LeftToSpark("UTF-8 alone", ("encode",)),
    LeftToSpark("of bytes, and of occurrences by number, not written yet", ("lpad", "rpad", "instr")),
    LeftToSpark("of dates and intervals not written yet", ("try_add", "try_subtract", "width_bucket")),
    LeftToSpark(
        "patterns are constants that mean the same in RE2 and match something",
        ("split", "regexp_extract_all", "regexp_count"),
    ),
    LeftToSpark("of one array, or of texts", ("concat_ws",)),
    LeftToSpark(
        "some functions of arrays, maps and structs are written, these are not",
        sections=(
            "array_funcs", "map_funcs", "lambda_funcs", "struct_funcs", "collection_funcs", "generator_funcs",
            "table_funcs", "hash_funcs", "conditional_funcs",
        ),
    ),
    LeftToSpark(
        "JSON: Jackson decides what is JSON, and how its numbers are read and written", sections=("json_funcs",)
    ),
    LeftToSpark("XML: Java's parser", sections=("xml_funcs",)),
    LeftToSpark("CSV: univocity's parser", sections=("csv_funcs",)),
    LeftToSpark("Avro's own encoding", sections=("avro_funcs",)),
    LeftToSpark("Protocol Buffers' own encoding", sections=("protobuf_funcs",)),
    LeftToSpark("variants are passed on, not computed with", sections=("variant_funcs",)),
    LeftToSpark("geometries are passed on, not computed with", sections=("st_funcs",)),
    LeftToSpark("arrays of floats are passed on, not computed with", sections=("vector_funcs",)),
    LeftToSpark("sketches: DataSketches' own encoding", sections=("sketch_funcs",)),
    LeftToSpark(
        "follows a pattern, a type (`TIME`, intervals) or a time zone's history that is not covered",
        sections=("datetime_funcs", "conversion_funcs"),
    ),
    LeftToSpark(
        "beyond half its accuracy (5,000 values of a group) the result follows from how rows are divided among tasks",
        ("approx_percentile", "percentile_approx"),
    ),
    LeftToSpark("its bins follow from the order of rows", ("histogram_numeric",)),
    LeftToSpark(
        "elements are ordered by one key, as in `CASE WHEN l < r THEN -1 WHEN l > r THEN 1 ELSE 0 END`", ("array_sort",)
    ),
    LeftToSpark("the most edits are a constant", ("levenshtein",)),
    LeftToSpark("separators are constants that mean the same in RE2 and match something", ("str_to_map",)),
    LeftToSpark(
        "its partial results are Spark's own, or an approximation's, or it is not written yet",
        sections=("agg_funcs", "window_funcs"),
    ),
)  # fmt: skip

FURTHER_CALLS: dict[str, tuple[str, ...]] = {
    **{name: (f"{name}(string)",) for name in (
        "bigint", "boolean", "decimal", "double", "float", "int", "smallint", "tinyint", "date", "timestamp", "time",
    )},
    "binary": ("binary(string)",),
    "string": ("string(int)", "string(date)", "string(decimal)", "string(double)"),
    "!=": ("int != int", "string != string"),
    "<>": ("int <> int", "string <> string"),
    "||": ("string || string", "array_int || array_int"),
    "case": ("CASE WHEN boolean THEN int ELSE int END",),
    "nvl": ("nvl(int, int)", "nvl(string, string)"),
    "ifnull": ("ifnull(int, int)", "ifnull(string, string)"),
    "hash": ("hash(string, int)",),
    "grouping": ("grouping(id)",),
    "grouping_id": ("grouping_id(id)",),
    "xxhash64": ("xxhash64(string, int)",),
    "format_string": ("format_string('%s: %d', string, int)",),
    "printf": ("printf('%.2f', double)",),
    "date_format": ("date_format(timestamp, 'yyyy-MM')",),
    "date_trunc": ("date_trunc('month', timestamp)",),
    "trunc": ("trunc(date, 'month')",),
    "to_date": ("to_date(timestamp)",),
    "to_timestamp": ("to_timestamp(date)",),
    "months_between": ("months_between(timestamp, timestamp)",),
    "hour": ("hour(timestamp)",),
    "minute": ("minute(timestamp)",),
    "second": ("second(timestamp)",),
    "date_part": ("date_part('YEAR', timestamp)", "date_part('SECONDS', timestamp)"),
    "datepart": ("datepart('YEAR', timestamp)", "datepart('SECONDS', timestamp)"),
    "unix_timestamp": ("unix_timestamp(timestamp)",),
    "to_unix_timestamp": ("to_unix_timestamp(timestamp)",),
    "unix_seconds": ("unix_seconds(timestamp)",),
    "unix_millis": ("unix_millis(timestamp)",),
    "unix_micros": ("unix_micros(timestamp)",),
    "format_number": ("format_number(decimal, int)", "format_number(double, int)"),
    "encode": ("encode(string, 'UTF-8')", "encode(string, 'UTF-16')"),
    "decode": ("decode(binary, 'UTF-8')",),
    "to_binary": ("to_binary(string, 'hex')", "to_binary(string, 'base64')"),
    "unhex": ("unhex(string)",),
    "mask": ("mask(string)", "mask(string, 'Q', 'q', 'd', '*')"),
    "percentile": ("percentile(int, 0.3)", "percentile(decimal, array(0.25, 0.75))"),
    "percentile_cont": ("percentile_cont(0.25) WITHIN GROUP (ORDER BY int)",),
    "percentile_disc": ("percentile_disc(0.25) WITHIN GROUP (ORDER BY int)",),
    "stack": ("stack(2, int, int)",),
    "map": ("map(int, string)", "map(string, int, 'other', null)", "map(double, int)"),
    "map_entries": ("map_entries(map_int)",),
    "map_keys": ("map_keys(map_int)",),
    "map_values": ("map_values(map_int)",),
    "map_contains_key": ("map_contains_key(map_int, int)",),
    "map_concat": ("map_concat(map_int, map_int)",),
    "map_from_entries": ("map_from_entries(map_entries(map_int))",),
    "transform_keys": ("transform_keys(map_int, (k, v) -> k + int)",),
    "named_struct": ("named_struct('a', int, 'b', string)",),
    "struct": ("struct(int, string)",),
    "exists": ("exists(array_int, x -> x > int)",),
    "forall": ("forall(array_int, x -> x > int)",),
    "session_window": ("session_window(timestamp, '10 minutes')",),
    "window": ("window(timestamp, '10 minutes')", "window(timestamp, '10 minutes', '5 minutes')"),
    "map_filter": ("map_filter(map_int, (k, v) -> k > int)",),
    "transform_values": ("transform_values(map_int, (k, v) -> concat(v, string))",),
    "nth_value": ("nth_value(int, 2) OVER (PARTITION BY string ORDER BY int)",),
    "ntile": ("ntile(4) OVER (PARTITION BY string ORDER BY int)",),
}  # fmt: skip
"""Calls of functions of which Spark gives no example, or none that matters; columns are named for types."""
