"""``spark.gpujoin.enabled=true`` in Spark's configuration, and not a line of code: what `startup/` does."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from tests.packaging.conftest import copied
from tests.packaging.test_extras import variables
from tests.packaging.test_installs import ROOT, pip_install, run
from tests.spark.standalone import Cluster

SPARK_HOME = Path(pyspark.__file__).parent


@pytest.fixture
def editable(pristine_editable: Path, tmp_path: Path) -> Path:
    """The Python of a new environment in which this checkout is installed editable."""
    return copied(pristine_editable, tmp_path / "editable")


@pytest.fixture
def installed(environment: Path, distributions: tuple[Path, Path]) -> Path:
    """The Python of an environment in which the wheel is installed."""
    pip_install(environment, distributions[1])
    return environment


def site_packages(python: Path) -> Path:
    return Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())


# -- the start of Python -------------------------------------------------------------------------------------------


def modules_after_start(python: Path, *options: str) -> set[str]:
    return set(run(python, *options, "-c", "import sys; print(*sys.modules)", env=variables()).split())


@pytest.mark.program
@pytest.mark.parametrize("install", ["editable", "installed"])
def test_a_start_of_python_loads_one_module_that_imports_nothing(
    environment: Path, install: str, request: pytest.FixtureRequest
) -> None:
    before = {options: modules_after_start(environment, *options) for options in [(), ("-I",), ("-S",)]}
    python: Path = request.getfixturevalue(install)
    assert modules_after_start(python) - before[()] == {"_gpujoin_startup"}
    assert modules_after_start(python, "-I") - before["-I",] == {"_gpujoin_startup"}
    assert modules_after_start(python, "-S") == before["-S",]


@pytest.mark.program
def test_a_start_of_python_survives_half_an_uninstallation(editable: Path) -> None:
    (site_packages(editable) / "_gpujoin_startup.py").write_text("raise RuntimeError('broken')")
    for remaining in (True, False):
        if not remaining:
            (site_packages(editable) / "_gpujoin_startup.py").unlink()
        done = subprocess.run([editable, "-c", "print(1)"], capture_output=True, text=True, env=variables())
        assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


@pytest.mark.program
def test_an_uninstallation_leaves_nothing(editable: Path) -> None:
    before = modules_after_start(editable)
    assert "_gpujoin_startup" in before
    run(sys.executable, "-m", "pip", "--python", editable, "uninstall", "-q", "-y", "gpujoin")
    assert before - modules_after_start(editable) == {"_gpujoin_startup"}
    assert not list(site_packages(editable).glob("*gpujoin*"))


# -- the import of PySpark -----------------------------------------------------------------------------------------

IMPORTED = """
import importlib.machinery, inspect, sys
from pyspark.sql import SparkSession, session
assert session.__spec__.loader is session.__loader__
assert type(session.__loader__).__module__ != "_gpujoin_startup", session.__loader__
assert "class SparkSession" in inspect.getsource(session)
initialize = SparkSession.__init__
assert initialize.__code__.co_filename.endswith("_gpujoin_startup.py"), initialize
assert not initialize.__wrapped__.__code__.co_filename.endswith("_gpujoin_startup.py")
assert list(inspect.signature(initialize).parameters) == ["self", "sparkContext", "jsparkSession", "options"]
assert "gpujoin" not in sys.modules
"""
ANOTHER_FINDER = """
import importlib.util, sys
class Finder:
    '''Asks all finders, as those of tracers do.'''
    asks = False
    def find_spec(self, name, path=None, target=None):
        if self.asks or name != "pyspark.sql.session":
            return None
        self.asks = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.asks = False
class OldFinder:
    '''As before Python 3.4.'''
    def find_module(self, name, path=None):
        return None
sys.meta_path.insert(PLACE, Finder())
sys.meta_path.insert(PLACE, OldFinder())
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(IMPORTED, id="alone"),
        pytest.param(ANOTHER_FINDER.replace("PLACE", "0") + IMPORTED, id="another-finder-before"),
        pytest.param(ANOTHER_FINDER.replace("PLACE", "1") + IMPORTED, id="another-finder-behind"),
        pytest.param("import importlib.util; importlib.util.find_spec('pyspark.sql.session')" + IMPORTED, id="asked"),
    ],
)
def test_sessions_are_wrapped_when_pyspark_is_imported(pristine_editable: Path, program: str) -> None:
    run(pristine_editable, "-W", "ignore", "-c", program, env=variables())


@pytest.mark.program
def test_sessions_are_wrapped_in_an_archive(editable: Path, tmp_path: Path) -> None:
    """Clusters have PySpark as ``$SPARK_HOME/python/lib/pyspark.zip``."""
    with zipfile.ZipFile(tmp_path / "pyspark.zip", "w") as archive:
        for path in SPARK_HOME.rglob("*"):
            if path.suffix in (".py", ".json") and "jars" not in path.parts:
                archive.write(path, Path("pyspark") / path.relative_to(SPARK_HOME))
    assert "pyspark.zip" in run(
        editable, "-c", IMPORTED + "print(session.__file__)",
        env=variables() | {"PYTHONPATH": str(tmp_path / "pyspark.zip")},
    )  # fmt: skip


