"""The exam of the ARM kernels, on an emulated processor: `make test-arm`."""
