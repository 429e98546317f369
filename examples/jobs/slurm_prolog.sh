#!/bin/bash
# Before training: makes sure that dltune.json fits this node, else retunes. Training starts either way.
#
# In a job script, once, with the CPUs of one training task (srun takes them over by itself no longer, since Slurm 22.05):
#
#     #SBATCH --nodes=2 --ntasks-per-node=4 --cpus-per-task=8 --gpus-per-task=1
#     export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
#     srun --nodes=1 --ntasks=1 examples/jobs/slurm_prolog.sh
#     srun python train.py
#
# Or before every task: srun --task-prolog="$PWD/examples/jobs/slurm_prolog.sh" python train.py. The lock then lets one
# task at a time look; those after the first find what it has tuned. Slurm sets variables from what a task prolog writes
# to stdout, so all words go to stderr. A task prolog has no search path either.
set -u

cd "${SLURM_SUBMIT_DIR:-.}" || exit 0
export PATH="${VIRTUAL_ENV:-$PWD/.venv}/bin:/usr/local/bin:/usr/bin:/bin${PATH:+:$PATH}"
file=${1:-dltune.json}

prepare() {
    flock 9 || return
    # --no-workload takes half a second; without it the dataset is loaded, and the size of its samples is compared as well
    dltune check --no-workload "$file" || dltune retune "$file"
}

prepare 9>>"$file.job-lock" >&2 ||
    echo "dltune: $file has no profile for this node; autotune.load reduces the nearest one, and warns" >&2
exit 0
