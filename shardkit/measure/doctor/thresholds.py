"""From what on the doctor says something: every threshold of the verdict, each with its reason."""

from __future__ import annotations

LEAST_STEPS = 10
"""Steps that must have been timed: of fewer, one late batch moves the rate by 10 %."""

FLOOR = 1.08
"""A cause counts if the loop would be so many times as fast without it. Runs of the same script
differ by some percent, and a change that brings less is hardly worth making. MLPerf Storage lets an
accelerator utilisation of 0.9 pass, which is a factor of 1.11; TraceML speaks up from a wait of 5
to 10 % of the step."""

UNEXPLAINED = 1.3
"""Where free loading would bring so much and no rule found why, the loop is not called healthy."""

TIE = 1.05
"""Of causes whose factors differ by less than that, the one that is cheaper to remove is named."""

FEW_STEPS = 2
"""Steps of an iteration, up to which it is called one for each step if it could have more."""

WAITS = 0.08
"""Beside a slow rank, all ranks' loading is blamed only if the usual rank waits for so much of its
step: replaying batches on all ranks makes the slow one faster, too."""

MOST = 0.6
"""A cheap change of loading (workers, cores, files in memory) is the one to make if it saves so
much of what the loop waits within an epoch; otherwise the work itself is too much."""

READING = 0.5
"""Reading is the cause, whatever workers would bring, if it takes so much of making a batch: more
readers share the same disk."""

READING_AT_ALL = 0.1
"""Share of making a batch that is reading, below which a higher rate with files in memory is
chance: page faults of mapped files count as reading, too."""

THROTTLED = 0.10
"""Share of the time that a CPU quota stops the script. Bursts of threads meet a quota for some
percent of the time on any container."""

MOST_CORES = 4
"""Times the cores that are there: nobody is advised to get more."""

OTHERS = 0.6
"""Share of the cores that other processes use. One busy process beside a script, which may have one
of two cores, does not make its own sickness another."""

SHARED = 0.15
"""Share of the cores that other processes use, from which on every verdict says so first: system
services and the doctor itself use a few percent."""

FULL = 0.85
"""Share of its cores that making batches and the step need together, from which on they are said to
take them from each other: a script that fills two cores is seen with 1.7 to 2."""

CONTRADICTS = 0.15
"""A rate that should be higher than another and is so much lower contradicts it, whatever the
blocks of both say: runs of the same script differ by some percent."""

CONTRADICTS_S = 0.5e-3
"""Seconds of a step that its replayed batches and the looks at it may take."""

UNSTEADY = 0.3
"""Rates whose ratio is known no better than that say nothing of a loop that seems healthy."""

CROWDED = 0.3
"""Share of the cores that other processes use, from which on batches that come late now and then,
though they are made in time, are not blamed on the work of making them."""

STARVED = 0.15
"""Share of making a batch that workers are ready to run and others have the cores. Half of that is
usual where there are as many busy workers as cores."""

OWN_PART = 0.05
"""Parts of the step (copies, saving, logging, synchronising) below that share are not looked at:
their figures are sums of calls of microseconds."""

STRAGGLER = 0.10
"""Share of the step by which the others wait longer in collectives than the slow rank. Among equal
ranks it is the noise of one step, of which the mean over some dozens leaves 1 or 2 %."""

EXPLAINS = 0.5
"""One part of the step explains a slow rank if it is longer there by so much of what the others
wait."""

LAUNCH_OPS = 200
"""Operations a step from which on launching them can matter: 200 take 2 to 4 ms of Python,
dispatcher and autograd on a CPU of today."""

LAUNCH_S = 20e-6
"""Seconds an operation, below which most of it is launching. Training tiny networks takes 4 to 8
microseconds for each, and layers of 256 units 34 (22 November 2026, one core of an AMD EPYC)."""

LAUNCH_SHARE = 0.3
"""Share of the step that these operations take, so that no loop that sleeps is meant."""

GPU_IDLE = 0.2
"""Share of the time that the GPU has nothing to do, beyond the loop's waiting for other things."""

SHORT_KERNEL_S = 10e-6
"""Mean seconds of a kernel, below which launching (3 to 6 microseconds on the host) cannot stay
ahead of it."""

OPTIMIZER = 0.08
"""Share of the step in the optimizer, from which on a fused one is worth a line."""

LOW_MFU = 0.3
"""Model FLOPs utilisation below this is low: well-tuned training of dense models reaches 0.4 to
0.6, and convolutional networks 0.2 to 0.4."""
