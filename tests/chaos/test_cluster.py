"""Workers and executors of a standalone cluster killed and stopped at random moments under queries and writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.outcomes import Outcomes
from tests.chaos.processes import Role, all_gone, with_role
from tests.spark.standalone import Cluster, objects

pytestmark = pytest.mark.spark

ROUNDS = 36


def test_killed_and_stopped_processes(tmp_path: Path, seed: int, outcomes: Outcomes) -> None:
    with Cluster(tmp_path) as cluster:
        printed = cluster.run(
            "-m", "tests.chaos.clusterprogram", cluster.master, str(tmp_path / "tables"), str(seed), str(ROUNDS),
            *map(str, cluster.workers),
        )  # fmt: skip
        for line in (line for line in objects(printed) if "round" in line and line["victim"]):
            outcomes.tried += 1
            context = f"seed {seed}: {line}"
            if "error" not in line:
                outcomes.note(line["wrong"], line["lost"], context)
            elif line["clear"]:
                outcomes.refused += 1
            else:
                outcomes.problems.append(context)
        assert outcomes.tried > ROUNDS // 2, "most faults came too late"
        left = all_gone(with_role(cluster.workers, Role.WORKER) + with_role(cluster.workers, Role.EXECUTOR), 120)
        assert not left, f"processes left on the cluster: {left}"
        spilled = [path for local in cluster.local_dirs() for path in local.rglob("gpujoin*")]
        assert not spilled, f"files left: {spilled[:5]}"
