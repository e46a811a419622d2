"""Networks: the Fourier neural operator, its transforms, its kernels, and replays of it as CUDA graphs."""
