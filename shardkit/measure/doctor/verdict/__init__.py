"""From evidence to a verdict: rules, thresholds, predictions. Pure.

Nothing here looks at a machine or a file.
"""
