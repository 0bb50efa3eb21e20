"""shardkit, of pictures that were written anew as FFCV's writer does."""

from functools import partial

from serve import serve
from shardkit_peer import load, prepare

anew = partial(prepare, max_side=500, image_format="jpeg", quality=90)
serve(["shardkit", "torch"], anew, load)
