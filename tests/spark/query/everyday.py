"""Random SQL of everyday functions, aggregates, windows and nested values over the nasty tables."""

from __future__ import annotations

import re

import numpy as np

from tests.spark.query.generated import COLUMNS, NastyGenerator

ZONES = ("UTC", "Europe/Berlin", "America/Sao_Paulo")
"""Session time zones: without and with changing offsets, and one that gave up its summer time."""

SCALAR = (
    # text
    "upper({s})", "lower({s})", "initcap({s})", "trim({s})", "ltrim('a', {s})", "lpad({s}, 5, '*')", "rpad({s}, 3)",
    "reverse({s})", "repeat({s}, 2)", "replace({s}, 'a', 'xy')", "translate({s}, 'abt', '12')", "length({s})",
    "substring_index({s}, ' ', 1)", "split_part({s}, ' ', 2)", "instr({s}, 't')", "locate('e', {s}, 2)", "ascii({s})",
    "concat_ws('-', {s}, {i}, {a})", "concat({s}, '/', {l})", "left({s}, 2)", "right({s}, 2)", "octet_length({s})",
    "regexp_replace({s}, '[0-9]+', '#')", "regexp_extract({s}, '(t)e(x)', 2)", "{s} rlike '^t.*1$'",
    "nvl2({s}, {i}, 0)",
    "md5({s})", "sha2({s}, 256)", "crc32({s})", "hash({s}, {l}, {a})", "xxhash64({i}, {s})", "nullif({s}, 'a')",
    "char_length({s})", "startswith({s}, 'te')", "overlay({s} placing 'Z' from 2)", "base64(encode({s}, 'utf-8'))",
    "hex({s})", "levenshtein({s}, 'text 7')", "soundex({s})", "{s} like '%e_t%'", "ifnull({s}, 'none')",
    # numbers
    "round({d}, 1)", "bround({m}, 1)", "round({n}, -2)", "ceil({m})", "floor({d})", "abs({m})", "sign({d})",
    "{m} % 7", "pmod({i}, 10)", "{m} / 3", "{y} * 3", "greatest({i}, {l}, 5)", "least({d}, {f})", "nanvl({d}, 0D)",
    "try_add({i}, {i})", "try_divide({m}, {y})", "try_multiply({l}, 2)", "bit_count({i})", "{i} & 255", "{l} | 1",
    "shiftright({i}, 3)", "conv({i}, 10, 16)", "hex({l})", "bin({y})", "width_bucket({d}, 0D, 10D, 4)", "sqrt({d})",
    "cast({d} as decimal(20,3))", "try_cast({s} as int)", "cast({m} as string)", "cast({i} as string)", "degrees({f})",
    "cast({l} as double)", "cast({o} as int)", "if({o}, {i}, -{y})", "equal_null({i}, {l})", "exp({y} / 100D)",
    "cbrt({d})", "log10({d})", "factorial({y} % 20)",
    # dates and timestamps
    "year({a})", "quarter({t})", "month({t})", "dayofweek({a})", "weekofyear({t})", "dayofyear({t})", "hour({t})",
    "minute({u})", "second({t})", "last_day({a})", "next_day({a}, 'MON')", "trunc({a}, 'MONTH')",
    "date_trunc('DAY', {t})",
    "date_trunc('HOUR', {t})", "date_trunc('WEEK', {t})", "to_date({t})", "cast({t} as string)", "cast({u} as string)",
    "cast({a} as string)", "cast({t} as timestamp_ntz)", "cast({u} as timestamp)", "cast({a} as timestamp)",
    "datediff({t}, {a})", "date_add({a}, {y})", "add_months({a}, {y})", "months_between({t}, {a})", "unix_seconds({t})",
    "date_format({t}, 'yyyy-MM-dd HH:mm')", "unix_timestamp({t})", "from_unixtime({i})", "{t} + interval 36 hours",
    "{t} + interval 1 month", "{a} - interval 2 months", "extract(year from {t})", "date_part('hour', {u})",
    "make_date(2024, {y}, 3)", "dayname({a})", "timestampdiff(HOUR, {t}, timestamp'2024-03-31 00:00:00')",
    "from_utc_timestamp({t}, 'Asia/Kolkata')", "to_date('2024-02-' || lpad({y}, 2, '0'))",
    # nested values
    "array({i}, {y})[1]", "size(split({s}, ' '))", "split({s}, ' ')[0]", "array_contains(array({i}, 1, 2), {l})",
    "named_struct('a', {i}, 'b', {s}).b", "element_at(array({s}, 'z'), 1)", "array_max(array({i}, {y}, 3))",
    "map('k', {i})['k']", "sort_array(array({i}, {y}))", "struct({i}, {s})",
)  # fmt: skip
"""Calls; ``{i}`` stands for a column of that kind."""

