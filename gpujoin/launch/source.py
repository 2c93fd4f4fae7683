"""Finds CUDA sources and pastes the text of their local headers into them.

CuPy's compile cache is keyed by the source and the options, not by the text of included headers, so a kernel
whose header was edited could run stale. A source with its headers pasted in cannot.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from gpujoin.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_LOCAL_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"(?P<name>[^"\n]+)"')
_PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b")


def kernel_directory() -> Traversable:
    """Find the folder of CUDA sources: inside the package, else beside it in a checkout.

    A wheel, and an archive on ``sys.path``, hold it as ``gpujoin/_kernels``; a checkout, editable installs included,
    as ``kernels/`` next to the package. Raises ``ConfigurationError`` if there is neither: the installation is
    incomplete.
    """
    package = files("gpujoin")
    packaged = package / "_kernels"
    if packaged.is_dir():
        return packaged
    sibling = Path(str(package)).parent / "kernels"
    if sibling.is_dir():
        return sibling
    raise ConfigurationError(
        f"The CUDA sources of gpujoin are missing: neither {packaged} nor {sibling} is a folder. "
        "Reinstall gpujoin from its wheel, or keep kernels/ beside gpujoin/ in a checkout."
    )


def kernel_source(name: str) -> str:
    """Read a CUDA source file, by its path below the kernel folder, with every local header pasted in.

    Headers marked ``#pragma once`` are pasted once, others at each include. ``#line`` directives keep the compiler's
    messages pointing at the original files. Raises ``ConfigurationError`` if the file or one of its headers does not
    exist or lies outside the folder, or if a header includes itself.
    """
    return "".join(_expand(PurePosixPath(name), kernel_directory(), stack=(), pasted=set()))


def _expand(
    path: PurePosixPath, root: Traversable, *, stack: tuple[PurePosixPath, ...], pasted: set[PurePosixPath]
) -> list[str]:
    lines = _source_text(path, root, stack).removesuffix("\n").split("\n")
    if any(map(_PRAGMA_ONCE.match, lines)):
        if path in pasted:
            return []
        pasted.add(path)
    out = [f'#line 1 "{path}"\n']
    for number, line in enumerate(lines, start=1):
        include = _LOCAL_INCLUDE.match(line)
        if include:
            header = _resolve(include["name"], path, root)
            if header in (*stack, path):
                chain = " -> ".join(map(str, (*stack, path, header)))
                raise ConfigurationError(f"CUDA header includes itself: {chain}. Break the circle.")
            out += _expand(header, root, stack=(*stack, path), pasted=pasted)
            out.append(f'#line {number + 1} "{path}"\n')
        else:
            out.append("\n" if _PRAGMA_ONCE.match(line) else line + "\n")
    return out


def _resolve(name: str, includer: PurePosixPath, root: Traversable) -> PurePosixPath:
    beside = _normalise(includer.parent / name)
    return beside if root.joinpath(*beside.parts).is_file() else _normalise(PurePosixPath(name))


def _normalise(path: PurePosixPath) -> PurePosixPath:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)


def _source_text(path: PurePosixPath, root: Traversable, stack: tuple[PurePosixPath, ...]) -> str:
    included = f", included from {stack[-1]}," if stack else ""
    if path.is_absolute() or ".." in path.parts:
        raise ConfigurationError(
            f"CUDA source {str(path)!r}{included} lies outside the kernel folder {root}. Use a path below it."
        )
    file = root.joinpath(*path.parts)
    if not file.is_file():
        names = [entry.name for entry in root.iterdir() if entry.name.endswith((".cu", ".cuh"))]
        raise ConfigurationError(
            f"CUDA source {str(path)!r}{included} is not in the kernel folder {root}.{did_you_mean(str(path), names)}"
        )
    return file.read_text(encoding="utf-8")
