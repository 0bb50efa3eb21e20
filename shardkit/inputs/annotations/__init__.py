"""Pictures with annotations: masks, boxes, captions and labels, in the layouts that people use.

Which of them a folder has is found in :mod:`shardkit.inputs.annotations.layouts`; whether folders
side by side are classes, in :mod:`shardkit.inputs.annotations.siblings`.
"""
