"""Runs a script in a child process, and cuts the script into steps and phases. Shared by the recorder and the replayer.

`launch.run_child` starts the script as plain Python would. `step_rule.StepCut` and `phase_rule.PhaseCut` contain the
rules, which also cut imported recordings. `script_cut.ScriptCut` applies both rules to a running script. `patching` and
the hooks replace functions of torch.
"""
