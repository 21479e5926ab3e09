r"""Makes the pictures of the timeline app for timeline.md and README.md.

    trace import ../shared/traces/v100_resnet50_workers0.json.gz -o v100.msgpack
    trace replay -o replay.msgpack --clock recorded examples/train_resnet.py --trace v100.msgpack \
        --model resnet50 --batch-size 32 --steps 12 --workers 0
    python docs/pictures.py v100.msgpack replay.msgpack
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from tui.outputs import write_text  # noqa: E402
from tui.view.picture import picture  # noqa: E402

# file, terminal size, keys pressed before the picture: some steps; within one, with details; tables
PICTURES: tuple[tuple[str, tuple[int, int], tuple[str, ...]], ...] = (
    ("timeline.svg", (130, 36), ("g", "8", "enter", "w", "w", "d")),
    ("timeline_details.svg", (130, 36), ("g", "8", "enter", "slash", *"winograd", "enter", *"wwwwww", "enter")),
    ("timeline_tables.svg", (160, 36), ("g", "8", "enter", "w", "w", "d", "h", "t", "right")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path)
    parser.add_argument("replay", type=Path)
    parser.add_argument("--out", type=Path, default=DOCS, help="the folder for the pictures")
    args = parser.parse_args()
    names = [path.resolve() for path in (args.recording, args.replay)]
    out = args.out.resolve()
    os.chdir(names[0].parent)  # so that the pictures show plain names
    for name, size, keys in PICTURES:
        write_text(out / name, picture([os.path.relpath(path) for path in names], *size, press=keys))
        print(out / name)


if __name__ == "__main__":
    main()
