"""A traced network as source code of plain torch: ``model.py``, one class, and the numbers that belong into it.

What a layer of ``torch.nn`` computed becomes that layer again; everything between layers is written as calls of torch.
"""

from __future__ import annotations

import builtins
import keyword
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.export import ExportedProgram

INFIX = {
    **{f"aten.{name}.{form}": sign for form in ("Tensor", "Scalar") for name, sign in (("mul", "*"), ("div", "/"))},
    **{f"aten.{name}.Tensor": sign for name, sign in (("add", "+"), ("sub", "-"), ("__and__", "&"), ("__or__", "|"))},
    **{f"_operator.{name}": sign for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("floordiv", "//"))},
    "_operator.mod": "%",
}
"""Functions of two arguments that are written as operators."""

FUNCTIONAL = ("linear", "gelu", "scaled_dot_product_attention", "adaptive_avg_pool2d", "avg_pool2d", "pad", "silu")
"""Functions that ``torch.nn.functional`` has with the arguments of the traced ones."""


@dataclass(frozen=True, slots=True)
class Source:
    """Source code and the state of its network.

    Attributes:
        code: content of ``model.py``.
        state: value of every parameter and buffer by its name there.
    """

    code: str
    state: Mapping[str, Tensor]


@dataclass(slots=True)
class _Names:
    """Attributes of the class: a short name for each path, given once."""

    taken: set[str] = field(default_factory=lambda: set(dir(nn.Module())))

    def of(self, path: str) -> str:
        """Return an unused identifier that resembles a path in the network."""
        name = re.sub(r"\W", "_", path).strip("_")
        if not name or name[0].isdigit() or keyword.iskeyword(name):
            name = f"layer_{name}"
        name, stem, number = name, name, 1
        while name in self.taken:
            number += 1
            name = f"{stem}_{number}"
        self.taken.add(name)
        return name


