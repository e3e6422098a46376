"""Python imports this at its start where this folder is on its path: devices appear before anything imports torch."""

import os

if "PRETEND_CUDA" in os.environ:
    import pretend_cuda

    pretend_cuda.appear(os.environ["PRETEND_CUDA"])
