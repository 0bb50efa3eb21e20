"""The kinds of cases there are."""

from __future__ import annotations

import contract
import faults
import flips
import fuzz
import kills

KINDS = {
    kind.name: kind for kind in (fuzz.KIND, flips.KIND, kills.KIND, contract.KIND, faults.KIND)
}
