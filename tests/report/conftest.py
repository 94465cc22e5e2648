import pytest
from made_runs import a_study, make


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of a finished study: dense, RigL and CigL at three sparsities, two seeds."""
    path = tmp_path_factory.mktemp("finished")
    make(path, a_study())
    return path
