"""Docstrings of what is public: parameters, errors, shapes, and where it is from.

The reference is made of them, so that what is not said here is said nowhere.
"""

import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import sys
import textwrap
import types

import keras
import pytest

from keras_vit.builder import Builder

pytestmark = pytest.mark.tensorflow_only

PUBLIC_MODULES = (
    "keras_vit",
    "keras_vit.layers",
    "keras_vit.models",
    "keras_vit.weights",
    "keras_vit.recipes",
    "keras_vit.configs",
    "keras_vit.self_supervision",
    "keras_vit.paper",
    "keras_vit.data",
    "keras_vit.data.augmentation",
    "keras_vit.data.packing",
    "keras_vit.data.pipelines",
    "keras_vit.data.preprocessing",
    "keras_vit.data.vtab",
    "keras_vit.training",
    "keras_vit.manifest",
    "keras_vit.training.certificate",
    "keras_vit.training.locking",
    "keras_vit.training.optim",
    "keras_vit.training.replaying",
    "keras_vit.training.resume",
    "keras_vit.evaluation",
    "keras_vit.evaluation.comparison",
    "keras_vit.evaluation.vtab",
    "keras_vit.inspection",
    "keras_vit.inspection.planning",
    "keras_vit.inspection.plots",
    "keras_vit.inspection.speed",
    "keras_vit.serving",
)
SOURCES = re.compile(
    r"Equations? [1-4]|Tables? \d|Figures? \d|[Ss]ections? \d|Appendix [A-D]"
    r"|\b[BD]\.\d|\b[34]\.\d\b|arXiv:\d{4}\.\d{5}"
    r"|\b(big_vision|vit_jax|big_transfer|BiT|AugReg|timm|transformers|scenic)\b"
    r"|\b(keras\.applications|Keras's|TFDS|TensorFlow Serving|scikit-learn)\b"
)
# Subjects that the paper does not have: a docstring need not name a source.
WITHOUT_SOURCE = (
    "keras_vit.data.splits",
    "keras_vit.inspection.plots.canvas",
    "keras_vit.manifest",
    "keras_vit.serving.client",
    "keras_vit.serving.transport",
    "keras_vit.training.certificate",
    "keras_vit.training.locking",
    "keras_vit.training.replaying",
    "keras_vit.training.resume",
    "keras_vit.training.runs",
    "keras_vit.weights.mirrors",
)
TENSOR = re.compile(r"\b(Tensor|KerasTensor|ndarray|NDArray|ArrayLike)\b")
# "[B, T, D]", "[..., C]": a letter of the glossary or an ellipsis, unlike "[0, 1]".
SHAPE = re.compile(r"\[(?=[^\]]*(?:\b[A-Z]|\.{3}))[^\]]+\]|\bscalar\b")
SECTION = re.compile(
    r"^(Args|Attributes|Returns|Yields|Raises):\n((?: .*\n|\n)+)", re.M
)
ENTRY = re.compile(r"^    \*{0,2}(\w+):", re.M)

METHODS = types.FunctionType | property | classmethod | staticmethod


def sections(doc):
    """{"Args": {names}, ..., "Returns": {...}} of a Google docstring."""
    found = SECTION.findall(f"{doc}\n")
    return {title: set(ENTRY.findall(body)) for title, body in found}


def tree_of(function):
    return ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]


def own_nodes(node):
    """Every node of a function, without the functions inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from own_nodes(child)


def raised(function):
    """Names of the public errors that a function's own body makes and raises."""
    for node in own_nodes(tree_of(function)):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        name = ast.unparse(node.exc.func).rpartition(".")[2]
        helper = function.__globals__.get(name)
        if isinstance(helper, types.FunctionType):  # raise _mismatch(...)
            name = helper.__annotations__["return"].__name__
        if name[0].isupper():  # Not `raise self._garbled(...)`, nor a private error.
            yield name


def parameters(function):
    """Names; *args and **kwargs go where the signature of another says so."""
    told = inspect.signature(function).parameters
    return {name for name in told if name not in ("self", "cls", "args", "kwargs")}


def annotations(function):
    """As written: `Tensor` is an alias, gone from what the signature knows."""
    arguments = tree_of(function).args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    told = [argument.annotation for argument in every]
    return " ".join(ast.unparse(at) for at in [*told, tree_of(function).returns] if at)


def faults_of_function(function, doc, *, called=None, is_property=False):
    """Faults of a function; `called` is a builder, which has more parameters."""
    told = sections(doc)
    yield from faults_of_names(told.get("Args", set()), parameters(called or function))
    returns = tree_of(function).returns
    first = doc.split("\n\n")[0]
    if not (is_property or returns is None or ast.unparse(returns) == "None") and not (
        {"Returns", "Yields"} & told.keys() or re.search(r"->|^Returns? ", first)
    ):
        yield "what does it return?"
    yield from faults_of_body(function, doc)


