"""The multi-context page-table walker."""
