"""gpu_join over Spark Connect, against a server of its own in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.brief import brief, each_once

pytest.importorskip("grpc", reason="no Spark Connect client: pip install gpujoin[connect]")

pytestmark = pytest.mark.spark


# The types of join are those of test_frames, which has the same DataFrames in a classic session.
JOINS = each_once(
    ("inner", "cross", "left", "right", "full", "left_semi", "left_anti"), ("shuffle", "broadcast"),
    extra=("cross", "left", "right", "full", "left_semi"),
)  # fmt: skip
AS_OF = brief(("shuffle", "broadcast"), "broadcast")


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program beside this file found; a classic session and a Connect one do not share a process."""
    root = Path(__file__).parents[2]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # The server takes a free port, so that test runs of one machine do not meet.
        "SPARK_TESTING": "1",
    }
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("connect_program.py")), *_asked(request.session.items)],
        capture_output=True, text=True, timeout=1200, env=environment, cwd=tmp_path_factory.mktemp("connect"),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


def _asked(items: list[pytest.Item]) -> list[str]:
    """Names of the joins of this run; of all, if it asks for none."""
    ids = {item.name.partition("[")[2].rstrip("]") for item in items if item.path == Path(__file__)}
    names = {case.id: " ".join(map(str, case.values)) for case in JOINS}
    names |= {str(case.values[0]): f"as-of {case.values[0]}" for case in AS_OF}
    return [name for case, name in names.items() if case in ids] or list(names.values())


@pytest.mark.parametrize(("how", "strategy"), JOINS)
def test_equals_sparks_join(found: dict[str, Any], how: str, strategy: str) -> None:
    if how == "full" and strategy == "broadcast":
        pytest.skip("no side of a full outer join may be broadcast")
    result = found["joins"][f"{how} {strategy}"]
    assert result["error"] is None
    assert result["strategy"] == [strategy]


def test_rows_were_compared(found: dict[str, Any]) -> None:
    assert sum(result["rows"] for result in found["joins"].values()) > 5


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("condition", "column names"),
        ("product", "column names"),
        ("types", "types differ"),
    ],
)
def test_refused(found: dict[str, Any], case: str, why: str) -> None:
    assert why in found["refused"][case]
    assert found["reasons"][case]


def test_what_is_predicted_to_be_slower_is_no_error(found: dict[str, Any]) -> None:
    assert found["refused"]["auto"] == "not refused"
    assert "sizes are unknown" in found["reasons"]["auto"][0]


def test_sparks_own_errors(found: dict[str, Any]) -> None:
    assert found["unknown column"] == "UNRESOLVED_USING_COLUMN_FOR_JOIN"


def test_explain_of_a_tree(found: dict[str, Any]) -> None:
    assert found["tree"] == [["inner", "spark"], ["inner", "shuffle"], ["full", "shuffle"]]


def test_nothing_runs_when_a_join_is_made(found: dict[str, Any]) -> None:
    assert found["lazy"] == ["K", "s", "d", "payload", "rid"]


def test_reports_of_runs_are_refused(found: dict[str, Any]) -> None:
    assert set(found["refused reports"]) == {"metrics", "profile"}
    assert all("classic session" in message for message in found["refused reports"].values())


def test_whole_queries_stay_as_they_are(found: dict[str, Any]) -> None:
    assert found["unchanged"]
    assert found["plain join"] == [["left", "spark"]]


def test_frames_are_joined_in_the_client(found: dict[str, Any]) -> None:
    assert found["in the client"] == 4


def test_switched_off(found: dict[str, Any]) -> None:
    assert found["off"] == ["spark"]


@pytest.mark.parametrize("strategy", AS_OF)
def test_an_as_of_join(found: dict[str, Any], strategy: str) -> None:
    assert found["as-of"][strategy] == [
        ["trade", "s", "t", "quote"],
        [[2, None], [3, 30], [4, None]],
        [strategy],
    ]
