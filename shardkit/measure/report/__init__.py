"""A bench's report as a page."""
