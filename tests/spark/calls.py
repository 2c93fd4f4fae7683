"""Counting calls to the JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j import clientserver

_RELEASE = "m\n"
"""How commands begin that release objects; they come when Python's collector does."""


@contextmanager
def count_jvm_calls() -> Iterator[list[str]]:
    """Note the commands that go to the JVM meanwhile, releases of objects aside."""
    commands: list[str] = []
    original = clientserver.JavaClient.send_command

    def send_command(self: Any, command: str, *arguments: Any, **named: Any) -> Any:
        if not command.startswith(_RELEASE):
            commands.append(command)
        return original(self, command, *arguments, **named)

    clientserver.JavaClient.send_command = send_command
    try:
        yield commands
    finally:
        clientserver.JavaClient.send_command = original
