"""The one seam through which telemetry leaves: a gate that is off by default, and at most one hook.

A hook is any callable that takes a `Metric`. One that would rather have a whole report at once (the log, which writes
one line for it) is a `ReportHook`. A hook runs in the caller's thread, after the drain; what it raises is
logged once and goes no further.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Sequence

from queuekit.telemetry.metric import Metric

log = logging.getLogger("queuekit.telemetry")

Hook = Callable[[Metric], None]


class ReportHook(abc.ABC):
    """A hook that takes the metrics of one report together. To derive from."""

    def __call__(self, metric: Metric, /) -> None:
        """Take one metric."""
        self.report([metric])

    @abc.abstractmethod
    def report(self, metrics: Sequence[Metric], /) -> None:
        """Take all metrics of one report: same tags, same time."""


class Guarded(ReportHook):
    """A hook that never raises: its first error is logged, the others are not, and it is called again each time."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self._complained = False

    def report(self, metrics: Sequence[Metric], /) -> None:
        """Pass a report on in the way the hook wants it."""
        try:
            self._pass_on(metrics)
        except Exception:  # noqa: BLE001  a user's hook may raise anything, and none of it may hurt a drain
            self._complain()

    def _pass_on(self, metrics: Sequence[Metric]) -> None:
        if isinstance(self.hook, ReportHook):
            self.hook.report(metrics)
            return
        for metric in metrics:
            self.hook(metric)

    def _complain(self) -> None:
        if not self._complained:
            self._complained = True
            log.warning("the telemetry hook %r raised; its later errors are not logged", self.hook, exc_info=True)


class FanOut(ReportHook):
    """Several hooks as one; an error of one does not keep a report from the others."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self.hooks = [Guarded(hook) for hook in hooks]

    def report(self, metrics: Sequence[Metric], /) -> None:
        """Pass a report on to every hook."""
        for hook in self.hooks:
            hook.report(metrics)


class Gate:
    """Whether telemetry is on (the one attribute that a drain reads while it is off), and who listens."""

    __slots__ = ("enabled", "hook")

    def __init__(self) -> None:
        self.enabled = False
        self.hook: Guarded | None = None


gate = Gate()


def set_enabled(enabled: bool) -> None:
    """Turn telemetry of this process on or off. Off, nothing is measured, read or recorded."""
    gate.enabled = enabled


def is_enabled() -> bool:
    """Whether telemetry of this process is on."""
    return gate.enabled


def install(hook: Hook | None) -> None:
    """Make `hook` the one that gets this process's metrics, in place of any other; None: nobody. Several: `fan_out`."""
    gate.hook = None if hook is None else Guarded(hook)


def fan_out(hooks: Sequence[Hook]) -> Hook:
    """One hook that passes everything on to each of `hooks`."""
    return FanOut(hooks)


def emit(metrics: Sequence[Metric]) -> None:
    """Hand one report to the installed hook, if there is one. Never raises because of a hook."""
    hook = gate.hook
    if hook is not None:
        hook.report(metrics)
