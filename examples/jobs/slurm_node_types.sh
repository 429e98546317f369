#!/bin/bash
# Tunes on a node of one type, with as many training processes as the job will run there. Submit it once for each type (the
# tasks of one array share their constraint), and merge what they write:
#
#     for type in a100 h100; do sbatch --constraint="$type" examples/jobs/slurm_node_types.sh; done
#     dltune merge tuned/*.json --output dltune.json
#
# Each job writes tuned/NODE.json. Training code on any of these nodes then loads the one file.
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --exclusive
#SBATCH --time=00:15:00
set -eu

cd "${SLURM_SUBMIT_DIR:-.}"
mkdir -p tuned
srun --nodes=1 --ntasks=1 dltune --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" \
    --dataset data.images:make_dataset --step train:make_step --batch-size 64 --set in_order=true \
    --output "tuned/${SLURMD_NODENAME:-$(hostname)}.json"
