"""The tutorial is a notebook without outputs, and gives what its text says when it is run."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.ipynb"


def texts() -> str:
    cells = json.loads(PAGE.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def number(pattern: str) -> int:
    """A number of the text."""
    match = re.search(pattern, re.sub(r"\s+", " ", texts()))
    assert match is not None, pattern
    return int(match[1].replace(",", ""))


def test_the_notebook_has_no_outputs() -> None:
    cells = json.loads(PAGE.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert all(re.fullmatch(r"[a-z]+", cell["id"]) for cell in cells)


@pytest.mark.slow
@pytest.mark.spark
def test_the_notebook_gives_what_its_text_says(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="no nbclient, which the extra test brings")
    nbclient = pytest.importorskip("nbclient", reason="no nbclient, which the extra test brings")
    manager = pytest.importorskip("jupyter_client.manager", reason="no nbclient, which the extra test brings")
    kernels = tmp_path / "kernels" / "python3"
    kernels.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel = {"argv": command, "display_name": "Python 3", "language": "python"}
    (kernels / "kernel.json").write_text(json.dumps(kernel))
    notebook = nbformat.read(PAGE, as_version=4)
    environment = {**os.environ, "PYTHONPATH": str(PAGE.parents[1]), "PYSPARK_PYTHON": sys.executable}
    specs = manager.KernelManager(kernel_name="python3")
    specs.kernel_spec_manager.kernel_dirs = [str(tmp_path / "kernels")]
    client = nbclient.NotebookClient(notebook, km=specs, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=environment)
    shown = {cell.id: "".join(map(shown_by, cell.outputs)) for cell in notebook.cells if cell.cell_type == "code"}
    rows = ast.literal_eval(shown["report"])
    assert [row[0] for row in rows] == [f"segment {i}" for i in range(4)]
    assert sum(row[1] for row in rows) == number(r"([\d,]+) orders are counted")
    assert shown["compared"] == "True"
    assert int(shown["asofjoin"]) == number(r"1,000 visits ([\d,]+) have")
    assert "island" in shown["explained"]
    assert "inner join" in shown["explained"]
    assert "Python UDF" in shown["udf"]


def shown_by(output: Any) -> str:
    """What an output of a cell shows, without what goes to standard error."""
    if output.output_type == "stream":
        return str(output.text) if output.name == "stdout" else ""
    return str(output.data["text/plain"])
