"""Runs a training script in a child process, and divides the run into steps and phases. `launch.run_child` starts the script
like the command `python`. `step_rule.StepSplitter` decides where training steps end, and `phase_rule.PhaseSplitter` decides
where phases begin. `patching` replaces functions of PyTorch."""
