"""The fence between the rooms: what each may import, at any depth of any function, and what importing it loads."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gpujoin"

ANY = "*"
ARROW, NUMPY = "pyarrow", "numpy"
ERRORS, LOGS, CACHE, COSTS, CONFIG, MODEL, FUNCTIONS, PLAN, REPORT, STORAGE, REGISTRY, ORDERED, PARQUET, ORC = (
    "gpujoin.errors", "gpujoin.logs", "gpujoin.cache", "gpujoin.costs", "gpujoin.config", "gpujoin.model",
    "gpujoin.functions", "gpujoin.plan", "gpujoin.report", "gpujoin.storage", "gpujoin.backends.registry",
    "gpujoin.backends.ordered", "gpujoin.backends.parquet", "gpujoin.backends.orc",
)  # fmt: skip
HEAVY = {"pyspark", "cudf", "pylibcudf", "rmm", "cupy", "polars"}

ROOMS: dict[str, set[str]] = {
    "gpujoin.errors": {MODEL},
    "gpujoin.logs": set(),
    "gpujoin.cache": set(),
    "gpujoin.costs": {ERRORS},
    "gpujoin.config": {COSTS, ERRORS, LOGS, MODEL},
    "gpujoin._version": set(),
    "gpujoin.model": {MODEL, ERRORS, ARROW, NUMPY},
    "gpujoin.functions": {FUNCTIONS, ORDERED, MODEL, ERRORS, "polars", ARROW, NUMPY},
    "gpujoin.plan": {PLAN, FUNCTIONS, MODEL, CONFIG, COSTS, ERRORS, ARROW, NUMPY},
    "gpujoin.engine": {
        "gpujoin.engine", MODEL, PLAN, CACHE, CONFIG, ERRORS, LOGS, REGISTRY, ARROW, NUMPY, "cryptography",
    },
    "gpujoin.storage": {STORAGE, MODEL, ERRORS, LOGS, ARROW},
    "gpujoin.backends.registry": {MODEL, ERRORS},
    "gpujoin.backends.ordered": {ORDERED, MODEL, ERRORS},
    "gpujoin.backends.parquet": {PARQUET, STORAGE, FUNCTIONS, MODEL, CACHE, ERRORS, ARROW, NUMPY},
    "gpujoin.backends.orc": {ORC, PARQUET, STORAGE, MODEL, ERRORS, ARROW},
    "gpujoin.backends.cpu": {
        "gpujoin.backends.cpu", ORDERED, PARQUET, ORC, STORAGE, REGISTRY, FUNCTIONS, MODEL, ERRORS, "polars", ARROW,
        NUMPY,
    },
    "gpujoin.backends.cudf": {
        "gpujoin.backends.cudf", ORDERED, PARQUET, "gpujoin.launch", STORAGE, REGISTRY, FUNCTIONS, MODEL, ERRORS,
        LOGS, "pylibcudf", "rmm", "cupy", "cuda", ARROW, NUMPY,
    },
    "gpujoin.launch": {"gpujoin.launch", "gpujoin.storage.folders", ERRORS, LOGS, "cupy", NUMPY},
    "gpujoin.spark.shuffle": {
        "gpujoin.spark.shuffle", "gpujoin.engine", MODEL, CONFIG, ERRORS, "pyspark", ARROW, NUMPY,
    },
    "gpujoin.spark": {"gpujoin", "pyspark", "py4j", "cuda", ARROW, NUMPY},
    "gpujoin.spark.worker.groups": {"gpujoin", "pyspark", "pandas", ARROW, NUMPY},
    "gpujoin.streams": {"gpujoin", "pyspark", "pandas", ARROW, NUMPY},
    "gpujoin.cli": {
        "gpujoin", "pyspark", "py4j", "cuda", ARROW, NUMPY,
    },
    "gpujoin.testing": {ARROW},
    "gpujoin.report": {
        REPORT, "gpujoin.spark", "gpujoin.streams", "gpujoin.testing", "gpujoin.engine", PLAN, FUNCTIONS, MODEL,
        CACHE, CONFIG, COSTS, ERRORS, LOGS, REGISTRY, "pyspark", ARROW, NUMPY,
    },
    "gpujoin": {ANY},
}  # fmt: skip
"""Rooms and what they may import besides the standard library; the longest name that fits a module is its room."""

BACKENDS = {"gpujoin.backends.cpu", "gpujoin.backends.cudf", ORDERED, PARQUET, ORC, "gpujoin.launch"}
"""All that is reached by way of the registry, or of the packages of the backends themselves."""
FACES = {"gpujoin.backends.cpu", "gpujoin.backends.cudf"}
"""Packages that count as the registry: importing them loads no library, and what is in them only by their functions."""
NEVER: dict[str, set[str]] = {
    "gpujoin.plan": {"gpujoin.engine", "gpujoin.backends", "gpujoin.spark"},
    "gpujoin.engine": {"gpujoin.spark", *BACKENDS},
    "gpujoin.backends": {"gpujoin.engine", "gpujoin.spark", "gpujoin.plan"},
    "gpujoin.spark.worker": {REPORT, "gpujoin.spark.api", "gpujoin.spark.catalyst", "gpujoin.spark.query"},
    "gpujoin.spark": {"gpujoin.testing", "gpujoin.cli", *BACKENDS},
    "gpujoin.streams": {"gpujoin.testing", "gpujoin.cli", *BACKENDS},
    "gpujoin.streams.worker": {REPORT},
    "gpujoin.cli": BACKENDS,
}
"""Imports that stay forbidden whatever a wider permission says."""


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def modules() -> dict[str, Path]:
    return {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def inside(module: str, room: str) -> bool:
    return module == room or module.startswith(room + ".")


def room_of(module: str) -> str:
    return max((room for room in ROOMS if inside(module, room)), key=len)


def imports(source: str) -> list[tuple[int, str]]:
    """Line and full name of every import in a module, names taken from a package included."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            assert node.module is not None
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [(node.lineno, name if name in modules() else node.module) for name in names]
    return found


