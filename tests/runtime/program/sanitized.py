"""Runs the tests of programs on the library in a given folder: `make sanitize` builds it with sanitizers."""

import sys
from pathlib import Path

import pytest

from cigl.runtime.program import library

if __name__ == "__main__":
    library._FOLDER = Path(sys.argv[1]).resolve()
    assert library.available(), library.reason()
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    sys.exit(pytest.main([str(Path(__file__).with_name("test_program.py")), *options]))
