import sys
from pathlib import Path

# The lists of cases are here; the tests of trainers, which the table refers to, are in their own folder.
sys.path.insert(0, str(Path(__file__).parents[1] / "integrations"))