# -- sessions ------------------------------------------------------------------------------------------------------

BUILDER = """
import sys, threading
from pyspark.sql import SparkSession, functions as sf

def builder(**settings):
    made = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    )
    for name, value in settings.items():
        made = made.config("spark.gpujoin." + name, value)
    return made
"""
CONFIGURED = """
started = []
start = threading.Thread.start
threading.Thread.start = lambda thread: (started.append(thread.name), start(thread))[1]
spark = builder(enabled=True, backend="cpu", strategy="broadcast").getOrCreate()
threading.Thread.start = start
assert started.count("gpujoin-load") == 1, started
import gpujoin
from gpujoin.spark.query.hooks import is_enabled
assert is_enabled(spark)
spark.range(9).write.parquet("table")
table = spark.read.parquet("table")
assert table.join(table.withColumnRenamed("id", "other"), table.id == sf.col("other")).count() == 9
assert is_enabled(spark.newSession())
if spark.version >= "4.2":
    assert is_enabled(builder(enabled=True).create())
    assert is_enabled(SparkSession.builder.create())
    assert not is_enabled(builder(enabled=False).create())
gpujoin.disable(spark)
for again in (spark.newSession(), SparkSession.getActiveSession(), builder(enabled=True).getOrCreate()):
    assert not is_enabled(again)
for name in ("enabled", "backend", "strategy"):  # Spark has made them properties of the JVM
    spark._jvm.java.lang.System.clearProperty("spark.gpujoin." + name)
server = spark.sparkContext._accumulatorServer
spark.stop()
assert server.server_shutdown
"""
REFUSED = """
from pyspark import SparkContext
for settings in ({"enabled": "yes"}, {"enabled": True, "bakcend": "cpu"}):
    for attempt in range(2):
        try:
            builder(**settings).getOrCreate()
        except Exception as problem:
            assert type(problem).__name__ == "ConfigurationError", problem
        else:
            raise AssertionError(settings)
    SparkContext._active_spark_context.stop()
assert builder(enabled="false", backend="abacus").getOrCreate().range(3).count() == 3
SparkContext._active_spark_context.stop()
"""
NOT_ASKED_FOR = """
for module in [name for name in sys.modules if name.partition(".")[0] == "gpujoin"]:
    del sys.modules[module]
for settings in ({"backend": "cpu"}, {"enabled": " False "}):
    spark = builder(**settings).getOrCreate()
    assert "gpujoin" not in sys.modules, settings
    spark.stop()
"""
GONE = """
sys.path.remove(CHECKOUT)
print(builder(enabled=True).getOrCreate().range(3).count())
"""


