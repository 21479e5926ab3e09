"""Compiles the simulated device into a folder.

    python -m tests.cuda.build FOLDER

The folder then contains `libcuda.so.1` and `with_device`, a script that runs a command on the simulated device. The CUDA
headers and the list of symbols to replace come from the installed CUDA build of torch. Needs a C compiler (`cc` or $CC) and
`nm`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parent / "device"
REPLACED = re.compile(r"^(__cuda|cuda|cublas|cudnn|nccl|cusparse|cusolver|cufft|cupti|cu[A-Z])")
KEPT_REAL = re.compile(r"^(cusparseLt|cuFile)")
LIBRARIES = ("torch_cuda", "c10_cuda", "torch_cuda_linalg", "torch_python", "torch_cpu", "caffe2_nvrtc")


class CannotBuild(Exception):
    """The error for a missing requirement. The text says what to install."""


def _run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise CannotBuild(f"{Path(str(command[0])).name} failed:\n{done.stderr}")
    return done.stdout


def compiler() -> str:
    """Return the path of the C compiler. Raises CannotBuild if there is no compiler."""
    name = os.environ.get("CC", "cc")
    found = shutil.which(name)
    if not found or not shutil.which("nm"):
        raise CannotBuild(
            f"no C compiler ({name}) or no nm. Install gcc and binutils (Debian, Ubuntu: apt-get install gcc; Fedora: gcc)"
        )
    return found


def _site_packages() -> Path:
    found = importlib.util.find_spec("torch")
    if not found or not found.origin:
        raise CannotBuild("no torch: install the CUDA build, see constraints-cuda.txt")
    return Path(found.origin).parent.parent


def headers(site: Path) -> list[Path]:
    """Return the folders of the CUDA headers in the packages of torch's CUDA build."""
    folders = [path.parent for name in ("cupti.h", "nccl.h") for path in sorted(site.glob(f"nvidia/*/include/{name}"))]
    if len(folders) < 2:
        raise CannotBuild("this torch is not a CUDA build: its packages have no cupti.h and nccl.h")
    # NVIDIA's runtime package lacks crt/host_defines.h. Triton's package, which torch needs, has the file.
    folders += sorted(site.glob("triton/backends/nvidia/include"))
    return folders


def _defined(library: Path) -> set[str]:
    lines = _run("nm", "-D", "--defined-only", library).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if len(line.split()) == 3}


def _wanted(site: Path) -> set[str]:
    """Return the symbols that torch and Triton import from CUDA's libraries.

    Driver functions are also looked up by name at run time. The names are in torch's libraries and in Triton's source.
    """
    text = (site / "triton" / "backends" / "nvidia" / "driver.c").read_text()
    names = set(re.findall(r"\b(cu[A-Z]\w+)\s*\(", text))
    for library in ("c10_cuda", "torch_cuda"):
        content = (site / "torch" / "lib" / f"lib{library}.so").read_bytes()
        found = re.findall(rb"\0(cu(?:Mem|Multicast|Stream|Ctx|Green|Device|Get|Pointer)[A-Z]\w+)(?=\0)", content)
        names |= {name.decode() for name in found}
    for library in LIBRARIES:
        for line in _run("nm", "-D", "--undefined-only", site / "torch" / "lib" / f"lib{library}.so").splitlines():
            name = line.split()[-1].split("@")[0]
            if REPLACED.match(name) and not KEPT_REAL.match(name):
                names.add(name)
    return names


def _call_names(include: Path) -> str:
    """Return C tables that map CUPTI's callback ids to names."""
    text = "#include <stddef.h>\n"
    for which in ("runtime", "driver"):
        header = (include / f"cupti_{which}_cbid.h").read_text()
        rows = re.findall(rf"CUPTI_{which.upper()}_TRACE_CBID_(\w+)\s*=\s*(\d+)", header)
        rows = [(name, number) for name, number in rows if name not in ("INVALID", "SIZE", "FORCE_INT")]
        text += f"const char *const {which}_call_names[] = {{\n"
        text += "".join(f'    [{number}] = "{name}",\n' for name, number in rows)
        text += f"}};\nconst int {which}_call_count = sizeof {which}_call_names / sizeof *{which}_call_names;\n"
    return text


def _missing(wanted: set[str], defined: set[str]) -> set[str]:
    """Return the needed symbols that are not defined. A symbol may be defined with a version suffix (`cuMemFree_v2`)."""
    return {name for name in wanted if not defined & {name, f"{name}_v2", f"{name}_v3"}}