class _Writer:
    """Statements of ``__init__`` and ``forward``, from a traced network and the network itself."""

    def __init__(self, program: ExportedProgram, network: nn.Module) -> None:
        self.program, self.network = program, network
        self.init: list[str] = []
        self.body: list[str] = []
        self.state: dict[str, Tensor] = {}
        self.words: dict[fx.Node, str] = {}
        self._names = _Names()
        self._homes: dict[int, str] = {}
        self._layers: dict[str, str] = {}
        self.inputs = [node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
        self._live = _live(program.graph)

    def write(self) -> None:
        """Translate the whole graph into the lists of statements."""
        values = self._values()
        groups = list(self._groups())
        for path, _ in groups:  # layers first, so that a tensor that they have is taken from them
            if path is not None:
                self._declare_layer(path)
        for node in self.program.graph.nodes:
            if node in self.inputs:
                self.words[node] = self._input(node)
            elif node.op == "placeholder" and node in self._live:
                self.words[node] = self._tensor(*values[node.name])
        for path, nodes in groups:
            if path is not None:
                self._call_layer(path, nodes)
            else:
                self._call(nodes[0])

    def _values(self) -> dict[str, tuple[str, Tensor]]:
        """Return path and value of every placeholder that is not an input."""
        program, signature = self.program, self.program.graph_signature
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        names |= signature.inputs_to_lifted_tensor_constants
        held = {**program.constants, **program.state_dict}
        return {name: (path, held[path]) for name, path in names.items()}

    def _groups(self) -> Iterator[tuple[str | None, list[fx.Node]]]:
        """Divide the graph into calls of layers, by their paths, and single functions, in order."""
        nodes = [node for node in self.program.graph.nodes if node.op == "call_function" and node in self._live]
        position = 0
        while position < len(nodes):
            key = _innermost(nodes[position])
            end = position + 1
            while key is not None and end < len(nodes) and _innermost(nodes[end]) == key:
                end += 1
            own = nodes[position:end]
            if key is not None and self._is_layer(key[1], own):
                yield key[1], own
            else:
                yield from ((None, [node]) for node in own)
            position = end

    def _is_layer(self, path: str, nodes: Sequence[fx.Node]) -> bool:
        """Return whether these are a whole call of one of torch's own layers with one input and one result."""
        try:
            module = self.network.get_submodule(path)
        except AttributeError:
            return False
        left = [node for node in nodes if any(user not in nodes for user in node.users)]
        return bool(path) and construction(module) is not None and len(left) == 1 and len(self._entering(nodes)) == 1

    def _entering(self, nodes: Sequence[fx.Node]) -> list[fx.Node]:
        """Return the nodes outside a call that it reads, without parameters and buffers."""
        read = [argument for node in nodes for argument in node.all_input_nodes if argument not in nodes]
        return [node for node in dict.fromkeys(read) if node.op != "placeholder" or node in self.inputs]

    def _declare_layer(self, path: str) -> None:
        if path in self._layers:
            return
        module, name = self.network.get_submodule(path), self._names.of(path)
        self._layers[path] = name
        text = construction(module)
        assert text is not None, "asked before"
        self.init.append(f"self.{name} = {text}")
        for key, value in module.state_dict(keep_vars=True).items():
            self.state[f"{name}.{key}"] = value.detach()
            if id(value) in self._homes:
                self.init.append(f"self.{name}.{key} = {self._homes[id(value)]}")
            elif isinstance(value, nn.Parameter):
                self._homes[id(value)] = f"self.{name}.{key}"
                if not value.requires_grad:
                    self.init.append(f"self.{name}.{key}.requires_grad_(False)")

    def _tensor(self, path: str, value: Tensor) -> str:
        """Return the expression of a parameter or buffer that no layer holds, declared if it is new."""
        if id(value) in self._homes:
            return self._homes[id(value)]
        name = self._names.of(path)
        zeros = f"torch.zeros({list(value.shape)}, dtype={value.dtype})"
        if isinstance(value, nn.Parameter):
            frozen = "" if value.requires_grad else ", requires_grad=False"
            self.init.append(f"self.{name} = nn.Parameter({zeros.replace(', dtype=torch.float32', '')}{frozen})")
        else:
            self.init.append(f'self.register_buffer("{name}", {zeros})')
        self.state[name] = value.detach()
        self._homes[id(value)] = f"self.{name}"
        return f"self.{name}"

    def _call_layer(self, path: str, nodes: Sequence[fx.Node]) -> None:
        (entering,) = self._entering(nodes)
        (result,) = (node for node in nodes if any(user not in nodes for user in node.users))
        self._assign(result, f"self.{self._layers[path]}({self.words[entering]})")

    def _call(self, node: fx.Node) -> None:
        if _is_same(node):
            self.words[node] = self._word(node.args[0])
        else:
            self._assign(node, self._expression(node))

    def _input(self, node: fx.Node) -> str:
        """Return a name for an argument that is none of Python's own."""
        taken = {other.name for other in self.program.graph.nodes}
        return node.name if not hasattr(builtins, node.name) else next(n for n in _spare(node.name) if n not in taken)

    def _assign(self, node: fx.Node, expression: str) -> None:
        self.words[node] = node.name
        self.body.append(f"{node.name} = {expression}")

    def _expression(self, node: fx.Node) -> str:
        target, given = node.target, [self._word(value) for value in node.args]
        named = [f"{key}={self._word(value)}" for key, value in node.kwargs.items() if key != "pin_memory"]
        assert callable(target), "only functions are called"
        called = str(target) if isinstance(target, OpOverload) else f"{target.__module__}.{target.__name__}"
        if called in INFIX and len(given) == 2 and not named:
            return f"{given[0]} {INFIX[called]} {given[1]}"
        if target is operator.getitem:
            return f"{given[0]}[{given[1]}]"
        if called.startswith("aten.to."):
            return f"{given[0]}.to({', '.join([*given[1:], *named])})"
        if called == "aten.sym_size.int":
            return f"{given[0]}.shape[{given[1]}]"
        if called == "aten.embedding.default" and len(given) == 2:
            return f"F.embedding({given[1]}, {given[0]})"
        if called == "aten.slice.Tensor" and len(given) == 4:
            return f"{given[0]}[{':, ' * int(given[1])}{_bound(given[2], '0')}:{_bound(given[3], str(2**63 - 1))}]"
        return f"{_function(target, called)}({', '.join([*given, *named])})"

    def _word(self, value: Any) -> str:
        """Return an argument as source code."""
        if isinstance(value, fx.Node):
            return self.words[value]
        if isinstance(value, list | tuple):
            inner = ", ".join(map(self._word, value))
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
        if isinstance(value, torch.device):
            return f"{self.words[self.inputs[0]]}.device"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        return repr(value)

    def result(self) -> str:
        """Return the expression that ``forward`` returns."""
        (output,) = (node for node in self.program.graph.nodes if node.op == "output")
        values = list(output.args[0])
        single = self.program.call_spec.out_spec is not None and self.program.call_spec.out_spec.is_leaf()
        return self._word(values[0]) if single else self._word(tuple(values))


def _live(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes on which the results depend, without by-products of tracing such as checks of types."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or _changes(node) or any(user in live for user in node.users):
            live.add(node)
    return live


def _changes(node: fx.Node) -> bool:
    """Return whether a function changes its first argument."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _is_same(node: fx.Node) -> bool:
    """Return whether a conversion leaves its tensor as it is."""
    if str(node.target) != "aten.to.dtype" or len(node.args) != 2:
        return False
    given = node.args[0]
    return isinstance(given, fx.Node) and given.meta["val"].dtype == node.args[1]


def _spare(name: str) -> Iterator[str]:
    yield "x"
    for number in count(1):
        yield f"{name}_{number}"


def _bound(text: str, open_end: str) -> str:
    return "" if text in (open_end, "None") else text


def _innermost(node: fx.Node) -> tuple[str, str] | None:
    """Name of the call and path of the innermost module that a node belongs to."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    key, (path, _) = list(stack.items())[-1]
    return key, path


def _function(target: Any, called: str) -> str:
    """Return the name of a function in torch; every traced one has at least its own."""
    name = getattr(target, "__name__", "").partition(".")[0]
    if not isinstance(target, OpOverload):
        return called.removeprefix("_")
    if called.startswith("aten."):
        if name in FUNCTIONAL:
            return f"F.{name}"
        if isinstance(getattr(torch, name, None), BuiltinFunctionType):
            return f"torch.{name}"
    return f"torch.ops.{called}"


def construction(module: nn.Module) -> str | None:
    """Return the expression that builds one of torch's own layers anew, ``None`` for any other module.

    A subclass that computes what its base does counts as its base.
    """
    base = next((cls for cls in type(module).__mro__ if getattr(nn, cls.__name__, None) is cls), None)
    if base is None or base is nn.Module or type(module).forward is not base.forward or list(module.children()):
        return None
    words = re.sub(r"=([a-z]\w*)(?=,|$)", r"='\1'", base.extra_repr(module))  # padding=same
    text = f"nn.{base.__name__}({words})"
    try:
        rebuilt = eval(text, {"nn": nn, "torch": torch})
    except (TypeError, SyntaxError, NameError, ValueError):  # its text is no call
        return None
    shapes = [{key: value.shape for key, value in layer.state_dict().items()} for layer in (module, rebuilt)]
    return text if shapes[0] == shapes[1] and base.extra_repr(module) == rebuilt.extra_repr() else None


def source_of(program: ExportedProgram, network: nn.Module, title: str) -> Source:
    """Write a traced network as source code.

    Args:
        program: the network, traced.
        network: the network itself.
        title: first line of the docstring.

    Raises:
        ValueError: the network changes its own tensors when it runs.
    """
    writer = _Writer(program, network)
    changed = [node.args[0] for node in program.graph.nodes if _changes(node)]
    kept = [node for node in changed if isinstance(node, fx.Node) and node.op == "placeholder"]
    if any(node not in writer.inputs for node in kept):
        raise ValueError(f"network: its forward pass changes {kept[0].name!r}, which what is exported would not keep")
    writer.write()
    body = [*writer.body, f"return {writer.result()}"]
    arguments = ", ".join(f"{writer.words[node]}: Tensor" for node in writer.inputs)
    functional = any("F." in line for line in body)
    lines = [
        f'"""{title}',
        "",
        "``load()`` returns the network with its weights. It needs torch and safetensors.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        *(["import operator"] if any("operator." in line for line in body) else []),
        "from pathlib import Path",
        "",
        "import torch",
        *(["import torch.nn.functional as F"] if functional else []),
        "from safetensors.torch import load_model",
        "from torch import Tensor, nn",
        "",
        "",
        "class Network(nn.Module):",
        "    def __init__(self) -> None:",
        "        super().__init__()",
        *(f"        {line}" for line in writer.init),
        "",
        f"    def forward(self, {arguments}):",
        *(f"        {line}" for line in body),
        "",
        "",
        'def load(weights: Path | str = Path(__file__).with_name("weights.safetensors")) -> Network:',
        '    """Return the network with its weights, in evaluation mode."""',
        "    network = Network()",
        "    load_model(network, weights)",
        "    return network.eval()",
    ]
    return Source("\n".join(lines) + "\n", writer.state)


def build(source: Source) -> nn.Module:
    """Return the network of a source code, with its state."""
    scope: dict[str, Any] = {"__name__": "model", "__file__": "model.py"}
    exec(compile(source.code, "model.py", "exec"), scope)
    network: nn.Module = scope["Network"]()
    with torch.no_grad():
        for name, value in network.state_dict(keep_vars=True).items():
            value.copy_(source.state[name])
    return network
