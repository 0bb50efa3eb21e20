"""What a trace of torch.profiler says of the steps in it: ``facts(read_trace(path))``.

The parts are apart: the file's format (:mod:`~shardkit.measure.doctor.trace.file`), the time of
the GPUs (:mod:`~shardkit.measure.doctor.trace.gpu`) and of the host
(:mod:`~shardkit.measure.doctor.trace.host`), and lines of code
(:mod:`~shardkit.measure.doctor.trace.call_lines`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shardkit.measure.doctor.evidence import CodeLine, TraceFacts
from shardkit.measure.doctor.trace.call_lines import call_lines
from shardkit.measure.doctor.trace.calls import files_of
from shardkit.measure.doctor.trace.file import Event, read_trace
from shardkit.measure.doctor.trace.gpu import gpu_facts
from shardkit.measure.doctor.trace.host import CallSite, HostFacts, Wait, host_facts

__all__ = ["facts", "own_sources", "read_trace"]

_LIBRARIES = frozenset({"torch", "shardkit", *sys.stdlib_module_names})


def facts(events: Sequence[Event], sources: Mapping[str, str] | None = None) -> TraceFacts:
    """What the events of a trace say. Pure.

    Args:
        sources: the script's own code: the text of each of its files, by the name that the trace
            has for it, see :func:`own_sources`. Lines are found in it. Without it, functions are
            told of by the lines that they begin in, and code is the script's own if it is neither
            Python's nor torch's.

    ``seconds`` are those of the marked steps (``ProfilerStep#N``), or of the whole trace; figures
    a step are of these, and 0 if the trace marks no step. Lines that wait are ``syncs`` with the
    kind ``sync``; their ``share`` is of ``seconds``. Their file is "" and their line 0 where the
    trace has no Python functions (``with_stack=True``) or no code of the script called it.
    """
    gpu = gpu_facts(events)
    host = host_facts(events, _looks_own if sources is None else sources.__contains__)
    return TraceFacts(
        seconds=host.seconds,
        steps=host.steps,
        has_gpu=gpu.has_gpu,
        gpu_idle=gpu.idle,
        kernels_per_s=gpu.kernels_per_s,
        kernel_s=gpu.kernel_s,
        copy_exposed=gpu.copy_exposed,
        tensor_core=gpu.tensor_core,
        collective=gpu.collective,
        ops_per_step=host.num_ops / host.steps if host.steps else 0.0,
        syncs=_syncs(host, sources or {}),
    )


def own_sources(
    events: Iterable[Event], folders: Iterable[str | os.PathLike[str]]
) -> dict[str, str]:
    """The texts of those files of a trace that lie in some folders: the script's, and the one it
    was started in.

    The profiler cuts the entries of ``sys.path`` off the names, so that ``train.py`` is the script
    and ``torch/optim/adam.py`` a library. What cannot be read is left out.
    """
    roots = [Path(folder).resolve() for folder in folders]
    found = {}
    for name in files_of(events):
        text = None if name.partition("/")[0] in _LIBRARIES else _text_of(name, roots)
        if text is not None:
            found[name] = text
    return found


def _text_of(name: str, roots: Iterable[Path]) -> str | None:
    """The text of the first file of that name below one of the folders."""
    for root in roots:
        path = Path(os.path.normpath(root / name))
        inside = root in path.parents and "site-packages" not in path.parts
        if inside and path.is_file():
            return _text(path)
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _looks_own(file: str) -> bool:
    first = file.lstrip("/").partition("/")[0].removesuffix(".py")
    return not (first in _LIBRARIES or file.startswith("<") or "site-packages" in file)


def _syncs(host: HostFacts, sources: Mapping[str, str]) -> tuple[CodeLine, ...]:
    """The lines that wait, the longest first."""
    lines: dict[tuple[str, int, str], tuple[float, float]] = {}
    for wait, (calls, seconds) in host.waits.items():
        place = wait.place
        line, others = _line(place, sources.get(place.file, ""))
        key = (place.file, line, _what(wait) + others)
        before = lines.get(key, (0.0, 0.0))
        lines[key] = before[0] + calls, before[1] + seconds
    found = (_code_line(key, *both, host) for key, both in lines.items())
    return tuple(sorted(found, key=lambda line: (-line.share, -line.calls, line.file, line.line)))


def _code_line(
    key: tuple[str, int, str], calls: float, seconds: float, host: HostFacts
) -> CodeLine:
    file, line, what = key
    return CodeLine(
        file,
        line,
        what,
        "sync",
        seconds=seconds / host.steps if host.steps else 0.0,
        calls=calls / host.steps if host.steps else 0.0,
        share=seconds / host.seconds if host.seconds else 0.0,
    )


def _line(place: CallSite, source: str) -> tuple[int, str]:
    """The line that calls, and what to add if that is not known: the other lines that may have, or
    the function whose first line it is."""
    lines = call_lines(source, place.line, place.function, place.called) if source else []
    if not place.file:
        return 0, ""
    if not lines:
        return place.line, f" in {place.function}"
    others = " and ".join(str(line) for line in lines[1:])
    return lines[0], f", or in line {others}" if others else ""


_NAMES = {
    "aten::item": "item() or its like",
    "aten::_local_scalar_dense": "item() or its like",
    "aten::is_nonzero": "if on a tensor",
}


def _what(wait: Wait) -> str:
    """What was called: functions as the code calls them, operators and CUDA's calls as they are."""
    called = wait.place.called
    name = f"{called}()" if wait.place.is_function else _NAMES.get(called, called)
    return f"{name}, a copy to the device" if wait.to_device else name
