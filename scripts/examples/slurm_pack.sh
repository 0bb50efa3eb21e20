#!/bin/bash
#SBATCH --job-name=shardkit-pack
# Pack on a Slurm cluster: an array of parts, then a job that merges them.
#
#     PARTS=64 scripts/examples/slurm_pack.sh SOURCE DEST --to webdataset [more of pack's options]
#
# Every node needs shardkit, and SOURCE and DEST under these names. Options for Slurm go into
# SBATCH_ variables (SBATCH_PARTITION=cpu) or into #SBATCH lines. A part that was killed is put into
# the queue again, and goes on. The merge begins when all parts have ended well; then DEST.parts may
# be removed.
set -euo pipefail
if [ $# -lt 2 ]; then
    sed -n '3,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
export PARTS="${PARTS:-16}"
source=$1 dest=$2
shift 2

if [ -n "${SHARDKIT_MERGE:-}" ]; then
    parts=()
    for number in $(seq "$PARTS"); do parts+=("$dest.parts/$number"); done
    exec shardkit merge "${parts[@]}" "$dest"
elif [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    exec shardkit pack "$source" "$dest.parts/$SLURM_ARRAY_TASK_ID" \
        --part "$SLURM_ARRAY_TASK_ID/$PARTS" --workers "${SLURM_CPUS_PER_TASK:-1}" "$@"
fi
array=$(sbatch --parsable --requeue --array="1-$PARTS" "$0" "$source" "$dest" "$@")
merge=$(SHARDKIT_MERGE=1 sbatch --parsable --requeue --dependency="afterok:${array%%;*}" \
    "$0" "$source" "$dest")
echo "parts are job ${array%%;*}, the merge is job ${merge%%;*}"
