"""The check on a GPU: stages that `gpu_check.sh` runs, each with its own time and its own result file."""
