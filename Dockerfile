# syntax=docker/dockerfile:1
# An image with recor_dist, for Docker, for the nodes of deploy/raycluster.yaml, and for MLflow's server.
#
#   docker build -t recor_dist .                                                # for NVIDIA GPUs, and for CPUs: several GB
#   docker build -t recor_dist:cpu --build-arg PIP_EXTRA_INDEX_URL=... .        # for CPUs alone
#   docker run --rm recor_dist python -m recor_dist.run task=arg scale=smoke
#   docker run --rm --gpus all recor_dist python -m recor_dist.check_gpu
#
# For CPUs alone, give the index of CPU wheels that PyTorch's "Get Started" page names. The torch of the standard index
# brings the CUDA libraries along, so no CUDA image is needed as a base: the driver comes with `--gpus`.
FROM python:3.12-slim-bookworm

LABEL org.opencontainers.image.licenses=Apache-2.0

ARG PIP_EXTRA_INDEX_URL=

# KubeRay's probes call wget. The packages of pip go where login shells, which KubeRay starts, find them, too.
RUN apt-get update && apt-get install -y --no-install-recommends wget && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 recor

WORKDIR /opt/recor_dist
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY recor_dist recor_dist
COPY actors actors
COPY learner learner
COPY data data
RUN pip install --no-cache-dir --disable-pip-version-check -c constraints.txt . boto3

# Runs, shards and MLflow's database are in the working directory, unless `out` and `data.dir` say otherwise.
USER 1000:1000
WORKDIR /home/recor
ENV RAY_USAGE_STATS_ENABLED=0 MLFLOW_DISABLE_TELEMETRY=true
CMD ["python", "-m", "recor_dist.run", "--help"]
