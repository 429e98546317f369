#!/bin/bash
# Before training: checks dltune.json on this node, and retunes if necessary. Training starts in any case.
#
# In a job script, once, with the CPUs of one training task (since Slurm 22.05, srun needs SRUN_CPUS_PER_TASK for them):
#
#     #SBATCH --nodes=2 --ntasks-per-node=4 --cpus-per-task=8 --gpus-per-task=1
#     export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
#     srun --nodes=1 --ntasks=1 examples/jobs/slurm_prolog.sh
#     srun python train.py
#
# Or before every task: srun --task-prolog="$PWD/examples/jobs/slurm_prolog.sh" python train.py. The lock lets one
# task at a time check; the others then find its result. Slurm sets variables from the stdout of a task prolog, so all
# output goes to stderr. A task prolog has no PATH either.
set -u

cd "${SLURM_SUBMIT_DIR:-.}" || exit 0
export PATH="${VIRTUAL_ENV:-$PWD/.venv}/bin:/usr/local/bin:/usr/bin:/bin${PATH:+:$PATH}"
file=${1:-dltune.json}

prepare() {
    flock 9 || return
    # --no-workload takes half a second; without it, dltune loads the dataset and compares the size of its samples, too
    dltune check --no-workload "$file" || dltune retune "$file"
}

prepare 9>>"$file.job-lock" >&2 ||
    echo "dltune: $file has no profile for this node; autotune.load scales down the nearest one, and warns" >&2
exit 0