def _rest(wanted: set[str], defined: set[str]) -> str:
    """Return C code for functions that the sources do not define. Ignored functions succeed. All others fail and print their
    name."""
    ignored = {line.strip() for line in (SOURCES / "ignored.txt").read_text().splitlines() if line.strip() and line[0] != "#"}
    # Headers with the real prototypes would cause conflicts, so this code includes no header.
    lines = ['#define API __attribute__((visibility("default")))', "int not_simulated(const char *name);"]
    for name in sorted(_missing(wanted, defined)):
        result = "0" if name in ignored else f'not_simulated("{name}")'
        lines.append(f"API int {name}(void) {{ return {result}; }}")
    return "\n".join(lines) + "\n"


def _aliases(defined: set[str]) -> str:
    """Return a C table of the driver functions by name."""
    names = sorted(name for name in defined if re.match(r"cu[A-Z]", name))
    text = "#include <string.h>\n" + "".join(f"extern int {name}();\n" for name in names)
    text += "static const struct { const char *name; void *address; } functions[] = {\n"
    text += "".join(f'    {{"{name}", (void *){name}}},\n' for name in names)
    text += "};\nvoid *alias_of(const char *name) {\n"
    text += "    for (unsigned i = 0; i < sizeof functions / sizeof *functions; i++)\n"
    return text + "        if (!strcmp(functions[i].name, name)) return functions[i].address;\n    return 0;\n}\n"


WITH_DEVICE = """#!/usr/bin/env bash
# Runs a command on the simulated device. README.md of tests/cuda lists the environment variables that it reads.
here={folder}
export LD_PRELOAD="$here/libcuda.so.1:$here/libnvidia-ml.so.1${{LD_PRELOAD:+:$LD_PRELOAD}}" TRITON_LIBCUDA_PATH="$here"
export TORCH_CUDNN_V8_API_DISABLED=1  # the calls of cuDNN that are simulated
exec "$@"
"""


def build(folder: Path) -> Path:
    """Compile the device into `folder`, and return the path of `with_device`.

    Raises CannotBuild if a requirement is missing.
    """
    cc, site = compiler(), _site_packages()
    includes = headers(site)
    folder.mkdir(parents=True, exist_ok=True)
    generated = folder / "generated"
    generated.mkdir(exist_ok=True)
    flags = ["-O1", "-g", "-fPIC", "-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"]
    flags += ["-Wno-enum-conversion", "-Wno-deprecated-declarations", f"-I{SOURCES}", *[f"-I{path}" for path in includes]]
    (generated / "call_names.c").write_text(_call_names(includes[0]))
    objects = []
    for source in [*sorted(SOURCES.glob("*.c")), generated / "call_names.c"]:
        objects.append(generated / f"{source.stem}.o")
        _run(cc, *flags, "-c", source, "-o", objects[-1])
    # The first link shows which symbols the sources define. The other symbols that torch needs are generated.
    first = generated / "first.so"
    _run(cc, "-shared", "-Wl,--unresolved-symbols=ignore-all", "-o", first, *objects, "-lpthread", "-lm")
    defined = _defined(first)
    wanted = _wanted(site)
    (generated / "rest.c").write_text(_rest(wanted, defined))
    (generated / "aliases.c").write_text(_aliases(defined | _missing(wanted, defined)))
    for name in ("rest", "aliases"):
        objects.append(generated / f"{name}.o")
        _run(cc, "-O1", "-fPIC", "-fvisibility=hidden", "-w", "-c", generated / f"{name}.c", "-o", objects[-1])
    library = folder / "libcuda.so.1"
    fresh = folder / "libcuda.so.1.new"
    _run(cc, "-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-z,defs", "-o", fresh, *objects, "-lpthread", "-lm")
    fresh.replace(library)
    # torch searches a library with this name for NVML. This library is empty, so the search continues in its dependencies.
    _run(cc, "-shared", "-Wl,-soname,libnvidia-ml.so.1", "-Wl,--no-as-needed", "-o", folder / "libnvidia-ml.so.1", library)
    link = folder / "libcuda.so"  # Triton compiles a module, and its linker searches for this name
    if not link.is_symlink():
        link.symlink_to(library.name)
    script = folder / "with_device"
    script.write_text(WITH_DEVICE.format(folder=folder.resolve()))
    script.chmod(0o755)
    return script


def main() -> int:
    try:
        print(build(Path(sys.argv[1])))
    except CannotBuild as error:
        print(f"the simulated CUDA device cannot be built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
