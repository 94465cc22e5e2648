"""Fences of ``math`` become MathML when the site is built: browsers draw it themselves, without scripts or fonts.

GitHub understands the same fences.
"""

from __future__ import annotations

from typing import Any

import latex2mathml.converter
from mkdocs.config.defaults import MkDocsConfig


def to_mathml(source: str, *rest: Any, **more: Any) -> str:
    return f'<div class="equation">{latex2mathml.converter.convert(source, display="block")}</div>'


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [{"name": "math", "class": "equation", "format": to_mathml}]
    return config
