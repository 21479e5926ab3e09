"""Code shared by the recorder and the replayer: running a script in a child process, and cutting it into steps and phases.

`launch.run_child` starts the script as plain Python would. `step_rule.StepCut` and `phase_rule.PhaseCut` contain the rules,
which also cut imported recordings. `script_cut.ScriptCut` applies both to a running script. `patching` and the hooks replace
functions of torch.
"""
