"""Pictures: what a file holds, and how it becomes pixels."""
