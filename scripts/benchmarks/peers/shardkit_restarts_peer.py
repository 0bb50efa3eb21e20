"""shardkit, with restart markers in its JPEGs."""

from functools import partial

from serve import serve
from shardkit_peer import load, prepare

serve(["shardkit", "torch"], partial(prepare, restarts=True), load)
