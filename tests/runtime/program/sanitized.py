"""Runs the tests of programs, of inference and of training, on the library in a given folder: `make sanitize` builds it
with sanitizers.
"""

import sys
from pathlib import Path

import pytest

from cigl.runtime.program import library

if __name__ == "__main__":
    library._FOLDER = Path(sys.argv[1]).resolve()
    assert library.available(), library.reason()
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    here = Path(__file__).parent
    tests = [
        here / "test_program.py",
        here / "test_program_operations.py",
        here.parent / "training" / "test_gradients.py",
        here.parent / "test_recurrent.py",
    ]
    sys.exit(pytest.main([*map(str, tests), *options]))
