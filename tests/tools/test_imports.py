"""The programs of maintainers can be started: none imports a name that the library has renamed."""

import importlib
import pkgutil
from importlib.util import find_spec

import pytest

import benchmarks
import reproduction
import tools
import training

_NEEDS = {"tools.reference": "griffe", "tools.site": "mkdocs"}  # of the environment for the docs
PROGRAMS = [
    module.name
    for package in (benchmarks, reproduction, tools, training)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_imports(name):
    if name in _NEEDS and find_spec(_NEEDS[name]) is None:
        pytest.skip(f"needs {_NEEDS[name]}")
    importlib.import_module(name)
