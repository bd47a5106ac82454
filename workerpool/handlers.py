"""Finding the user's handler and calling it.

`load_handler("package.module:callable", path)` imports it with the folders of `path` first, without PYTHONPATH and
without the current folder unless that is one of them. Importing is executing: every file and folder on the way that
others may write to is refused before it is touched.

What a handler looks like is read from its signature once: `handle(job)`, `handle(job, ctx)` or `handle(job, *, ctx)`,
each also as `async def` or as an object with `__call__`. In a stream with batches, `job` is a list of jobs.

Called by workers, by stream processes with `workers = 0`, by `check` and by `replay`; never by the master.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import os
import stat
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from workerpool.errors import PoolError
from workerpool.outcome import describe_error
from workerpool.trust import why_unimportable, why_unsafe


class HandlerError(PoolError):
    """A handler cannot be loaded: correct its name or its module. Attributes: `spec`, `reason`."""

    def __init__(self, spec: str, reason: str) -> None:
        self.spec, self.reason = spec, reason
        super().__init__(f"handler {spec!r}: {reason}")


class SoftTimeout(Exception):
    """Raised inside a handler that still runs after the stream's soft timeout. Attribute: `seconds`.

    A handler may catch it to clean up; the run counts as failed unless it then returns. Without it the worker is killed
    at the hard timeout.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"still running after the soft timeout of {seconds:g} s")


class Handler:
    """A loaded handler. `takes_context`, `is_async`: what its signature says."""

    def __init__(self, spec: str, function: Callable[..., Any]) -> None:
        """Raises `HandlerError` when the signature fits no form."""
        self.spec = spec
        self._function = function
        self._context_name = _context_parameter(spec, function)
        self.takes_context = self._context_name is not None
        self.is_async = _is_async(function)
        self._runner: asyncio.Runner | None = None

    def call(self, argument: object, ctx: object, soft_timeout: float = 0.0) -> object:
        """Run the handler on a job (or a list of jobs) and return what it returned; raises whatever it raised.

        `soft_timeout`: seconds, 0 = none; of an asynchronous handler only, which is cancelled then and ends with
        `SoftTimeout`. An asynchronous one runs on an event loop that is kept from call to call.
        """
        returned = self._invoke(argument, ctx)
        if returned is None or not inspect.isawaitable(returned):
            return returned
        return self._finish(returned, soft_timeout)

    def close(self) -> None:
        """End the event loop, if there is one, with the tasks left on it."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _invoke(self, argument: object, ctx: object) -> object:
        if self._context_name is None:
            return self._function(argument)
        if self._context_name:
            return self._function(argument, **{self._context_name: ctx})
        return self._function(argument, ctx)

    def _finish(self, awaitable: Awaitable[object], soft_timeout: float) -> object:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(_within(awaitable, soft_timeout))


async def _within(awaitable: Awaitable[object], seconds: float) -> object:
    if seconds <= 0:
        return await awaitable
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await awaitable
    except TimeoutError as error:
        if limit.expired():
            raise SoftTimeout(seconds) from error
        raise


def load_handler(spec: str, path: Sequence[str]) -> Handler:
    """Import `spec`, `"package.module:callable"`, with the folders of `path` first, and look at its signature.

    Raises `HandlerError` saying what is wrong: a malformed spec, a module that is not there or fails at import (with
    its traceback), no such name in it, something that cannot be called or takes the wrong parameters, or a file or
    folder that others may write to. Changes `sys.path` of this process.
    """
    return Handler(spec, load_callable(spec, path))


def load_callable(spec: str, path: Sequence[str]) -> Callable[..., Any]:
    """What `spec` names, whatever its signature: the first half of `load_handler`, raising the same."""
    module_name, colon, attributes = spec.partition(":")
    if not colon or not all(part.isidentifier() for part in f"{module_name}.{attributes}".split(".")):
        raise HandlerError(spec, 'must look like "package.module:callable"')
    folders = [os.path.abspath(folder) for folder in path]
    for folder in folders:
        _check_folder(spec, folder)
    _guard.watch(folders)
    sys.path[:] = [*folders, *_inherited(folders)]
    importlib.invalidate_caches()
    found: object = _import(spec, module_name, folders)
    for name in attributes.split("."):
        if not hasattr(found, name):
            raise HandlerError(spec, f"{module_name} has no {name!r}{_near(name, found)}")
        found = getattr(found, name)
    if not callable(found):
        raise HandlerError(spec, f"{attributes} is of type {type(found).__name__}, which cannot be called")
    return found


def _near(name: str, place: object) -> str:
    """`, did you mean '…'?` for what a module or class has of a name like it; "" when it has nothing such."""
    import difflib

    known = [each for each in dir(place) if not each.startswith("_") and callable(getattr(place, each, None))]
    near = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {near[0]!r}?" if near else ""


# -- importing


def _inherited(folders: Sequence[str]) -> Iterator[str]:
    """What `sys.path` had, without PYTHONPATH and without the current folder where only its accident put it first."""
    foreign = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    here = os.getcwd()
    for place, entry in enumerate(sys.path):
        accident = not entry or (place == 0 and os.path.abspath(entry) == here)
        if not accident and os.path.abspath(entry) not in foreign and entry not in folders:
            yield entry


def _import(spec: str, module_name: str, folders: Sequence[str]) -> ModuleType:
    """Import the packages from the outside in, each looked at before it is executed."""
    parts = module_name.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        if name not in sys.modules:
            _check_module(spec, _find(spec, name, folders))
            _execute(spec, name)
    return sys.modules[module_name]


def _find(spec: str, name: str, folders: Sequence[str]) -> ModuleSpec:
    try:
        found = importlib.util.find_spec(name)
    except UnsafeCode as error:
        raise HandlerError(spec, str(error)) from error
    except (ImportError, ValueError) as error:
        raise HandlerError(spec, f"cannot find the module {name}: {error}") from error
    if found is None:
        raise HandlerError(spec, f"there is no module {name} in {', '.join(folders) or 'the installed packages'}")
    return found


def _execute(spec: str, name: str) -> None:
    try:
        importlib.import_module(name)
    except BaseException as error:  # SystemExit of a script without a main guard is such a mistake too
        raise HandlerError(spec, f"importing {name} failed: {describe_error(error)}") from error


def _check_module(spec: str, module: ModuleSpec) -> None:
    if reason := _why_unsafe(module):
        raise HandlerError(spec, reason)


def _check_folder(spec: str, folder: str) -> None:
    if not os.path.isdir(folder):
        raise HandlerError(spec, f"the folder {folder} is not there")
    if reason := why_unimportable(folder):
        raise HandlerError(spec, f"{folder} {reason}")


def _why_unsafe(module: ModuleSpec, *, own: bool = False) -> str:
    """Why another user could change what importing this executes; "" when none could.

    `own`: from the handlers' folders, where everything belongs to this user or to root. Installed packages may belong
    to somebody else, who is trusted then.
    """
    files = [file for file in (module.origin, module.cached) if file and os.path.exists(file)]
    for place in (*files, *map(os.path.dirname, files), *(module.submodule_search_locations or ())):
        try:
            found = os.stat(place)
        except OSError:  # no such thing, as of a package that is an archive: nothing is executed from there
            continue
        if found.st_mode & stat.S_IWOTH:
            return f"everybody may write to {place}, so anybody's code would run here: chmod o-w {place}"
        if own and (reason := why_unsafe(found)):
            return f"{place} {reason}"
    return ""


class UnsafeCode(ImportError):
    """A module of the handlers' folders is not imported, since another user could have written it."""


