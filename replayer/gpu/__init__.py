"""Emulates CUDA devices with their streams, events and launches, and counts the script's steps. The class
`virtual_gpu.VirtualGpu` emulates all devices of a process. The class `launches.ScriptLaunches` launches kernels."""
