"""Where chat templates run: Jinja without access to Python, with a bound on what one rendering may cost.

A template comes out of a downloaded file and loops over what a client sent, so neither may be able to hold a worker or
the memory. The bounds are those of `budget`, checked at each loop turn, call, filter, operator, comparison and output,
and before a value of a large size exists (`"a" * 10**9`, padding, joins).

Filters and methods are lists of what templates use; those whose size depends on a number (`center`, `batch`, `ljust`)
are left out. Exceeding a bound raises WorkExceeded; forbidden access raises jinja2's SecurityError on use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.filters import FILTERS, do_indent, do_join, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from tailrace.clock import Clock
from tailrace.text.budget import (
    MAX_RANGE,
    Budget,
    WorkExceeded,
    check_join,
    check_pattern,
    check_power,
    check_product,
    check_replace,
    check_size,
    check_sum,
    weight,
)

_BUDGET = "~budget"  # no template can spell this name

_FILTERS = """
    abs capitalize count d default dictsort e escape first float groupby int items last length list lower map max min
    reject rejectattr reverse round safe select selectattr sort title trim truncate unique upper urlencode wordcount
"""
_STRING_METHODS = """
    capitalize casefold count endswith find format format_map index isalnum isalpha isascii isdecimal isdigit islower
    isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex
    rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