@functools.cache
def imports_of(module: str) -> list[tuple[int, str]]:
    return imports(modules()[module].read_text())


def forbidden(module: str, name: str) -> bool:
    if name.split(".", maxsplit=1)[0] in sys.stdlib_module_names:
        return False
    name = REGISTRY if name in FACES else name
    if any(inside(module, room) and any(inside(name, n) for n in names) for room, names in NEVER.items()):
        return True
    allowed = ROOMS[room_of(module)]
    return ANY not in allowed and not any(inside(name, permitted) for permitted in allowed)


def test_a_room_imports_only_what_it_may() -> None:
    wrong = [
        f"{module} (room {room_of(module)}), line {line}: {name}"
        for module in modules()
        for line, name in imports_of(module)
        if forbidden(module, name)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("gpujoin.model.spec", "import pyspark"),
        ("gpujoin.model.spec", "from gpujoin.engine import hashjoin"),
        ("gpujoin.plan.resolve", "from gpujoin.backends.cpu.backend import CpuBackend"),
        ("gpujoin.engine.join.hash_join", "def f():\n    from gpujoin.backends.cpu import backend"),
        ("gpujoin.engine.join.hash_join", "from gpujoin import spark"),
        ("gpujoin.functions.text", "from gpujoin.backends.cpu import bits"),
        ("gpujoin.backends.cpu.backend", "from gpujoin.engine.keys import KeyCodec"),
        ("gpujoin.backends.cpu.backend", "import pyspark.sql"),
        ("gpujoin.launch.source", "import pylibcudf"),
        ("gpujoin.streams.worker", "from gpujoin.report.metrics import metrics"),
        ("gpujoin.streams.state", "from gpujoin.backends.cpu import backend"),
        ("gpujoin.spark.query.footers", "from gpujoin.backends.parquet.footers import read_footer"),
        ("gpujoin.cli.checks.gpu", "from gpujoin.backends.cudf.backend import CudfBackend"),
        ("gpujoin.spark.worker.task", "from gpujoin.report.metrics import metrics"),
        ("gpujoin.spark.worker.stage", "from gpujoin.spark.query.runs import IslandRun"),
        ("gpujoin.config", "import pyarrow"),
        ("gpujoin.errors", "import numpy as np"),
        ("gpujoin.testing", "from gpujoin.functions.evaluate import evaluate"),
    ],
)
def test_the_fence_holds(module: str, statement: str) -> None:
    assert any(forbidden(module, name) for _, name in imports(statement))


