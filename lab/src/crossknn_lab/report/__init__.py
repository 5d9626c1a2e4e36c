"""Reports: pages of text, tables and pictures, and what goes into them."""

from __future__ import annotations

from crossknn_lab.report.html import write_html
from crossknn_lab.report.markdown import write_markdown
from crossknn_lab.report.page import Block, Cell, Figure, Page, Points, Section, TableOf, draw

__all__ = [
    "Block",
    "Cell",
    "Figure",
    "Page",
    "Points",
    "Section",
    "TableOf",
    "draw",
    "write_html",
    "write_markdown",
]
