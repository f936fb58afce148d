"""Lets SGLang's scheduler be imported where its kernels and most of its dependencies are missing.

Only what decides about steps is wanted (`srt.managers`, `srt.mem_cache`), and that is plain Python
on plain tensors. What it imports beside that and is not installed is replaced by empty shells, so
`install` must be called before the first `import sglang`.
"""

import importlib.abc
import importlib.machinery
import sys
import types
import warnings

import torch

#: Not installed beside a vLLM for CPUs, or in need of a GPU when imported.
SHELLS = ("vllm", "orjson", "torchvision", "gguf", "IPython", "triton")
#: Of SGLang itself: kernels that ask for the GPU's name when imported.
KERNELS = ("sglang.kernels.ops.attention.fla", "sglang.kernels.ops.mamba")


def install(folder: str) -> None:
    """Put the folder with SGLang's package on the path, and shells for what it lacks."""
    warnings.filterwarnings("ignore")
    torch.compile = lambda function=None, **_: function or (lambda wrapped: wrapped)
    for name in ("torch.utils.flop_counter", "torch._dynamo", "transformers"):
        importlib.import_module(name)  # these would take a shell of triton for the real one
    sys.path.insert(0, folder)
    sys.meta_path.insert(0, Finder())


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, _path, _target=None):
        if name.split(".")[0] in SHELLS or name.startswith(KERNELS):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Shell(spec.name)

    def exec_module(self, module):
        pass


class Shell(types.ModuleType):
    __path__ = ()
    __file__ = "shell"
    __version__ = "9.9.9"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = anything(name)
        setattr(self, name, made)
        return made


class Anything(type):
    """A class that can be a base, a decorator, an annotation, or called with anything."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(name)

    def __call__(cls, *given, **named):
        if len(given) == 1 and not named and callable(given[0]):
            return given[0]
        return type.__call__(cls)

    def __or__(cls, other):
        return object

    __ror__ = __or__

    def __getitem__(cls, _):
        return cls


def anything(name):
    def call(self, *given, **_):
        return given[0] if given and callable(given[0]) else self

    def attribute(_, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(name)

    return Anything(name, (), {"__call__": call, "__getattr__": attribute})
