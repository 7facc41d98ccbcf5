"""An empty torchvision: SGLang imports it for image models, which a text model never uses."""

import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.0.0"
__path__ = []  # so that torchvision.transforms can be imported


class _Members(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return f"torchvision stub {name}"


class _Anything(metaclass=_Members):
    """Stands for any class, function or enumeration."""

    def __init__(self, *args, **kwargs):
        raise RuntimeError("torchvision is a stub here")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("torchvision."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = _attribute
        return module

    def exec_module(self, module):
        pass


def _attribute(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything


__getattr__ = _attribute
sys.meta_path.insert(0, _Finder())