@pytest.mark.program
@pytest.mark.spark
def test_sessions_are_what_their_configuration_says(editable: Path, tmp_path: Path) -> None:
    """One program has all sessions: enabled with the first context, refused, not asked for, and without gpujoin.

    The first context, whose tasks send records by an accumulator, and the program end without an error in the log.
    """
    program = BUILDER + CONFIGURED + REFUSED + NOT_ASKED_FOR + GONE.replace("CHECKOUT", repr(str(ROOT)))
    done = subprocess.run(
        [editable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=variables(), check=False
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert (
        "spark.gpujoin.enabled is set, but gpujoin cannot be imported, so queries run as Spark's: No module named "
        "'gpujoin'\n"
    ) in done.stderr
    assert "Traceback" not in done.stderr, done.stderr


# -- programs ------------------------------------------------------------------------------------------------------


@dataclass
class Workplace:
    """A folder with tables and a program that does not know gpujoin, and ways to run it."""

    folder: Path
    python: Path

    def __post_init__(self) -> None:
        rows = range(1000)
        pq.write_table(pa.table({"k": rows, "v": [k % 7 for k in rows]}), self.folder / "left")
        pq.write_table(pa.table({"k": rows[500:], "w": [k % 3 for k in rows[500:]]}), self.folder / "right")
        (self.folder / "app.py").write_text(PROGRAM)

    def run(self, *command: object, settings: Mapping[str, str], stdin: str | None = None, **more: str) -> str:
        """What a command prints where ``spark-defaults.conf`` has the settings."""
        conf = self.folder / "conf"
        conf.mkdir()
        lines = [f"{name} {value}\n" for name, value in {**QUIET, **settings}.items()]
        (conf / "spark-defaults.conf").write_text("".join(lines))
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, cwd=self.folder, input=stdin,
            env={**variables(), "SPARK_CONF_DIR": str(conf), "SPARK_HOME": str(SPARK_HOME), **more},
            timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "gpujoin" not in done.stderr, done.stderr
        return done.stdout

    def spark_submit(self, *options: str, settings: Mapping[str, str]) -> str:
        """What the program prints."""
        command = [SPARK_HOME / "bin" / "spark-submit", *options, "app.py"]
        return self.run(*command, settings=settings, PYSPARK_PYTHON=str(self.python))


QUIET = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
}
ENABLED = {"spark.gpujoin.enabled": "true", "spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "raise"}
PROGRAM = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
frame = spark.read.parquet("left").join(spark.read.parquet("right"), "k").groupBy("v").sum("w").orderBy("v")
frame.explain()
print("rows", [tuple(row) for row in frame.collect()])
print("imported", "gpujoin" in sys.modules)
print("imported by a worker", *spark.sparkContext.range(1).map(lambda _: "gpujoin" in sys.modules).collect())
"""
SUMS = [(v, sum(k % 3 for k in range(500, 1000) if k % 7 == v)) for v in range(7)]


def assert_ran_here(told: str) -> None:
    assert f"rows {SUMS}\n" in told
    assert "imported True\n" in told
    assert "gpujoin_" in told[: told.index("rows ")], told


def assert_ran_as_sparks(told: str) -> None:
    assert f"rows {SUMS}\n" in told
    assert "imported False\n" in told
    assert "imported by a worker False\n" in told
    assert "gpujoin_" not in told


@pytest.fixture
def workplace(installed: Path, tmp_path: Path) -> Workplace:
    """Where the wheel is installed, in an environment that is not activated."""
    (tmp_path / "work").mkdir()
    return Workplace(tmp_path / "work", installed)


@pytest.mark.spark
@pytest.mark.slow
class TestPrograms:
    """Nothing changes from run to run but ``spark-defaults.conf``, or the command line of Spark."""

    def test_spark_submit(self, workplace: Workplace) -> None:
        assert_ran_here(workplace.spark_submit(settings=ENABLED))

    @pytest.mark.parametrize(
        "settings",
        [
            pytest.param({}, id="unset"),
            pytest.param({**ENABLED, "spark.gpujoin.enabled": "false"}, id="false"),
        ],
    )
    def test_spark_submit_where_it_is_not_asked_for(self, workplace: Workplace, settings: dict[str, str]) -> None:
        assert_ran_as_sparks(workplace.spark_submit(settings=settings))

    def test_spark_submit_with_options(self, workplace: Workplace) -> None:
        """A file of properties takes the place of ``spark-defaults.conf``, and options count with either."""
        (workplace.folder / "own.conf").write_text("spark.gpujoin.backend cpu\nspark.log.level ERROR\n")
        options = ["--properties-file", "own.conf", "--conf", "spark.gpujoin.enabled=true"]
        assert_ran_here(workplace.spark_submit(*options, settings={}))

    def test_plain_python(self, workplace: Workplace) -> None:
        """Workers run the program's Python, though the environment is not activated."""
        assert_ran_here(workplace.run(workplace.python, "app.py", settings=ENABLED))

    def test_the_builder_of_the_program(self, workplace: Workplace) -> None:
        options = "".join(f".config({name!r}, {value!r})" for name, value in ENABLED.items())
        (workplace.folder / "app.py").write_text(PROGRAM.replace(".builder", ".builder" + options))
        assert_ran_here(workplace.run(workplace.python, "app.py", settings={}))

    def test_the_shell(self, workplace: Workplace) -> None:
        told = workplace.run(
            SPARK_HOME / "bin" / "pyspark", settings=ENABLED, stdin=PROGRAM, PYSPARK_PYTHON=str(workplace.python),
            PYSPARK_DRIVER_PYTHON_OPTS="-i",
        )  # fmt: skip
        assert "SparkSession available as 'spark'" in told
        assert_ran_here(told)

    def test_a_spark_connect_server_in_the_program(self, workplace: Workplace) -> None:
        program, _, _ = PROGRAM.replace(".builder", ".builder.remote('local[2]')").rpartition("print(")
        (workplace.folder / "app.py").write_text(program + "print('imported by a worker', False)")
        told = workplace.run(workplace.python, "app.py", settings=ENABLED, PYSPARK_PYTHON=str(workplace.python))
        assert_ran_here(told)

    def test_a_standalone_cluster(self, workplace: Workplace, cluster: Cluster) -> None:
        settings = {**ENABLED, "spark.master": cluster.master, "spark.executor.memory": "700m"}
        assert_ran_here(workplace.spark_submit(settings=settings))


class ForeignCluster(Cluster):
    """A cluster whose machines have no gpujoin but in the Python that the driver names."""

    @property
    def environment(self) -> dict[str, str]:
        kept = {"SPARK_HOME", "SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP", "SPARK_LOG_DIR"}
        return variables() | {name: value for name, value in super().environment.items() if name in kept}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = ForeignCluster(tmp_path / "cluster")
    made.base.mkdir()
    with made:
        yield made
