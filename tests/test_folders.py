"""Whether other users can change what is in a folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpujoin.storage.folders import tampering_risk

OTHER = 12345
"""The number of a user and of a group that are not the test's."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that only its owner may change, in another one."""
    folder = tmp_path / "above" / "kept"
    folder.mkdir(mode=0o700, parents=True)
    return folder


def test_a_folder_of_the_user_in_one_of_the_user_is_safe(folder: Path) -> None:
    assert tampering_risk(folder) is None
    folder.parent.chmod(0o770)
    assert tampering_risk(folder) is None, "the group is the user's own"


@pytest.mark.parametrize("above", ["parent", "grandparent"])
def test_a_folder_that_others_may_rename_is_not_safe(folder: Path, above: str) -> None:
    parent = folder.parent if above == "parent" else folder.parent.parent
    parent.chmod(0o777)
    assert tampering_risk(folder) == f"other users may write to {parent} (mode 777)"
    parent.chmod(0o777 | stat.S_ISVTX)
    assert tampering_risk(folder) is None, "as in /tmp, only the owner renames it"


def test_a_folder_behind_a_link_is_as_safe_as_the_place_of_the_link(folder: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "link").symlink_to(folder.parent)
    assert tampering_risk(shared / "link" / "kept") is None
    shared.chmod(0o777)
    assert tampering_risk(shared / "link" / "kept") == f"other users may write to {shared} (mode 777)"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_in_one_of_another_user_is_not_safe(folder: Path) -> None:
    os.chown(folder.parent, OTHER, 0)
    assert tampering_risk(folder) == f"{folder.parent} belongs to user {OTHER}"
    os.chown(folder.parent, 0, OTHER)
    assert tampering_risk(folder) is None
    folder.parent.chmod(0o770)
    assert tampering_risk(folder) == f"other users may write to {folder.parent} (mode 770)"
