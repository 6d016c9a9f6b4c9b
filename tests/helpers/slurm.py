"""SLURM's commands for tests: sbatch starts all jobs of an array at once, on this machine."""

import stat
import sys

SBATCH = """#!{python}
import os, pathlib, re, subprocess, sys
here = pathlib.Path(__file__).parent
script = pathlib.Path(sys.argv[-1])
number = 100 + len(list(here.glob("*.sbatch")))
(here / f"{{number}}.sbatch").write_text(script.read_text())
array = re.search(r"--array=0-(\\d+)", script.read_text())
for task in range(int(array[1]) + 1 if array else 1):
    job = f"{{number}}_{{task}}" if array else str(number)
    own = {{"SLURM_JOB_ID": str(number + task), "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1"}}
    own |= {{"SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}}
    own |= {{"SLURM_JOB_NODELIST": "here", "SLURM_ARRAY_JOB_ID": str(number)}}
    own |= {{"SLURM_ARRAY_TASK_ID": str(task)}} if array else {{}}
    line = f"bash {{script}}; echo '{{job}}|COMPLETED|here' >> {{here / 'states'}}"
    quiet = {{name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}}
    subprocess.Popen(["bash", "-c", line], env=os.environ | own, start_new_session=True, **quiet)
print("Submitted batch job", number)
"""
SRUN = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    words = words[1:] if words[0] == "--unbuffered" else words[2:]
sys.exit(subprocess.run(words, check=False).returncode)
"""
SACCT = """#!{python}
import pathlib
states = pathlib.Path(__file__).parent / "states"
print("JobID|State|NodeList")
print(states.read_text() if states.exists() else "", end="")
"""


def write_slurm(folder):
    """Write the commands into a folder, which then keeps each script given to sbatch."""
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT}.items():
        (folder / name).write_text(text.format(python=sys.executable))
        (folder / name).chmod(stat.S_IRWXU)
    return folder
