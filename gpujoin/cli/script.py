"""``python -m gpujoin app.py args…``: an unchanged PySpark program whose sessions are enabled."""

from __future__ import annotations

import builtins
import io
import sys
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, cast

from gpujoin.errors import BackendUnavailableError, pip_install


def is_script(argument: str) -> bool:
    """Tell whether a first argument names a program and not a subcommand."""
    return not argument.startswith("-") and (argument.endswith(".py") or Path(argument).is_file())


def run_script(path: str, arguments: Sequence[str]) -> int:
    """Run a program as ``python path arguments…`` does, every Spark session it makes enabled.

    ``sys.argv``, ``sys.path[0]``, ``__main__`` and ``__file__`` are the program's; an error it does not catch is
    printed with the program's frames alone. The exit status is 0, 1 after an error, 2 if the program cannot be read;
    ``SystemExit`` passes through.
    """
    try:
        from gpujoin.spark.query.hooks import enable_sessions
    except ModuleNotFoundError as problem:
        if problem.name is None or problem.name.split(".")[0] != "pyspark":
            raise
        raise BackendUnavailableError(
            f"python -m gpujoin PROGRAM needs PySpark, which is not installed: {pip_install('spark')}"
        ) from problem
    try:
        source = Path(path).read_bytes()
    except OSError as problem:
        reason = f"[Errno {problem.errno}] {problem.strerror}"
        print(f"{sys.executable}: can't open file {str(Path(path).absolute())!r}: {reason}", file=sys.stderr)
        return 2
    enable_sessions()
    try:
        execute(path, source, arguments)
    except SystemExit:
        raise
    except BaseException as problem:  # noqa: BLE001 - told as the interpreter would tell it
        return _report(problem, path)
    return 0


def execute(path: str, source: bytes, arguments: Sequence[str]) -> None:
    """Run the source of a program as ``python path arguments…`` does; what it raises passes through."""
    main = _main_module(path)
    sys.argv = [path, *arguments]
    sys.path[0] = str(Path(path).resolve().parent)
    sys.modules["__main__"] = main
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the user's own program


def _main_module(path: str) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=builtins, __cached__=None, __package__=None)
    return main


def _report(problem: BaseException, path: str) -> int:
    """Print an error as the interpreter does, from the program's first frame on."""
    frames = problem.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != path:
        frames = frames.tb_next
    if isinstance(problem, SyntaxError) and frames is None:
        problem.__traceback__ = None
    text = io.StringIO()
    traceback.print_exception(type(problem), problem.with_traceback(frames), frames, file=cast("TextIO", text))
    if sys.excepthook is sys.__excepthook__:
        sys.stderr.write(text.getvalue())
    else:
        sys.excepthook(type(problem), problem, frames)
    return 130 if isinstance(problem, KeyboardInterrupt) else 1
