#include "device.h"
bool run_collective(Collective *c, Ns start, Ns *end) { (void)c; *end = start + 1000; return true; }
Collective *copy_collective(Collective *c) { return c; }
void free_collective(Collective *c) { (void)c; }
