"""Lists all modules that the launchers may compile, so that sources can be checked without a GPU."""

from __future__ import annotations

from importlib import import_module

from gpujoin.launch.device import ModuleSpec

LAUNCHERS: tuple[str, ...] = (
    "gpujoin.launch.candidates",
    "gpujoin.launch.csr",
    "gpujoin.launch.direct",
    "gpujoin.launch.expand",
    "gpujoin.launch.facts",
    "gpujoin.launch.machine",
    "gpujoin.launch.nearest",
    "gpujoin.launch.normalise",
    "gpujoin.launch.partition",
    "gpujoin.launch.ranges",
    "gpujoin.launch.residual",
    "gpujoin.launch.rows",
    "gpujoin.launch.unique",
    "gpujoin.launch.wavelet",
)
"""Names of the launcher modules, each with a constant ``SPECIALISATIONS``, a tuple of :class:`ModuleSpec`."""


def specialisations() -> tuple[ModuleSpec, ...]:
    """All distinct specialisations of all launchers, in a stable order."""
    modules: dict[ModuleSpec, None] = {}
    for launcher in LAUNCHERS:
        modules.update(dict.fromkeys(import_module(launcher).SPECIALISATIONS))
    return tuple(modules)