CIRCLES: tuple[tuple[str, set[str]], ...] = (
    ("gpujoin.model", {"expressions", "sqltext"}),
    ("gpujoin.spark.catalyst", {"nodes", "words"}),
)  # fmt: skip
"""Files that import one another, for types or within functions too, by their room: none is to be added."""


def imported_files(module: str) -> set[str]:
    """Give the files of the package that one imports, at any depth of any function, and for types alone."""
    names = modules()
    named = {name for _, name in imports_of(module)}
    return {name if name in names else name.rpartition(".")[0] for name in named} & set(names) - {module}


def circles(imported: dict[str, set[str]]) -> set[frozenset[str]]:
    """Give the largest sets of files of which each can be reached from each."""
    reached: dict[str, set[str]] = {}
    for start in imported:
        reached[start], ahead = set(), [start]
        while ahead:
            following = imported[ahead.pop()] - reached[start]
            reached[start] |= following
            ahead += following
    sets = {frozenset(other for other in reached[name] if name in reached[other]) for name in imported}
    return {files for files in sets if files}


def test_circles_are_found_whatever_leads_into_them() -> None:
    imported = {"a": {"b"}, "b": {"c", "e"}, "c": {"b", "d"}, "d": set[str](), "e": {"f"}, "f": {"g"}, "g": {"e"}}
    assert circles(imported) == {frozenset("bc"), frozenset("efg")}


def test_no_file_imports_one_that_imports_it_but_for_those_that_always_did() -> None:
    known = {frozenset(f"{room}.{name}" for name in names) for room, names in CIRCLES}
    assert circles({module: imported_files(module) for module in modules()}) == known


def test_every_room_of_the_table_exists() -> None:
    names = modules()
    assert set(ROOMS) <= set(names)


JOINING = """
import pyarrow as pa
from gpujoin import join_tables
table = pa.table({"k": [1]})
join_tables(table, table, on="k", backend="cpu")
"""


LOADING = {
    "import gpujoin": HEAVY | {"numpy", "pyarrow"},
    "from gpujoin import Explanation, QueryReport": HEAVY | {"numpy", "pyarrow"},
    "import gpujoin.backends.cudf": HEAVY | {"numpy", "pyarrow"},
    "import gpujoin.testing": HEAVY,
    "import gpujoin.plan.resolve": HEAVY,
    "import gpujoin.engine": HEAVY,
    "import gpujoin.backends.cpu": HEAVY,
    "from gpujoin import join_tables, gather_maps, HashJoin": HEAVY,
    "import gpujoin.streams.symmetric": HEAVY,
    JOINING: HEAVY - {"polars"},
}
"""Statements, and what is not loaded after them and those before."""


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """Top-level modules in ``sys.modules`` of one fresh interpreter after each statement."""
    tell = "print(*{name.split('.')[0] for name in sys.modules})"
    program = "\n".join(["import sys", *(f"{statement}\n{tell}" for statement in LOADING)])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    return {statement: set(line.split()) for statement, line in zip(LOADING, done.stdout.splitlines(), strict=True)}


@pytest.mark.parametrize("statement", LOADING)
def test_nothing_heavy_is_loaded_before_it_is_needed(loaded: dict[str, set[str]], statement: str) -> None:
    assert "gpujoin" in loaded[statement]
    assert not loaded[statement] & LOADING[statement]


def test_windows_is_refused_in_words() -> None:
    program = "import sys; sys.platform = 'win32'; import gpujoin"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=PACKAGE.parent, check=False
    )
    assert done.stderr.splitlines()[-1].startswith("ImportError: gpujoin runs on Linux; ")


def test_public_names_exist_and_are_documented() -> None:
    import gpujoin

    for name in gpujoin.__all__:
        value = getattr(gpujoin, name)
        assert name == "__version__" or value.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'gpu_jion'"):
        gpujoin.gpu_jion  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'gpu_joins'\. Did you mean 'gpu_join'"):
        gpujoin.gpu_joins  # noqa: B018
    assert dir(gpujoin) == sorted(gpujoin.__all__)
