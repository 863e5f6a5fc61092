"""The profile `artifact`: the public G10 artifact's own planner and simulators, rebuilt with their quirks as named flags.

It exists to show that the reference is understood, by reproducing its published numbers from its own traces. Nobody plans
hardware with it: the profile `faithful` (`pagetide.model.engine`) is what the papers describe and physics allows.

- `quirks`: every quirk is a flag with a sentence, in one table.
- `trace`: a G10 trace with the three profiled times of each kernel.
- `config`: the machine in the artifact's own units and switches.
- `planner`: the migration planner as coded.
- `pages`: the page-round simulator (Base UVM, DeepUM+, G10).
- `tensors`: the tensor-level simulator (G10-GDS, G10-Host, FlashNeuron).
"""
