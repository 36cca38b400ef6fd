"""`@task`: every call of a function is a task, its arguments are data that it uses and its result is data that it
generates.

The call belongs to the workflow that the code is in, and depends on the task that it is called from.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial, wraps
from itertools import count
from types import MethodType
from typing import Any, TypeVar, cast, overload

from edge_agent.capture.current import enter, leave
from edge_agent.capture.data import Data
from edge_agent.capture.process import process
from edge_agent.capture.tasks import Task
from edge_agent.capture.workflow import Workflow

_VARARGS, _GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x04, 0x20, 0x80, 0x200  # bits of co_flags

F = TypeVar("F", bound=Callable[..., Any])


@overload
def task(function: F, /) -> F: ...
@overload
def task(*, name: str | None = None, workflow: Workflow | None = None) -> Callable[[F], F]: ...
def task(function: Any = None, /, *, name: str | None = None, workflow: Workflow | None = None) -> Any:
    """Make each call of a function a task, called `name` or like the function, in `workflow` or the current one.

    Arguments are used as one Data with the parameters' names; an argument that is Data, or a list of Data, is used as
    it is. The same holds for the result. A generator is a task from its first step to its last.
    """
    if function is None:
        return partial(_decorated, name=name, workflow=workflow)
    return _decorated(function, name, workflow)


def _decorated(function: F, name: str | None, workflow: Workflow | None) -> F:
    if not callable(function):
        raise TypeError(
            f"@task goes on a function, below @classmethod and the like, not on a {type(function).__name__}"
        )
    calls = _Calls(function, name, workflow)
    flags = calls.flags
    if flags & _COROUTINE:
        wrapper = _for_coroutine(function, calls)
    elif flags & _ASYNC_GENERATOR:
        wrapper = _for_async_generator(function, calls)
    elif flags & _GENERATOR:
        wrapper = _for_generator(function, calls)
    else:
        wrapper = _for_function(function, calls)
    return cast("F", wraps(function)(wrapper))


class _Call:
    """A task that runs, and what its result is derived from."""

    __slots__ = ("task", "used")

    def __init__(self, task: Task, used: list[Data]) -> None:
        self.task = task
        self.used = used

    def returned(self, result: Any) -> None:
        """The function's result: data, unless there is none."""
        if result is None:
            return
        found = _data_in(result)
        if found is None:
            found = [Data(f"{self.task.id}/result", self.task.workflow.id, result, self.used)]
        self.task.generate(found)


class _Calls:
    """How calls of one function become tasks."""

    def __init__(self, function: Callable[..., Any], name: str | None, workflow: Workflow | None) -> None:
        self._name = name or getattr(function, "__name__", type(function).__name__)
        self._workflow = workflow
        self.flags = 0
        self._parameters: tuple[str, ...] = ()
        self._defaults: dict[str, Any] = {}
        self._rest = "args"
        code = getattr(function, "__code__", None)
        if code is not None:
            self.flags = code.co_flags
            is_bound = isinstance(function, MethodType)  # then its object is no argument
            self._parameters = code.co_varnames[is_bound : code.co_argcount]
            if self.flags & _VARARGS:
                self._rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
            defaults = function.__defaults__ or ()
            self._defaults = dict(zip(self._parameters[len(self._parameters) - len(defaults) :], defaults, strict=True))
            self._defaults |= function.__kwdefaults__ or {}
        is_method = "." in getattr(function, "__qualname__", "") and self._parameters[:1] in (("self",), ("cls",))
        self._owner = self._parameters[0] if is_method else ""

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        """A call has begun."""
        task = Task(f"{self._name}-{process.token}-{next(_numbers)}", self._workflow, self._name)
        used: list[Data] = []
        values: dict[str, Any] = {}
        for name, value in self._arguments(args, kwargs).items():
            found = _data_in(value)
            if found is None:
                values[name] = value
            else:
                used += found
        if values:
            used.append(Data(f"{task.id}/arguments", task.workflow.id, values))
        return _Call(task.begin(used), used)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """By the names of the parameters, the object of a method left out."""
        found = {**self._defaults, **dict(zip(self._parameters, args, strict=False)), **kwargs}
        if len(args) > len(self._parameters):
            found[self._rest] = args[len(self._parameters) :]
        found.pop(self._owner, None)
        return found


def _data_in(value: Any) -> list[Data] | None:
    """Data, or a list or tuple of nothing else; None for all other values."""
    if isinstance(value, Data):
        return [value]
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, Data) for each in value):
        return list(value)
    return None


def _for_function(function: Callable[..., Any], calls: _Calls) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = calls.begin(args, kwargs)
        with call.task:
            result = function(*args, **kwargs)
            call.returned(result)
        return result

    return wrapper


def _for_coroutine(function: Callable[..., Any], calls: _Calls) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = calls.begin(args, kwargs)
        with call.task:
            result = await function(*args, **kwargs)
            call.returned(result)
        return result

    return wrapper


def _for_generator(function: Callable[..., Any], calls: _Calls) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        call = calls.begin(args, kwargs)
        try:
            result = yield from _inside(call.task, function(*args, **kwargs))
            call.returned(result)
        except GeneratorExit:  # its caller has seen enough
            call.task.end()
            raise
        except BaseException as error:
            call.task.end(error=error)
            raise
        call.task.end()
        return result

    return wrapper


def _inside(task: Task, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """A generator of which the steps run inside a task, and what its caller does in between does not."""
    step: Callable[[Any], Any] = steps.send
    sent: Any = None
    while True:
        enter(task.workflow, task)
        try:
            item = step(sent)
        except StopIteration as stop:
            return stop.value
        finally:
            leave(task.workflow, task)
        try:
            step, sent = steps.send, (yield item)
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:
            step, sent = steps.throw, error


def _for_async_generator(function: Callable[..., Any], calls: _Calls) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        running = calls.begin(args, kwargs).task
        steps = function(*args, **kwargs)
        step, sent = steps.asend, None
        try:
            while True:
                enter(running.workflow, running)
                try:
                    item = await step(sent)
                except StopAsyncIteration:
                    break
                finally:
                    leave(running.workflow, running)
                try:
                    step, sent = steps.asend, (yield item)
                except GeneratorExit:
                    await steps.aclose()
                    raise
                except BaseException as error:
                    step, sent = steps.athrow, error
        except GeneratorExit:
            running.end()
            raise
        except BaseException as error:
            running.end(error=error)
            raise
        running.end()

    return wrapper


_numbers = count()