"""
_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_STRING_METHODS.split()),
    dict: frozenset(("get", "items", "keys", "values")),
    list: frozenset(("count", "index")),
    tuple: frozenset(("count", "index")),
    int: frozenset(),
    float: frozenset(),
    bytes: frozenset(),
}

_Body = TypeVar("_Body", nodes.For, nodes.Macro, nodes.CallBlock)


class Refused(Exception):
    """The template called `raise_exception`; the message is its own."""


def _budget(context: Context) -> Budget:
    budget = context.parent[_BUDGET]
    assert isinstance(budget, Budget)
    return budget


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of chat templates. Compiled templates may be rendered by several threads at once."""

    intercepted_binops = frozenset(("+", "*", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            finalize=_output,
            autoescape=False,
        )
        self.globals = {"range": _range, "dict": dict, "namespace": self.globals["namespace"]}
        self.globals["raise_exception"] = _raise_exception
        self.filters = {name: _metered(FILTERS[name]) for name in _FILTERS.split()}
        self.filters |= {"join": _join, "indent": _indent, "sum": _sum, "tojson": _tojson, "replace": _replace}
        self.filters["string"] = _output
        self.filters |= {"~tick": _tick, "~take": _take, "~concat": _concat}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        metered = _Meter().visit(tree)
        assert isinstance(metered, nodes.Template)
        metered.set_environment(self)
        return metered

    def variables(self, clock: Clock, /, **values: Any) -> dict[str, Any]:
        """The values of one rendering together with its budget."""
        return {**values, _BUDGET: Budget(clock)}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, allowed in _METHODS.items():
            if isinstance(obj, kind):
                return attr in allowed
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        safe = super().wrap_str_format(value)
        if safe is None:
            return None
        pattern: str = value.__self__

        def checked(*args: Any, **kwargs: Any) -> str:
            check_pattern(pattern, [*args, kwargs])
            return safe(*args, **kwargs)

        return checked

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            check_sum(left, right)
        elif operator == "*":
            check_product(left, right)
        elif operator == "**":
            check_power(left, right)
        elif isinstance(left, str):
            check_pattern(left, right)
        return _budget(context).take(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context)
        budget.spend()
        receiver = getattr(obj, "__self__", None)
        if isinstance(receiver, str):
            args = _check_method(receiver, obj.__name__, args)
        return budget.take(super().call(context, obj, *args, **kwargs))


class GenerationTag(Extension):
    """`{% generation %}` marks what a model wrote, for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Meter(NodeTransformer):
    """Puts a payment into each loop turn and macro call, and around each expression that makes or compares values and
    that the environment cannot intercept otherwise."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_paid(nodes.Const(True), "~tick"), node.test, lineno=node.lineno)
        return self._pay_for_body(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        self.generic_visit(node)
        return self._pay_for_body(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        self.generic_visit(node)
        return self._pay_for_body(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _paid(nodes.List(node.nodes, lineno=node.lineno), "~concat")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _paid(node, "~take") if isinstance(node.arg, nodes.Slice) else node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        return self._literal(node) if node.ctx == "load" else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:
        self.generic_visit(node)
        return _paid(node, "~take")

    def _literal(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        try:
            node.as_const()
        except nodes.Impossible:
            return _paid(node, "~take")
        return node

    visit_List = visit_Dict = _literal
    visit_Test = visit_Compare

    def _pay_for_body(self, node: _Body) -> _Body:
        fixed = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        payment = _paid(nodes.Const(fixed, lineno=node.lineno), "~tick")
        node.body.insert(0, nodes.ExprStmt(payment, lineno=node.lineno))
        return node


def _paid(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@pass_context
def _tick(context: Context, chars: int) -> bool:
    _budget(context).spend(int(chars))
    return True


@pass_context
def _take(context: Context, value: Any) -> Any:
    return _budget(context).take(value)


@pass_context
def _output(context: Context, value: Any) -> str:
    return _text(_budget(context), value)


def _text(budget: Budget, value: Any) -> str:
    """`value` as Jinja writes it, paid for before it is written."""
    if not isinstance(value, str):
        weight(value)
        value = str(value)
    check_size(len(value))
    budget.spend(len(value))
    return str(value)


@pass_context
def _concat(context: Context, values: list[Any]) -> str:
    budget = _budget(context)
    parts = [_text(budget, value) for value in values]
    check_join("", parts)
    return "".join(parts)


def _metered(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of Jinja's that pays for its result, and for each element of an input that is made on the way."""
    wants = getattr(function, "jinja_pass_arg", None)

    @pass_context
    def metered(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context)
        budget.spend()
        value = _readable(budget, value)
        leading = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        first = () if wants is None else (leading[wants.name],)
        return budget.take(function(*first, value, *args, **kwargs))

    return metered


def _readable(budget: Budget, value: Any) -> Any:
    """An input that a filter may read through or write out; structures were weighed when they were made."""
    if isinstance(value, Namespace):
        weight(value)
    return budget.take(value) if isinstance(value, Iterator) else value


def _picker(context: Context, attribute: str | int | None) -> Callable[[Any], Any]:
    if attribute is None:
        return lambda item: item
    pick: Callable[[Any], Any] = make_attrgetter(context.environment, attribute)
    return pick


@pass_context
def _join(context: Context, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> Any:
    budget, pick = _budget(context), _picker(context, attribute)
    parts = [_text(budget, pick(item)) for item in _readable(budget, value)]
    check_join(str(d), parts)
    return budget.take(do_join(context.eval_ctx, parts, d))


@pass_context
def _indent(context: Context, value: str, width: int | str = 4, first: bool = False, blank: bool = False) -> Any:
    size = width if isinstance(width, int) else len(width)
    check_size(len(value) + size * (1 + value.count("\n")))
    return _budget(context).take(do_indent(value, width, first, blank))


@pass_context
def _sum(context: Context, value: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    sandbox, pick, total = context.environment, _picker(context, attribute), start
    assert isinstance(sandbox, Sandbox)
    for item in value:
        total = sandbox.call_binop(context, "+", total, pick(item))
    return total


@pass_context
def _replace(context: Context, value: Any, old: str, new: str, count: int = -1) -> Any:
    budget = _budget(context)
    text = _text(budget, value)
    check_replace(text, old, new)
    return budget.take(text.replace(old, new, -1 if count is None else count))


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    *,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON for a model to read, not for a web page: nothing is escaped for HTML."""
    if indent is not None and indent > 32:
        raise WorkExceeded("it indents JSON by more than 32")
    if isinstance(value, Undefined):
        value._fail_with_undefined_error()
    weight(value)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    taken = _budget(context).take(text)
    assert isinstance(taken, str)
    return taken


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise WorkExceeded(f"it counts further than {MAX_RANGE}")
    return numbers


def _raise_exception(message: object = "") -> None:
    raise Refused(str(message))


def _check_method(text: str, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Checks a call of a string's method. Gives back the arguments, in which an iterator has become a list."""
    if name == "join" and args:
        parts = list(args[0])
        check_join(text, parts)
        return (parts, *args[1:])
    if name == "replace" and len(args) >= 2:
        check_replace(text, args[0], args[1])
    return args