AGGREGATE = (
    "count({s})", "count_if({o})", "sum({m})", "try_sum({i})", "avg({m})", "try_avg({y})", "min({t})", "max({s})",
    "count(distinct {s}, {i})", "count(distinct {a})", "sum(distinct {m})", "bool_or({o})", "bit_xor({i})",
    "median({y})", "percentile({h}, 0.25)", "percentile({y}, array(0.1, 0.9))", "sort_array(collect_list({i}))",
    "sort_array(collect_set({s}))", "approx_count_distinct({i})", "max_by({i}, {i})", "min_by({s}, {s})",
    "max(struct({i}, {s}))", "regr_count({y}, {h})", "count(*) filter (where {i} > 0)", "sum({n}) filter (where {o})",
    "round(regr_avgx({y}, {y}), 6)", "percentile_approx({i}, 0.5)", "mode({o}) is null",
    "sum(year({t}))", "max(date_trunc('MONTH', {t}))", "count(distinct hour({t}))",
)  # fmt: skip
"""Aggregates whose value does not depend on the order of rows."""

WINDOW = (
    "row_number() over ({w})", "rank() over ({w})", "dense_rank() over ({w})", "percent_rank() over ({w})",
    "cume_dist() over ({w})", "ntile(3) over ({w})", "lag({k}) over ({w})", "lead({k}, 2, {k}) over ({w})",
    "first_value({k}) over ({w})", "last_value({k}) over ({w})", "nth_value({k}, 2) over ({w})",
    "sum({k}) over ({w})", "count({k}) over ({w} rows between 2 preceding and current row)",
    "max({k}) over ({w} rows between unbounded preceding and 1 preceding)", "min({k}) over (partition by {p})",
    "avg({k}) over ({w} rows between 1 preceding and 1 following)", "count(*) over (partition by {p})",
    "sum({k}) over ({w} range between unbounded preceding and current row)",
)  # fmt: skip
"""Window functions of a key ``{k}`` that the order ``{w}`` ends with, by a partition ``{p}``."""

_HOLE = re.compile(r"\{(\w)\}")
_SHAPES = ("rows", "rows", "groups", "groups", "windows", "windows", "ranked", "exploded", "sets", "any", "any")


class EverydayGenerator(NastyGenerator):
    """Makes queries of everyday functions; the same seed makes the same ones."""

    def query(self) -> str:
        shape = self._pick(_SHAPES)
        return super().query() if shape == "any" else str(getattr(self, f"_{shape}")())

    def _rows(self) -> str:
        sources, aliases = self._sources()
        outputs = ", ".join(f"{self._filled(SCALAR, aliases)} as c{i}" for i in range(2 + self._below(4)))
        return f"select {outputs} from {sources} where {self._condition(aliases)}"

    def _groups(self) -> str:
        sources, aliases = self._sources()
        key = self._pick((self._column(aliases, "oyhilmnsa"), self._filled(SCALAR, aliases)))
        outputs = ", ".join(f"{self._filled(AGGREGATE, aliases)} as c{i}" for i in range(1 + self._below(3)))
        having = " having count(*) > 1" if self._rng.random() < 0.2 else ""
        return f"select {key} as k, {outputs} from {sources} group by {key}{having}"

    def _windows(self) -> str:
        order = f"o {self._pick(('', 'desc'))} {self._pick(('', 'nulls first', 'nulls last'))}, k"
        calls = ", ".join(f"{self._over(order)} as c{i}" for i in range(1 + self._below(3)))
        return f"select p, o, k, {calls} from ({self._ordered()})"

    def _ranked(self) -> str:
        """The first rows of each partition."""
        word = self._pick(("row_number", "rank", "dense_rank"))
        ranks = f"select p, o, k, {word}() over (partition by p order by o, k) as r from ({self._ordered()})"
        return f"select p, o, k from ({ranks}) where r {self._pick(('=', '<='))} {self._pick(('1', '3'))}"

    def _ordered(self) -> str:
        """Rows of a partition, an order, and a key: rows that are equal in all three are the same."""
        sources, aliases = self._sources()
        by, order, key = (self._column(aliases, kinds) for kinds in ("oyhilsa", "yhilsat", "yhim"))
        return f"select {by} as p, {order} as o, {key} as k from {sources}"

    def _over(self, order: str) -> str:
        return (
            self._pick(WINDOW)
            .replace("{w}", f"partition by p order by {order}")
            .replace("{k}", "k")
            .replace("{p}", "p")
        )

    def _exploded(self) -> str:
        """Rows of the parts of a text or of an array, grouped."""
        array = self._pick(("split(x.s, ' ')", "array(x.s, cast(x.i as string))", "array(x.s)"))
        outer = self._pick(("", "outer "))
        text = f"select x.i as i, e from {self._table()} x lateral view {outer}explode({array}) v as e"
        return f"select e, count(*) as n, max(i) as c from ({text}) group by e"

    def _value(self, aliases: list[str]) -> str:
        return self._filled(SCALAR, aliases) if self._rng.random() < 0.5 else super()._value(aliases)

    def _aggregate(self, aliases: list[str]) -> str:
        return self._filled(AGGREGATE, aliases) if self._rng.random() < 0.5 else super()._aggregate(aliases)

    def _filled(self, calls: tuple[str, ...], aliases: list[str]) -> str:
        call = self._pick(calls)
        columns = {kind: self._column(aliases, kind) for kind in COLUMNS}
        return _HOLE.sub(lambda hole: columns[hole[1]], call)


def everyday_query(seed: int, number: int) -> str:
    """Give the query of a number."""
    return EverydayGenerator(np.random.default_rng([seed, 1, number])).query()
