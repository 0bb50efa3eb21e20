"""What the doctor says, in a terminal, as JSON and as a page.

Nothing here decides.
"""
