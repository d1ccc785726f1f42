#!/bin/bash
# A run on a Slurm cluster: sbatch deploy/slurm.sh task=zebra [key=value ...]
#
# Submit from a folder that all nodes share and that has .venv: runs, shards, MLflow's database and this job's log go there.
# The same line again resumes the run; a job that reaches its time limit saves a checkpoint and queues itself again.
# Lines that you are likely to change are marked CHANGE; see docs/cluster.md.
#SBATCH --job-name=recor_dist  # CHANGE: one name per `out`, or sbatch --job-name=NAME
#SBATCH --dependency=singleton  # waits for your jobs of the same name, as two jobs must not train one `out` at once
#SBATCH --nodes=3              # CHANGE: the first has the learner; actors are on all of them
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16     # CHANGE
#SBATCH --gpus-per-node=1      # CHANGE: remove this line for CPUs
#SBATCH --time=24:00:00        # CHANGE
#SBATCH --exclusive            # Ray's and MLflow's ports would clash with those of another job on the same node
#SBATCH --no-kill              # a lost node only costs the tickets it was computing
#SBATCH --signal=B:TERM@120    # seconds for the last checkpoint, as below
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=recor_dist-%j.log
set -euo pipefail
source .venv/bin/activate  # CHANGE: where recor_dist is installed

# Whoever has the token can run code in this job's cluster. It is in the environment of this job alone.
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 RAY_JOB_STOP_WAIT_TIME_S=120

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address_of() { # NODE; Debian gives a machine's own name the address 127.0.1.1, at which no other node reaches it
    getent ahostsv4 "$1" | awk 'NR == 1 { print $1 }' | sed "s/^127\.0\.1\.1$/$(hostname -I | cut -d ' ' -f 1)/"
}
head=$(address_of "${nodes[0]}")
start_ray_on() { # NODE OPTION...
    srun --nodes=1 --ntasks=1 --nodelist="$1" --cpus-per-task="$SLURM_CPUS_PER_TASK" ray start \
        --node-ip-address="$(address_of "$1")" --num-cpus="$SLURM_CPUS_PER_TASK" --block "${@:2}" &
}
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
start_ray_on "${nodes[0]}" --head --port=6379 --include-dashboard=false
ray_head=$!
for node in "${nodes[@]:1}"; do start_ray_on "$node" --address="$head:6379"; done

# MLflow's server listens on loopback of the first node, unless there is one already.
if [ -z "${MLFLOW_TRACKING_URI:-}" ]; then
    export MLFLOW_TRACKING_URI=http://127.0.0.1:5000 MLFLOW_DISABLE_TELEMETRY=true
    mkdir -p mlflow
    MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow server --backend-store-uri sqlite:///mlflow/mlflow.db \
        --artifacts-destination mlflow/artifacts --host 127.0.0.1 --port 5000 --workers 1 > mlflow/server.log 2>&1 &
fi

export RAY_ADDRESS=$head:6379
until ray status > /dev/null 2>&1; do
    kill -0 $ray_head || exit 1  # what it printed is in this job's log
    sleep 2
done

stopped=
python -m recor_dist.run "$@" &
run=$!
trap 'stopped=yes; kill -TERM $run' TERM
code=0
wait $run || code=$?
if [ -n "$stopped" ]; then
    code=0
    wait $run || code=$?  # the first `wait` ended with the signal
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
