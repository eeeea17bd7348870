"""The devices of a training: choice, process group, fp8, offload, and sharing one model over several."""
