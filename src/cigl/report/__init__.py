"""Finished runs into statistics, tables, figures and a page: `cigl report`."""
