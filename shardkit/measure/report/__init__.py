"""A bench's report: its values and their JSON, what it says in words, and its page."""
