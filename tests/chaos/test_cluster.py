"""Workers and executors of a standalone cluster killed and stopped at random moments under queries and writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.outcomes import Outcomes
from tests.chaos.processes import Role, all_gone, below, with_role
from tests.spark.standalone import Cluster

pytestmark = pytest.mark.spark

ROUNDS = 36


def test_killed_and_stopped_processes(tmp_path: Path, seed: int, outcomes: Outcomes) -> None:
    cluster = Cluster(tmp_path)
    # The master gives an application up after ten executors that ended in a row; here they are killed on purpose.
    os.environ["SPARK_DAEMON_JAVA_OPTS"] = "-Dspark.deploy.maxExecutorRetries=-1"
    try:
        cluster.start()
    finally:
        del os.environ["SPARK_DAEMON_JAVA_OPTS"]
    roots = [process.pid for process in cluster.processes[1:]]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.chaos.clusterprogram", cluster.master, str(tmp_path / "tables"), str(seed),
             str(ROUNDS), *map(str, roots)],
            cwd=Path(__file__).parents[2], env=cluster.environment, capture_output=True, text=True, timeout=1500,
            check=False,
        )  # fmt: skip
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert done.returncode == 0, f"seed {seed}: {lines[-1:]}{done.stderr[-3000:]}"
        for line in (line for line in lines if "round" in line and line["victim"]):
            outcomes.tried += 1
            context = f"seed {seed}: {line}"
            if "error" not in line:
                outcomes.note(line["wrong"], line["lost"], context)
            elif line["clear"]:
                outcomes.refused += 1
            else:
                outcomes.problems.append(context)
        assert outcomes.tried > ROUNDS // 2, "most faults came too late"
        time.sleep(2)
        left = all_gone(with_role(roots, Role.WORKER) + with_role(roots, Role.EXECUTOR), 30)
        assert not left, f"processes left on the cluster: {left}"
        spilled = [path for local in cluster.local_dirs() for path in local.rglob("gpujoin*")]
        assert not spilled, f"files left: {spilled[:5]}"
    finally:
        started = below([process.pid for process in cluster.processes])
        cluster.stop()
        for process in all_gone(started, 20):
            process.send(9)  # type: ignore[arg-type]
