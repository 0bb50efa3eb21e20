"""The kinds of cases there are."""

from __future__ import annotations

import contract
import faults
import flips
import fuzz
import kills
import planted
import splitters
import writes

_ALL = (fuzz, flips, kills, contract, faults, planted, writes, splitters)

KINDS = {module.KIND.name: module.KIND for module in _ALL}