def faults_of_names(told, wanted):
    if missing := wanted - told:
        yield f"what is {', '.join(sorted(missing))}?"
    if extra := told - wanted - {"kwargs"}:  # Where they are other than Keras's.
        yield f"there is no {', '.join(sorted(extra))}"


def faults_of_body(function, doc):
    told = sections(doc).get("Raises", set())
    if missing := set(raised(function)) - told:
        yield f"when does it raise {', '.join(sorted(missing))}?"
    if TENSOR.search(annotations(function)) and not SHAPE.search(doc):
        yield "of what shape?"


def faults_of_class(kind, doc):
    told = sections(doc)
    own = [
        method
        for name in ("__init__", "__post_init__", "build", "call")
        if isinstance(method := getattr(kind, name, None), types.FunctionType)
        and method.__module__.startswith("keras_vit")
    ]
    if dataclasses.is_dataclass(kind):
        fields = {at.name for at in dataclasses.fields(kind) if at.name[0] != "_"}
        yield from faults_of_names(told.get("Attributes", set()), fields)
    elif hasattr(kind, "_fields"):  # A NamedTuple.
        yield from faults_of_names(told.get("Attributes", set()), set(kind._fields))
    elif own and own[0].__name__ == "__init__":
        yield from faults_of_names(told.get("Args", set()), parameters(own[0]))
    for method in own:
        if method.__code__.co_filename != "<string>":  # What dataclasses write.
            yield from faults_of_body(method, doc)


def docstring_of_constant(module, name):
    """The literal after the assignment, as griffe reads it, and the module of both."""
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    body += [inner for node in body if isinstance(node, ast.If) for inner in node.body]
    for node, after in itertools.pairwise([*body, ast.Pass()]):
        if isinstance(node, ast.ImportFrom) and name in [at.name for at in node.names]:
            return docstring_of_constant(node.module, name)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if ast.unparse(target) == name:
                literal = isinstance(after, ast.Expr) and ast.literal_eval(after.value)
                return literal or None, module
    raise AssertionError(f"{module} does not assign {name}")


def faults(value, module, name):
    """What the docstring of a public name leaves out."""
    member = value
    if isinstance(value, Builder):
        member = type(value).__call__
    elif isinstance(value, property):
        member = value.fget
    elif isinstance(value, classmethod | staticmethod):
        member = value.__func__
    if isinstance(value, Builder):
        doc = inspect.getdoc(value)
        for section in {"Args", "Returns", "Raises"} - sections(doc).keys():
            yield f"no {section}"
    elif isinstance(member, type | types.FunctionType):
        doc = inspect.getdoc(member)  # Of the base's method, where it has none.
    else:
        doc, _ = docstring_of_constant(module, name)
    if not doc:
        yield "no docstring"
        return
    of = [doc, sys.modules[module].__doc__]
    if "." in name:
        of.append(getattr(sys.modules[module], name.split(".")[0]).__doc__)
    if module not in WITHOUT_SOURCE and not any(map(SOURCES.search, of)):
        yield "where is it from?"
    if isinstance(member, type):
        yield from faults_of_class(member, doc)
    elif isinstance(member, types.FunctionType):
        called = value if isinstance(value, Builder) else None
        is_property = isinstance(value, property)
        yield from faults_of_function(
            member, doc, called=called, is_property=is_property
        )


def ours(kind):
    return kind.__module__.startswith("keras_vit")


def methods(kind):
    """Public methods and properties that no class outside this library has."""
    others = [base for base in kind.__mro__ if not ours(base)]
    for base in filter(ours, kind.__mro__):
        for name, value in vars(base).items():
            if (
                isinstance(value, METHODS)
                and not name.startswith("_")
                and not any(hasattr(other, name) for other in others)
            ):
                yield f"{base.__name__}.{name}", base.__module__, value


def public():
    """{"module.name": (value, module, name)}, each once."""
    found = {}
    if keras.backend.backend() != "tensorflow":
        return found
    for path in PUBLIC_MODULES:
        module = importlib.import_module(path)
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, types.ModuleType) or name.startswith("__"):
                continue
            if isinstance(value, type | types.FunctionType | Builder):
                home = value.__module__
            else:
                _, home = docstring_of_constant(path, name)
            if isinstance(value, type):
                for at, where, method in methods(value):
                    found[f"{where}.{at}"] = method, where, at
            found.setdefault(f"{home}.{name}", (value, home, name))
    return found


PUBLIC = public()


@pytest.mark.parametrize("path", sorted(PUBLIC))
def test_docstring_says(path):
    assert list(faults(*PUBLIC[path])) == []


def test_public_modules_have_a_docstring_and_names():
    for path in PUBLIC_MODULES:
        module = importlib.import_module(path)
        assert module.__doc__
        assert module.__all__