class _Guard(MetaPathFinder):
    """Looks at each module of the handlers' folders before it is executed, whoever imports it, and whenever."""

    def __init__(self) -> None:
        self._folders: tuple[str, ...] = ()

    def watch(self, folders: Sequence[str]) -> None:
        """Look at what comes from these folders from now on."""
        self._folders = tuple(os.path.join(folder, "") for folder in folders)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What Python's own search finds in these folders; None, and the others search, when it is elsewhere."""
        if fullname in sys.builtin_module_names:
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is None or not self._is_from_here(found):
            return None
        if reason := _why_unsafe(found, own=True):
            raise UnsafeCode(reason, name=fullname)
        return found

    def _is_from_here(self, module: ModuleSpec) -> bool:
        places = [module.origin or "", *(module.submodule_search_locations or ())]
        return any(place.startswith(self._folders) for place in places)


_guard = _Guard()


# -- signatures

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _context_parameter(spec: str, function: Callable[..., Any]) -> str | None:
    """How the context is passed: None = not at all, "" = as the second argument, else by this keyword."""
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise HandlerError(spec, "it is a generator: its body would never run; use return instead of yield")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):  # some callables written in C tell nothing
        return None
    places = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    named = [parameter for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    open_ended = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    _check_parameters(spec, places, named, open_ended)
    if len(places) > 1 and (_required(places[1]) or places[1].name == "ctx"):
        return ""
    if any(parameter.name == "ctx" for parameter in named):
        return "ctx"
    return "" if open_ended else None


def _check_parameters(
    spec: str, places: list[inspect.Parameter], named: list[inspect.Parameter], open_ended: bool
) -> None:
    if not places and not open_ended:
        raise HandlerError(spec, "it takes no job: define it as handle(job) or handle(job, ctx)")
    surplus = [*filter(_required, places[2:]), *(p for p in named if _required(p) and p.name != "ctx")]
    if surplus:
        names = ", ".join(parameter.name for parameter in surplus)
        raise HandlerError(spec, f"it wants {names} beside the job and ctx, and nobody gives it that")


def _required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty


def _is_async(function: Callable[..., Any]) -> bool:
    return _is(inspect.iscoroutinefunction, function)


def _is(question: Callable[[object], bool], function: Callable[..., Any]) -> bool:
    """`question` of a function, or of what an object that can be called calls."""
    return question(function) or question(getattr(function, "__call__", None))  # noqa: B004


__all__ = ["Handler", "HandlerError", "SoftTimeout", "load_handler"]
