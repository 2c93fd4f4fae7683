"""What is logged names its sender."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import gpujoin

PACKAGE = Path(gpujoin.__file__).parent


def test_a_program_without_logging_sees_who_warns() -> None:
    code = "from gpujoin.logs import log; log.warning('%s of the query is left to Spark', 'a part')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "gpujoin: a part of the query is left to Spark\n"


def test_all_messages_go_that_way() -> None:
    """Only what py4j logs of others' secrets is looked at elsewhere, and one line goes to Spark's own log."""
    others = {
        path.name
        for path in PACKAGE.rglob("*.py")
        if re.search(r"(?<!LoggerFactory\.)getLogger\((?!f?\"py4j)", path.read_text()) and path != PACKAGE / "logs.py"
    }
    assert not others
