"""Images with annotations: masks, boxes, captions and labels, in the layouts that people use."""
