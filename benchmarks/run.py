"""All figures of README.md, one JSON object a benchmark; each runs in a process of its own."""

import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    for script in ("engine_speed.py", "sim_speed.py"):
        print(f"# {script}", flush=True)
        subprocess.run([sys.executable, Path(__file__).with_name(script)], check=True)
