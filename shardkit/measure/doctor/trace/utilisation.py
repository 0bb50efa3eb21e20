"""How much of a device the training uses: shares of its peak, of a reference, of its time. Pure."""

from __future__ import annotations

from shardkit.arguments import positive
from shardkit.measure.doctor.evidence import Utilisation
from shardkit.measure.doctor.trace.peaks import peak_of

UNEXPLAINED = 0.1
"""Of a step: what the loop gains with loading free may be so much more than what it waits."""


def utilisation(
    *,
    flops_per_step: float | None,
    steps_per_s: float,
    device_name: str,
    dtype: str | None,
    peak_tflops: float | None = None,
    samples_per_s: float | None = None,
    reference: float | None = None,
    own_rate: float | None = None,
    replay_rate: float | None = None,
    waits: float = 1.0,
) -> Utilisation:
    """The shares that can be said of one rank; None for each that lacks a figure.

    Args:
        flops_per_step: of the model, forward and backward, on this device.
        dtype: that most of these are done in, by torch's name or a short one.
        peak_tflops: of the device, in teraFLOPs a second, in place of the table's.
        samples_per_s, reference: both of the same samples: tokens through tokens, and of all ranks
            if the reference is.
        own_rate, replay_rate: steps a second as the script is, and with batches that cost nothing.
        waits: share of a step that the loop waits for a batch.

    Raises UsageError for a peak or a reference that is not more than 0.
    """
    for name, value in (("peak_tflops", peak_tflops), ("reference", reference)):
        if value is not None:
            positive(name, value)
    rate = flops_per_step * steps_per_s if flops_per_step else None
    peak, source = _peak(device_name, dtype, peak_tflops)
    return Utilisation(
        accelerator=_accelerator(own_rate, replay_rate, waits),
        flops_per_s=rate,
        mfu=rate / peak if rate and peak else None,
        peak=peak,
        source=source,
        reference=reference,
        of_reference=samples_per_s / reference if samples_per_s and reference else None,
    )


def _peak(
    device_name: str, dtype: str | None, peak_tflops: float | None
) -> tuple[float | None, str | None]:
    if peak_tflops is not None:
        return peak_tflops * 1e12, "given"
    found = peak_of(device_name, dtype) if dtype else None
    return found or (None, None)


def _accelerator(own_rate: float | None, replay_rate: float | None, waits: float) -> float | None:
    """MLPerf Storage's AU: total compute time / total benchmark running time, which is 1 where all
    reading is hidden behind the computing (Submission_guidelines.md of mlcommons/storage). Its
    compute time is a sleep; ours is a step with batches that cost nothing. None where the
    step itself is slower while workers make batches, which is no waiting. A replay that came out
    slower is noise: no share is above 1."""
    if not own_rate or not replay_rate or own_rate / replay_rate < 1 - waits - UNEXPLAINED:
        return None
    return min(1.0, own_rate / replay_rate)
