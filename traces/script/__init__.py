"""What the recorder and the replayer share: running a script in a child process and cutting it into steps and phases.

`launch.run_child` starts the script as plain Python would. `step_rule.StepCut` and `phase_rule.PhaseCut` hold the rules that
also cut imported recordings; `script_cut.ScriptCut` applies both to a running script. `patching` and the hooks replace
functions of torch.
"""
