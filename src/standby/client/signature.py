"""The signature of a client's method, made from the plan or flow behind it: what help and mocks go by."""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any, Final, get_args, get_origin, get_type_hints

from standby.client.talk import Item


class _LeftOut:
    def __repr__(self) -> str:
        return "..."


LEFT_OUT: Final = _LeftOut()
"""Shown as the default of what is not sent when it is not given."""


def as_method(call: Any, plan: Callable[..., Any], owner: str, wrap: Any = None) -> None:
    """Let a method look like what it is: `self`, the parameters of its plan, and what it returns or iterates over."""
    told = signature(plan)
    gives = _gives(told.return_annotation)
    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    for each in told.parameters.values():
        parameters += _fields(each) if each.kind is Parameter.VAR_KEYWORD else [each]
    call.__signature__ = Signature(parameters, return_annotation=gives if wrap is None else wrap[gives])
    call.__annotations__ = {each.name: each.annotation for each in parameters[1:]}
    call.__annotations__["return"] = call.__signature__.return_annotation
    call.__name__, call.__qualname__, call.__doc__ = plan.__name__, f"{owner}.{plan.__name__}", plan.__doc__


def _fields(many: Parameter) -> list[Parameter]:
    """The fields of an unpacked TypedDict, each as a parameter."""
    (fields,) = get_args(many.annotation)
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=LEFT_OUT, annotation=kind)
        for name, kind in get_type_hints(fields).items()
    ]


def _gives(generator: Any) -> Any:
    """What a plan returns, or a flow yields as items."""
    steps, _, returned = get_args(generator)
    items = [get_args(each)[0] for each in get_args(steps) if get_origin(each) is Item]
    return items[0] if items else returned
