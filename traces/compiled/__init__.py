"""Analyzes compiled code in a trace: functions compiled by torch.compile, graph breaks and CUDA graphs."""
