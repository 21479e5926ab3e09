"""Runs a training script in a child process, and divides its run into steps and phases. Shared by the recorder and the
replayer.

`launch.run_child` starts the script in the same way as the command `python` does. `step_rule.StepCut` and `phase_rule.PhaseCut`
contain the rules for steps and phases, which are also applied to imported recordings. `script_cut.ScriptCut` applies the rules
for steps and phases to a running script. `patching` and the modules whose names contain "hooks" replace functions of PyTorch.
"""
