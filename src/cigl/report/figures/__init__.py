"""Figures of a report: drawn for files by matplotlib, for the page as SVG."""
