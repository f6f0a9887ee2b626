"""The agent's modules in Metalmark's own process: the code that watches a script from inside also watches mm.run."""

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

AGENT_FOLDER = Path(__file__).parent / "agent"
"""What a watched script has first in its PYTHONPATH."""
PACKAGE = "metalmark_agent"


def agent_module(name: str) -> ModuleType:
    """Return `metalmark_agent.NAME`: of the process's own package, where a watched script has loaded it."""
    if PACKAGE not in sys.modules:
        folder = AGENT_FOLDER / PACKAGE
        spec = spec_from_file_location(PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)])
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[PACKAGE] = module
        spec.loader.exec_module(module)
    return import_module(f"{PACKAGE}.{name}")
