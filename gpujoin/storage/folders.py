"""Folders for compiled files, which only this user can change."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_ROOT = 0
"""The number of the user, and of the group, that may change anything."""


def user_cache(variable: str, name: str = "") -> Path:
    """Give the folder of a user's cache: that of an environment variable, else one in ``gpujoin``.

    That is in ``$XDG_CACHE_HOME``, else in ``~/.cache``. Raises ``RuntimeError`` if no variable is set and the user has
    no home.
    """
    configured = os.environ.get(variable)
    if configured:
        return Path(configured)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpujoin" / name


def tampering_risk(directory: Path) -> str | None:
    """Describe how other users could change the files of a folder; ``None`` if they cannot.

    Code and locks are read from folders whose names can be guessed. Whoever owns such a folder, may write to it, or
    can put a link or another folder in its place decides what is in it.
    """
    facts = directory.lstat()
    mode = stat.S_IMODE(facts.st_mode)
    if stat.S_ISLNK(facts.st_mode):
        return "it is a link"
    if not stat.S_ISDIR(facts.st_mode):
        return "it is no folder"
    if facts.st_uid != os.geteuid():
        return f"it belongs to user {facts.st_uid}"
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users may write to it (mode {mode:03o}; chmod go-w mends that, empty it first)"
    parents = (*directory.absolute().parents, *directory.resolve().parents)
    return next(filter(None, map(_renaming_risk, dict.fromkeys(parents))), None)


def _renaming_risk(parent: Path) -> str | None:
    """Describe how other users could put another folder in the place of one below ``parent``; ``None`` if they cannot.

    In a sticky folder only the owner renames what is in it. The group of the user may write: often it is theirs alone.
    """
    facts = parent.stat()
    mode = stat.S_IMODE(facts.st_mode)
    if facts.st_uid not in (_ROOT, os.geteuid()):
        return f"{parent} belongs to user {facts.st_uid}"
    groups = mode & stat.S_IWGRP and facts.st_gid not in (_ROOT, os.getegid())
    if (groups or mode & stat.S_IWOTH) and not mode & stat.S_ISVTX:
        return f"other users may write to {parent} (mode {mode:03o})"
    return None
