"""Runs don't know who will report on them: imports point downwards."""

import pkgutil
import subprocess
import sys

import cigl.study


def test_studies_import_no_report():
    names = [each.name for each in pkgutil.iter_modules(cigl.study.__path__, "cigl.study.")]
    assert {"cigl.study.engine", "cigl.study.worker"} < set(names)
    code = f"import sys, {', '.join(names)}; sys.exit(any(name.startswith('cigl.report') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
